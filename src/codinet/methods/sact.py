"""SACT (Figurnov et al., CVPR 2017): ACT at every position of the features.

A position that halted keeps its features while others go on. A block runs for an image while a position is left.
"""

import torch
from torch import nn

from codinet.methods.act import ACTMethod
from codinet.methods.method import Stage, StageStart
from codinet.routers import BEND, GAIN, HaltingRouter, pool


class SpatialRouter(HaltingRouter):
    """A halting unit for each position: a 3×3 convolution, and a linear layer on the pooled features.

    The scores of a gentle unit reach 0 and 1 as 1 / |logit| instead of exponentially, and training changes the part of
    the convolution less. Otherwise large steps can make all scores exactly 0 or 1. Then they have no gradient, images
    have equal margins, and a shift changes the cost by whole blocks of all images or not at all.

    Args:
        width: Channels of the block's input.
    """

    per_position = True
    reads_means = False
    search_steps = 28  # bent scores may differ by 1e-6 only
    gentle: torch.Tensor  # 1 or 0

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.conv = nn.Conv2d(width, 1, 3, padding=1, bias=False)
        self.register_buffer("gentle", torch.zeros(()))

    def halting(self, features_BCHW: torch.Tensor) -> torch.Tensor:
        """σ(W̃ * x + W pool(x) + b), B×H×W."""
        here_BHW, whole_B1 = self.conv(features_BCHW).squeeze(1), self.halt(pool(features_BCHW))
        # Without `gentle`, nothing changes the logits.
        logits_BHW = (here_BHW * (1 - self.gentle * (1 - GAIN)) + whole_B1[:, :, None]).float()
        excess_BHW = (logits_BHW.abs() - BEND).relu()
        logits_BHW = logits_BHW + self.gentle * logits_BHW.sign() * (excess_BHW.log1p() - excess_BHW)
        return logits_BHW.sigmoid()


class SACTMethod(ACTMethod):
    """ACT with halting scores of positions. The ponder cost of an image is the mean over its positions."""

    name = "sact"
    title = "SACT"
    routers = ("spatial",)

    def begin_stage(self, stage: Stage, start: StageStart) -> None:
        """Halting units are gentle iff a budget is to be met."""
        for router in start.routers.modules():
            if isinstance(router, SpatialRouter):
                router.gentle.fill_(start.budget is not None)


METHOD = SACTMethod()
