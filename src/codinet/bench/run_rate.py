"""Make a network route at a given rate without training it, for benchmarks and tests.

`settle` sets the BatchNorm statistics from images, so that features keep their scale with depth as in a trained
network. `with_run_rate` then sets the routers' last biases so that each block is run by the given fraction of the
images. Which images run which block depends on the untrained routers: it is practically random and differs between
images.
"""

import copy
from collections.abc import Sequence
from statistics import fmean

import torch
from torch import nn

from codinet.model import RoutedNetwork
from codinet.relaxation import hard
from codinet.routers import SeparateRouters

_ALWAYS = 1e4  # a run score that decides whatever the features are


@torch.no_grad()
def settle(model: RoutedNetwork, images_BCHW: torch.Tensor) -> RoutedNetwork:
    """Set the BatchNorm statistics of a network from one batch, with every block run.

    Args:
        model: The network; it does not change.
        images_BCHW: Normalised images on its device.

    Returns:
        A copy in evaluation mode.
    """
    model = copy.deepcopy(model).train()
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # a plain average over batches; there is one batch
        norm.reset_running_stats()
    model(images_BCHW, force=torch.ones(len(model.blocks)))
    for norm in norms:
        norm.momentum = 0.1
    return model.eval()


@torch.no_grad()
def with_run_rate(model: RoutedNetwork, images_BCHW: torch.Tensor, run_rate: float | Sequence[float]) -> RoutedNetwork:
    """Shift the routers of a network so that images run blocks at a given rate.

    Args:
        model: A routed network; it does not change.
        images_BCHW: Normalised images on its device; the rate holds for these.
        run_rate: The fraction of images that run each block, or one fraction per block. Of routers that are
            not separate, such as RNN routers, all scores are shifted alike, so the mean over blocks is met about.

    Returns:
        A copy in evaluation mode.
    """
    assert model.routers is not None
    model = copy.deepcopy(model).eval()
    assert model.routers is not None
    rates = [run_rate] * len(model.blocks) if isinstance(run_rate, float | int) else run_rate
    if not isinstance(model.routers, SeparateRouters):
        _shift_by_bisection(model, images_BCHW, fmean(rates))
        return model
    x_BCHW, state = model.stem(images_BCHW), model.routers.start(images_BCHW)
    deficit = 0.0  # runs missing in earlier blocks because of rounding, so that few images meet a rate in the mean
    for k, block in enumerate(model.blocks):
        scores_B2, state = model.routers.router(k)(x_BCHW, state)
        count = round(deficit + rates[k] * len(images_BCHW))
        deficit += rates[k] * len(images_BCHW) - count
        amount = _shift_for(scores_B2[:, 1] - scores_B2[:, 0], count)
        model.routers.get_submodule(f"each.{k}.out").get_parameter("bias")[1] += amount
        scores_B2[:, 1] += amount
        run_B = hard(scores_B2).bool()[:, None, None, None]
        shortcut_BCHW = block.shortcut(x_BCHW)
        x_BCHW = torch.where(run_B, block.run(x_BCHW, shortcut_BCHW), shortcut_BCHW)
    return model


def _shift_for(margin_B: torch.Tensor, count: int) -> float:
    """What to add to all margins so that `count` of them are positive and none is close to 0."""
    if count in (0, len(margin_B)):
        return _ALWAYS if count else -_ALWAYS
    falling_B = margin_B.sort(descending=True).values
    return -float(falling_B[count - 1] + falling_B[count]) / 2


def _shift_by_bisection(model: RoutedNetwork, images_BCHW: torch.Tensor, run_rate: float) -> None:
    """Shift routers that share one output layer until the mean rate is close to `run_rate`, by bisection."""
    assert model.routers is not None
    if run_rate in (0, 1):
        model.routers.shift(_ALWAYS if run_rate else -_ALWAYS)
        return
    low, high, shift = -8.0, 8.0, 0.0
    for _ in range(20):
        middle = (low + high) / 2
        model.routers.shift(middle - shift)
        shift = middle
        rate = model(images_BCHW).path_BN.mean().item()
        low, high = (middle, high) if rate < run_rate else (low, middle)
