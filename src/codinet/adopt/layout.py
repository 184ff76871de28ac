"""How a network's features lie. Routing knows maps, B×C×H×W; tokens and channels-last features it sees by views."""

from collections.abc import Callable
from typing import NamedTuple

import torch


class Layout(NamedTuple):
    """From a network's own features to maps, and back; neither moves anything in memory that is channels_last."""

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
TOKENS = Layout(_of_tokens, _to_tokens)  # B×T×C, of which all tokens are pooled
CHANNELS_LAST = Layout(_of_channels_last, _to_channels_last)  # B×H×W×C


def layout_of(shape: tuple[int, ...]) -> Layout | None:
    """Of the features of square images, by their shape; None where they are nothing that routing knows."""
    if len(shape) == 3:
        return TOKENS
    if len(shape) != 4:
        return None
    _, one, two, three = shape
    return CHANNELS_LAST if one == two != three else MAPS
