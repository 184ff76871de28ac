"""SkipNet (Wang et al., ECCV 2018): gates learn with soft decisions first, then by hybrid reinforcement learning.

Its recurrent gate is the router `rnn`, and its feed-forward gate (FFGate-II) the router `cnn`.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from codinet.checks import require_tensor
from codinet.losses import expected_cost
from codinet.methods.method import ROUTING, Method, PathBatch, PathLoss, Stage, finetune_stage, main_stage
from codinet.relaxation import run_probability

if TYPE_CHECKING:
    from codinet.config import RunConfig

WEIGHT = 0.01  # of the task in the reward, by default


def sample(scores_B2: torch.Tensor) -> torch.Tensor:
    """Sample decisions with the run probabilities; no gradient."""
    return torch.bernoulli(run_probability(scores_B2.detach()))


def policy_loss(
    scores_BN2: torch.Tensor,
    path_BN: torch.Tensor,
    task_B: torch.Tensor,
    costs_N: torch.Tensor,
    *,
    weight: float,
    gamma: torch.Tensor,
) -> torch.Tensor:
    """A function whose gradient is the policy gradient: Σ_k log π(v_k) · (w·L_task + γ·Σ_{j ≥ k} c_j v_j), averaged.

    A gate answers for the task and for the cost from its own block on.

    Args:
        scores_BN2: Router scores.
        path_BN: The sampled decisions v.
        task_B: L_task, the classification loss of each image.
        costs_N: c_k, see `CostTable.loss_weights`.
        weight: w.
        gamma: γ.

    Returns:
        A scalar. Only the scores get a gradient.
    """
    require_tensor("scores", scores_BN2, ("B", "N", 2))
    margin_BN = scores_BN2[..., 1] - scores_BN2[..., 0]
    likelihood_BN = F.logsigmoid(torch.where(path_BN > 0.5, margin_BN, -margin_BN))
    ahead_BN = (path_BN * costs_N).flip(1).cumsum(dim=1).flip(1)
    loss_BN = weight * task_B[:, None] + gamma * ahead_BN
    return (likelihood_BN * loss_BN.detach()).sum(dim=1).mean()


class SkipNetMethod(Method):
    """Half of stage 1 is supervised, half is hybrid: the task by gradients and by reward, the cost by reward."""

    name = "skipnet"
    title = "SkipNet"
    routers = ("rnn", "cnn")
    settings = ROUTING | {"gamma", "policy_weight"}

    def stages(self, config: "RunConfig") -> list[Stage]:
        schedule = config.schedule
        first = schedule.epochs // 2
        soft: dict[str, Any] = {"decide": run_probability, "path_losses": False, "meets_budget": False}
        sampled: dict[str, Any] = {"decide": sample, "path_losses": True, "lr": schedule.finetune_lr}
        return [
            *main_stage("supervised", schedule, first, train_routers=True, **soft),
            *main_stage("hybrid", schedule, schedule.epochs - first, train_routers=True, **sampled),
            *finetune_stage(schedule),
        ]

    def loss(self, classification: torch.Tensor, batch: PathBatch) -> PathLoss:
        """L_cls and the policy loss."""
        output, zero = batch.output, torch.zeros_like(batch.gamma)
        weight = WEIGHT if batch.losses.policy_weight is None else batch.losses.policy_weight
        task_B = F.cross_entropy(output.logits_BK, batch.labels_B, reduction="none")
        policy = policy_loss(
            output.scores_BN2, output.path_BN, task_B, batch.weights_N, weight=weight, gamma=batch.gamma
        )
        return PathLoss(classification + policy, zero, zero, expected_cost(output.path_BN, batch.weights_N), zero)


METHOD = SkipNetMethod()
