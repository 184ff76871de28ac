"""The routers of all methods, by the name that a network's config records."""

from collections.abc import Callable, Sequence
from functools import partial

from codinet.methods.blockdrop import PolicyRouters
from codinet.methods.convaig import NarrowRouter
from codinet.methods.fixed import BiasRouters
from codinet.methods.random import HashRouters
from codinet.routers import ROUTERS, OnceRouters, Routers, SeparateRouters, require_widths

_ONCE: dict[str, Callable[[int, int], OnceRouters]] = {  # from the number of blocks and the channels of an image
    "policy": PolicyRouters,
    "hash": HashRouters,
    "bias": BiasRouters,
}
_EACH: dict[str, Callable[[Sequence[int]], Routers]] = {**ROUTERS, "narrow": partial(SeparateRouters, NarrowRouter)}
ROUTER_KINDS = (*_EACH, *_ONCE)


def build_routers(kind: str, widths: Sequence[int], image_channels: int) -> Routers:
    """Build the routers of a network.

    Args:
        kind: One of `ROUTER_KINDS`.
        widths: Input channels of each block.
        image_channels: Channels of an image.
    """
    if kind in _EACH:
        return _EACH[kind](widths)
    require_widths(widths)
    return _ONCE[kind](len(widths), image_channels)
