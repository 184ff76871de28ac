"""The routers of all methods, by the name that a network's config records."""

from collections.abc import Callable, Sequence
from functools import partial

from codinet.methods.blockdrop import PolicyRouters
from codinet.methods.convaig import NarrowRouter
from codinet.methods.fixed import BiasRouters
from codinet.methods.random import HashRouters
from codinet.methods.sact import SpatialRouter
from codinet.routers import (
    ROUTERS,
    HaltingRouter,
    HaltingRouters,
    OnceRouters,
    Routers,
    SeparateRouters,
    require_widths,
)

_ONCE: dict[str, Callable[[int, int], OnceRouters]] = {  # from the number of blocks and the channels of an image
    "policy": PolicyRouters,
    "hash": HashRouters,
    "bias": BiasRouters,
}
_EACH: dict[str, Callable[[Sequence[int]], Routers]] = {**ROUTERS, "narrow": partial(SeparateRouters, NarrowRouter)}
_GROUPED: dict[str, Callable[[Sequence[int], Sequence[int]], Routers]] = {  # from the widths and the groups
    "halting": partial(HaltingRouters, HaltingRouter),
    "spatial": partial(HaltingRouters, SpatialRouter),
}
ROUTER_KINDS = (*_EACH, *_ONCE, *_GROUPED)


def build_routers(
    kind: str, widths: Sequence[int], image_channels: int, groups: Sequence[int] | None = None
) -> Routers:
    """Build the routers of a network.

    Args:
        kind: One of `ROUTER_KINDS`.
        widths: Input channels of each block.
        image_channels: Channels of an image.
        groups: Blocks of each group; by default all are in one.
    """
    if kind in _EACH:
        return _EACH[kind](widths)
    require_widths(widths)
    if kind in _GROUPED:
        return _GROUPED[kind](widths, [len(widths)] if groups is None else groups)
    return _ONCE[kind](len(widths), image_channels)
