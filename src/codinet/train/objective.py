"""What a routed network is trained for, in a loop of one's own: Eq. 12, with a budget in the place of γ.

For networks that `codinet train` does not build, such as those of `make_dynamic`: images, augmentation, optimiser and
devices stay the caller's.
"""

from functools import cache, partial

import torch

from codinet.config import ExtraConfig, LossConfig
from codinet.cost import block_costs
from codinet.errors import UserError
from codinet.model import RoutedNetwork
from codinet.records import RoutedOutput
from codinet.relaxation import Decide, gumbel
from codinet.thresholds import find_threshold, mean_cost, require_budget, require_reach
from codinet.train.budget import SETTLE, BudgetController
from codinet.train.judging import shift_to
from codinet.train.stages import grip_at
from codinet.train.step import COST_SHARE, loss_of, share_of_blocks


class Objective:
    """The loss of every step, and what keeps the network at its budget.

    `decide` is for the forward passes in between: relaxed, noised decisions.
    """

    decide: Decide

    def __init__(
        self,
        model: RoutedNetwork,
        image_shape: tuple[int, int, int],
        *,
        budget: float,
        steps: int,
        losses: LossConfig | None = None,
        label_smoothing: float = 0.0,
        tau: float = 1.0,
    ) -> None:
        """`steps` is how many there will be; `losses` holds the weights and margins."""
        require_budget(model, budget)
        if losses and (losses.budget, losses.gamma) != (None, None):
            raise UserError(
                "An objective has one budget, which it is given itself; leave budget and gamma out of losses."
            )
        if steps < 1:
            raise UserError(f"An objective for {steps} steps leads nowhere; say how many there will be.")
        table, device = block_costs(model, image_shape), next(model.parameters()).device
        require_reach(table, budget, "the network")
        self.model, self.table, self.steps, self.taken = model, table, steps, 0
        self.losses, self.extra = losses or LossConfig(), ExtraConfig(label_smoothing=label_smoothing)
        self.decide = partial(gumbel, tau=tau)
        self.controller = BudgetController(budget, steps=steps, device=device)
        self.weights_N = table.loss_weights().to(device)
        self.run_share_N, self.base_share = share_of_blocks(table, device)

    @property
    def progress(self) -> float:
        """The share of the steps that is done."""
        return min(1.0, self.taken / self.steps)

    def __call__(self, output: RoutedOutput, labels_B: torch.Tensor, *, views: int) -> torch.Tensor:
        """The loss of a step, in which all views of an image follow one another; it counts as taken."""
        if views < 1 or len(labels_B) % views:
            raise UserError(f"{len(labels_B)} inputs are not {views} views of every image; bring as many of each.")
        self.controller.aim(self.progress)
        loss, figures = loss_of(
            output,
            labels_B,
            views=views,
            losses=self.losses,
            extra=self.extra,
            gamma=self.controller.gamma(),
            grip=torch.full_like(self.controller.target, grip_at(self.progress)),
            weights_N=self.weights_N,
            run_share_N=self.run_share_N,
            rows=lambda paths_LMN: paths_LMN,
            taught_BK=None,
        )
        self.controller.observe(figures[COST_SHARE] + self.base_share)
        self.taken += 1
        return loss

    def settle(self, images_BCHW: torch.Tensor, *, batch: int = 250) -> float:
        """After every epoch, and at the end: hold the cost of plain, normalised images against the budget.

        What they cost more than those of training is steered against, from half of the steps on the routers are shifted
        half the way to the budget, and after the last step all of it. Of several processes, each is given the same
        images. Returns what they cost now, as a share of the static network.
        """
        cost_at = partial(mean_cost, self.model, self.table, images_BCHW, batch=batch)
        look, settling = cache(cost_at), self.progress >= SETTLE  # the search begins where this look is taken
        self.controller.compare(look(0.5), settling=settling)
        if not settling:
            return look(0.5)
        part = 1.0 if self.progress == 1 else 0.5
        shift_to({self.model}, find_threshold(look, self.controller.budget), part=part)
        return cost_at(0.5)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """What a checkpoint needs beside network and optimiser, as copies."""
        taken = torch.tensor(self.taken)
        return {"taken": taken, **{name: value.clone() for name, value in self.controller.state().items()}}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.taken = int(state["taken"])
        for name, value in self.controller.state().items():
            value.copy_(state[name])
