"""ACT (Figurnov et al., CVPR 2017): the blocks of a group run until the halting scores of an image add up to 1.

Its halting units are the router `halting`. In stage 1 a block is mixed in with the halting mass that is left, so that
the output of a group is the mean of its blocks' outputs, weighted by the halting distribution.
"""

from typing import TYPE_CHECKING

import torch

from codinet.losses import expected_cost
from codinet.methods.method import ROUTING, Method, PathBatch, PathLoss, Stage, finetune_stage, main_stage
from codinet.routers import EPSILON, SCALE

if TYPE_CHECKING:
    from codinet.config import RunConfig


def mass_left(scores: torch.Tensor) -> torch.Tensor:
    """The halting mass that is left before a block, from its scores: w_k = 1 − Σ h of the blocks before it.

    Args:
        scores: Scores of `HaltingRouters` of any leading shape; the last dimension is (skip, run).

    Returns:
        Masses of the leading shape, between 0 and 1. A shift of the scores adds to them.
    """
    return ((scores[..., 1] - scores[..., 0]) / SCALE + EPSILON).clamp(0, 1)


def ponder_cost(scores_BN2: torch.Tensor, costs_N: torch.Tensor) -> torch.Tensor:
    """ρ = Σ over groups of N + R, averaged over the batch: the blocks that run, and the mass left before the last one.

    Args:
        scores_BN2: Scores of `HaltingRouters`; their skip scores are minus the ponder cost of each block.
        costs_N: c_k, the weight of each block; 1 in the paper.

    Returns:
        The cost, a scalar.
    """
    return expected_cost(-scores_BN2[..., 0], costs_N)


class ACTMethod(Method):
    """One stage with soft decisions; stage 2 as for all methods."""

    name = "act"
    title = "ACT"
    routers = ("halting",)
    settings = ROUTING | {"gamma"}

    def stages(self, config: "RunConfig") -> list[Stage]:
        joint = main_stage("joint", config.schedule, decide=mass_left, train_routers=True, path_losses=True)
        return [*joint, *finetune_stage(config.schedule)]

    def loss(self, classification: torch.Tensor, batch: PathBatch) -> PathLoss:
        """L_cls + γ · ponder cost."""
        zero, cost = torch.zeros_like(batch.gamma), ponder_cost(batch.output.scores_BN2, batch.weights_N)
        return PathLoss(classification + batch.gamma * cost, zero, zero, cost, zero)


METHOD = ACTMethod()
