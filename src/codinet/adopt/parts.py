"""Parts that both kinds of adopted network look for or add: first and last layer, groups of blocks, routers."""

from collections.abc import Sequence
from itertools import groupby

from torch import nn

from codinet.backbones import Block
from codinet.errors import UserError
from codinet.methods.router_kinds import build_routers
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
