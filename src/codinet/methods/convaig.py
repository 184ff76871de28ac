"""Conv-AIG (Veit and Belongie, ECCV 2018): narrow gates, straight-through decisions, a target rate for each block."""

from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from codinet.checks import require_tensor
from codinet.losses import expected_cost
from codinet.methods.method import ROUTING, Method, PathBatch, PathLoss, Stage, finetune_stage, main_stage, rate_for
from codinet.relaxation import straight_through
from codinet.routers import FCRouter, State, explain_failure, pool, require_width

if TYPE_CHECKING:
    from codinet.config import RunConfig

UNITS = 16  # of the hidden layer
SKIP, RUN = 0.1, 2.0  # initial biases, so that about 85 % of the blocks run
SMALL = 0.001  # standard deviation of the initial weights of the scores


class NarrowRouter(nn.Module):
    """Global average pooling, 16 hidden units with BatchNorm and ReLU, two scores.

    Args:
        width: Channels of the block's input.
    """

    reads_means: ClassVar[bool] = True

    def __init__(self, width: int) -> None:
        super().__init__()
        require_width(width)
        self.hidden = nn.Linear(width, UNITS)
        self.norm = nn.BatchNorm1d(UNITS)
        self.out = nn.Linear(UNITS, 2)
        with torch.no_grad():
            self.out.weight.normal_(0, SMALL)
            self.out.bias.copy_(torch.tensor([SKIP, RUN]))

    def forward(self, features_BCHW: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        try:
            z_BC = pool(features_BCHW)
            return self.out(F.relu(self.norm(self.hidden(z_BC)))), state
        except Exception:  # PyTorch's own error is less clear
            explain_failure(features_BCHW, self.hidden.in_features, self.hidden.weight)
            raise

    @torch.no_grad()
    def as_fc(self) -> FCRouter:
        """Return a router with the same scores in evaluation mode: the BatchNorm folded, unused units added.

        The kernels of the engines need as many hidden units as channels.
        """
        hidden, norm = self.hidden, self.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        width = hidden.in_features
        router = FCRouter(width)
        if width < UNITS:
            router.hidden, router.out = nn.Linear(width, UNITS), nn.Linear(UNITS, 2)
        router.to(hidden.weight.device, hidden.weight.dtype)
        scale_U = norm.weight / (norm.running_var + norm.eps).sqrt()
        for parameter in router.parameters():
            parameter.zero_()
        router.hidden.weight[:UNITS] = hidden.weight * scale_U[:, None]
        router.hidden.bias[:UNITS] = norm.bias + (hidden.bias - norm.running_mean) * scale_U
        router.out.weight[:, :UNITS] = self.out.weight
        router.out.bias.copy_(self.out.bias)
        return router


def target_rate(paths_BN: torch.Tensor, rate: float | torch.Tensor) -> torch.Tensor:
    """The target-rate loss: (mean of v_k over the batch − t)², averaged over the blocks.

    Args:
        paths_BN: Decisions between 0 and 1.
        rate: The target t.

    Returns:
        The loss, a scalar.
    """
    require_tensor("paths", paths_BN, ("B", "N"))
    return (paths_BN.mean(dim=0) - rate).square().mean()


class ConvAIGMethod(Method):
    """One stage with sampled hard decisions; stage 2 as for all methods."""

    name = "convaig"
    title = "Conv-AIG"
    routers = ("narrow",)
    settings = ROUTING | {"tau", "gamma", "target_rate", "rate_weight"}

    def stages(self, config: "RunConfig") -> list[Stage]:
        decide = partial(straight_through, tau=config.network.tau)
        joint = main_stage("joint", config.schedule, decide=decide, train_routers=True, path_losses=True, ramp=False)
        return [*joint, *finetune_stage(config.schedule)]

    def loss(self, classification: torch.Tensor, batch: PathBatch) -> PathLoss:
        """L_cls + w · target rate + γ · cost. A budget gives the target, and γ corrects what is left."""
        paths_BN, losses, zero = batch.output.path_BN, batch.losses, torch.zeros_like(batch.gamma)
        cost = expected_cost(paths_BN, batch.weights_N)
        loss = classification + batch.gamma * cost
        rate: float | torch.Tensor | None = losses.target_rate
        if losses.budget is not None:
            rate = rate_for(losses.budget, batch.run_share_N, batch.base_share)
        if rate is not None:
            loss = loss + losses.rate_weight * target_rate(batch.gather_rows(paths_BN), rate)
        return PathLoss(loss, zero, zero, cost, zero)


METHOD = ConvAIGMethod()
