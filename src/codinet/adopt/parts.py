"""Parts that both kinds of adopted network look for or add: first and last layer, groups of blocks, routers."""

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import nn

from codinet.backbones import Block
from codinet.checks import shown
from codinet.errors import UserError
from codinet.methods.router_kinds import build_routers
from codinet.model import RoutedNetwork, in_evaluation
from codinet.routers import Routers


def first_convolution(module: nn.Module) -> nn.Conv2d:
    """The first convolution of a module; `UserError` if it has none."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            return part
    raise UserError(f"The network must have a convolution, got a {type(module).__name__} without one.")


def last_classifier(module: nn.Module, part: str) -> str:
    """The name of the last layer in a part of a module that can be a classifier: a linear layer or a 1×1 convolution.

    Args:
        module: The module.
        part: The name of the part.

    Returns:
        The name in the module; "" if there is none.
    """
    names = [name for name, layer in module.get_submodule(part).named_modules() if _fits(layer)]
    return f"{part}.{names[-1]}".rstrip(".") if names else ""


def _fits(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1))


def count_groups(names: Sequence[str]) -> tuple[int, ...]:
    """The number of blocks in a row that have the same parent, for each such row."""
    parents = (name.rpartition(".")[0] for name in names)
    return tuple(sum(1 for _ in group) for _, group in groupby(parents))


def make_routers(
    router: str | None, blocks: Sequence[Block], groups: Sequence[int], module: nn.Module
) -> Routers | None:
    """Routers for the blocks, on the device and in the mode and dtype of the module; None without a kind of router."""
    if router is None:
        return None
    first = first_convolution(module)
    routers = build_routers(router, [block.in_channels for block in blocks], first.in_channels, groups)
    return routers.to(first.weight.device, first.weight.dtype).train(module.training)


@torch.no_grad()
def require_same_logits(network: RoutedNetwork, module: nn.Module, shape: tuple[int, int, int]) -> None:
    """Require the module's logits when every block runs. They differ e.g. if the forward draws random numbers."""
    weight = first_convolution(network).weight
    if weight.is_meta or type(module).forward is nn.Module.forward:  # a container of the parts
        return
    generator = torch.Generator().manual_seed(0)  # leaves the global RNG state unchanged
    images_1CHW = torch.randn(1, *shape, generator=generator).to(weight.device, weight.dtype)
    with in_evaluation(module), in_evaluation(network):
        expected_1K = module(images_1CHW)
        if not isinstance(expected_1K, torch.Tensor):
            raise UserError(f"The network must return logits as a tensor, got {shown(expected_1K)}.")
        expected_1K = expected_1K.float()
        logits_1K = network(images_1CHW, force=torch.ones(len(network.blocks))).logits_BK
    tolerance = 0.01 * expected_1K.abs().max().item()
    if not torch.allclose(logits_1K, expected_1K, rtol=0.01, atol=tolerance, equal_nan=True):
        raise UserError(
            f"The traced parts of this {type(module).__name__} give other logits than its forward; move all operations "
            "of its forward into modules, or name its residual blocks with blocks."
        )
