"""Networks that route at a wished rate without having been trained, for benches and tests.

BatchNorm statistics are taken from the images, so that features keep their size along the depth as a trained
network's do; then the routers' last biases are set so that each block is run by the wished share of them. Which
images run which block is up to untrained routers: as good as random, and different for each image.
"""

import copy
from collections.abc import Sequence
from statistics import fmean

import torch
from torch import nn

from codinet.model import RoutedNetwork
from codinet.relaxation import hard
from codinet.routers import RNNRouters

_EXTREME = 1e4  # a run score that no features outweigh


@torch.no_grad()
def settle(model: RoutedNetwork, images_BCHW: torch.Tensor) -> RoutedNetwork:
    """A copy whose BatchNorms know the images' statistics, with every block run."""
    model = copy.deepcopy(model).train()
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # the plain average of what they see, which is one batch
        norm.reset_running_stats()
    model(images_BCHW, force=torch.ones(len(model.blocks)))
    for norm in norms:
        norm.momentum = 0.1
    return model.eval()


@torch.no_grad()
def with_run_rate(model: RoutedNetwork, images_BCHW: torch.Tensor, run_rate: float | Sequence[float]) -> RoutedNetwork:
    """A copy of a routed network of which the images run blocks at this rate, or each at about its own."""
    assert model.routers is not None
    model = copy.deepcopy(model).eval()
    assert model.routers is not None
    rates = [run_rate] * len(model.blocks) if isinstance(run_rate, float | int) else run_rate
    if isinstance(model.routers, RNNRouters):
        _shift_to(model, images_BCHW, fmean(rates))
        return model
    x_BCHW, state = model.stem(images_BCHW), model.routers.start(images_BCHW)
    owed = 0.0  # images that blocks before this one ran too few, so that a rate is met by one image too
    for k, block in enumerate(model.blocks):
        scores_B2, state = model.routers.router(k)(x_BCHW, state)
        count = round(owed + rates[k] * len(images_BCHW))
        owed += rates[k] * len(images_BCHW) - count
        amount = _shift_for(scores_B2[:, 1] - scores_B2[:, 0], count)
        model.routers.get_submodule(f"each.{k}.out").get_parameter("bias")[1] += amount
        scores_B2[:, 1] += amount
        run_B = hard(scores_B2).bool()[:, None, None, None]
        shortcut_BCHW = block.shortcut(x_BCHW)
        x_BCHW = torch.where(run_B, block.run(x_BCHW, shortcut_BCHW), shortcut_BCHW)
    return model


def _shift_for(margin_B: torch.Tensor, count: int) -> float:
    """What to add to every margin for so many of them to be positive, none of them close to 0."""
    if count in (0, len(margin_B)):
        return _EXTREME if count else -_EXTREME
    falling_B = margin_B.sort(descending=True).values
    return -float(falling_B[count - 1] + falling_B[count]) / 2


def _shift_to(model: RoutedNetwork, images_BCHW: torch.Tensor, run_rate: float) -> None:
    """For routers that share one output layer: the one shift at which the mean rate comes nearest."""
    assert model.routers is not None
    if run_rate in (0, 1):
        model.routers.shift(_EXTREME if run_rate else -_EXTREME)
        return
    low, high, at = -8.0, 8.0, 0.0
    for _ in range(20):
        middle = (low + high) / 2
        model.routers.shift(middle - at)
        at = middle
        rate = model(images_BCHW).path_BN.mean().item()
        low, high = (middle, high) if rate < run_rate else (low, middle)
