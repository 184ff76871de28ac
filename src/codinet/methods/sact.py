"""SACT (Figurnov et al., CVPR 2017): ACT at every position of the features.

A position that halted keeps its features while others go on. A block runs for an image while a position is left.
"""

import torch
from torch import nn

from codinet.methods.act import ACTMethod
from codinet.routers import HaltingRouter, pool


class SpatialRouter(HaltingRouter):
    """A halting unit for each position: a 3×3 convolution, and a linear layer on the pooled features.

    Args:
        width: Channels of the block's input.
    """

    per_position = True

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.conv = nn.Conv2d(width, 1, 3, padding=1, bias=False)

    def halting(self, features_BCHW: torch.Tensor) -> torch.Tensor:
        """σ(W̃ * x + W pool(x) + b), B×H×W."""
        here_BHW, whole_B1 = self.conv(features_BCHW).squeeze(1), self.halt(pool(features_BCHW))
        return (here_BHW + whole_B1[:, :, None]).float().sigmoid()


class SACTMethod(ACTMethod):
    """ACT with halting scores of positions. The ponder cost of an image is the mean over its positions."""

    name = "sact"
    title = "SACT"
    routers = ("spatial",)


METHOD = SACTMethod()
