"""The axes of a network's features. Routing works on maps, B×C×H×W; tokens and channels-last features become views."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn


class Layout(NamedTuple):
    """From a network's own features to maps, and back; neither copies features that are channels_last in memory."""

    maps: Callable[[torch.Tensor], torch.Tensor]
    own: Callable[[torch.Tensor], torch.Tensor]


def _as_it_is(x: torch.Tensor) -> torch.Tensor:
    return x


def _of_tokens(x_BTC: torch.Tensor) -> torch.Tensor:
    return x_BTC.mT.unsqueeze(3)


def _to_tokens(x_BCT1: torch.Tensor) -> torch.Tensor:
    return x_BCT1.squeeze(3).mT.contiguous()


def _of_channels_last(x_BHWC: torch.Tensor) -> torch.Tensor:
    return x_BHWC.permute(0, 3, 1, 2)


def _to_channels_last(x_BCHW: torch.Tensor) -> torch.Tensor:
    return x_BCHW.permute(0, 2, 3, 1).contiguous()


MAPS = Layout(_as_it_is, _as_it_is)  # B×C×H×W
TOKENS = Layout(_of_tokens, _to_tokens)  # B×T×C; all tokens are pooled
CHANNELS_LAST = Layout(_of_channels_last, _to_channels_last)  # B×H×W×C

FIRST = (nn.Conv2d, nn.BatchNorm2d, nn.InstanceNorm2d, nn.GroupNorm)  # layers with the channels at axis 1 of four
LAST = (nn.Linear, nn.LayerNorm)  # layers with the channels at the last axis, except for some subclasses


def has_channels(layer: nn.Module) -> bool:
    """Whether a layer says how many channels its input has. A LayerNorm over several axes does not."""
    if isinstance(layer, nn.LayerNorm):
        return len(layer.normalized_shape) == 1
    return isinstance(layer, FIRST + LAST)


def _channels(layer: nn.Module) -> int:
    if isinstance(layer, nn.LayerNorm):
        return layer.normalized_shape[0]
    names = "in_channels", "num_features", "num_channels", "in_features"
    return next(getattr(layer, name) for name in names if hasattr(layer, name))


def layout_of(shape: tuple[int, ...], layer: nn.Module | None, *, square: bool) -> Layout | None:
    """The layout of features of this shape, which go into a block whose first layer with channels is `layer`.

    The layer says how many channels there are, so the axis of that size holds them. Where there is no such layer, or
    no such axis, features of square images show it: of the other two axes both are the same. None where the layout
    cannot be told.
    """
    if len(shape) == 3:
        return TOKENS
    if len(shape) != 4:
        return None
    first, middle, last = shape[1:]
    if layer is not None and _channels(layer) in (first, last):
        if first != last:
            return MAPS if _channels(layer) == first else CHANNELS_LAST
        if isinstance(layer, FIRST):
            return MAPS
        return CHANNELS_LAST if type(layer) in LAST else None
    if square and (first == middle) != (middle == last):
        return CHANNELS_LAST if first == middle else MAPS
    return None
