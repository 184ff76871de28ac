"""Meet a stated budget: a controller for γ, small shifts of the routers, and a calibration at the end of a stage.

The controller is proportional-integral. Its error is the gap between the hard cost of the training batches and a target
that falls from 1 to the budget over the first part of stage 1. γ may become negative, so a network that undershoots is
pulled back up. The state is in tensors, and nothing in a step reads them back to the host.

Training batches are augmented, and their blocks are mixed by relaxed, noised decisions. Routers therefore see other
features than at inference and decide differently. After every epoch the controller gets the cost of plain images in
evaluation mode, which is what a user pays, and corrects its target by the difference.

A shift adds one number to all run scores, so that plain images cost the budget. One large shift at the end would
destroy what was learnt, and γ moves the routers less and less as the learning rate falls. So in the second half of
stage 1 every epoch ends with a shift half of the way, and the rest of the network adapts to it.

The training loop and `Objective` both use `BudgetController`.
"""

from collections.abc import Callable, Iterable
from functools import cache

import torch

from codinet.checks import LARGEST_COUNT, require_kind, require_number, require_tensor, require_whole
from codinet.cost import CostTable
from codinet.model import RoutedNetwork
from codinet.relaxation import margin_limit
from codinet.thresholds import find_threshold, search_steps

CostAt = Callable[[float], float]  # from a run threshold to the mean cost share of plain images

RAMP = 0.3  # fraction of stage 1 over which the target falls to the budget
SETTLE = 0.5  # fraction of stage 1 after which every epoch ends with a shift
TOLERANCE = 0.004  # gap between cost and budget that is not corrected
PROPORTIONAL = 0.2  # γ for each unit of gap
LIMIT = 0.5  # |γ| is at most this
SMOOTHING = 0.1  # weight of the newest batch in the running cost
DRIFT = 10.0  # relative growth of γ for each unit of cost that an epoch drifted by …
SMALL = 0.01  # … where |γ| counts as at least this
TRUST = 0.5  # weight of the newest epoch in the excess cost of plain images


class BudgetController:
    """Keeps a network at its budget while it trains.

    In a step: `gamma` weights the cost loss and `observe` takes the cost of the batch. Before a step: `aim`. After an
    epoch: `settle`, or `calibrate` where the routers have reached their final state.

    Args:
        budget: Mean cost to meet, as a fraction of the static network's.
        steps: Length of stage 1. The controller reacts faster in a short one.
        device: Where the training runs.
    """

    def __init__(self, budget: float, *, steps: int, device: torch.device) -> None:
        require_number("budget", budget, 0, 1, above=True)
        require_whole("steps", steps, 1, LARGEST_COUNT)
        require_kind("device", device, torch.device, "a torch.device")
        self.budget = budget
        self.integral_gain = PROPORTIONAL / max(50, steps / 50)
        self.target = torch.ones((), device=device)
        self.cost = torch.ones((), device=device)  # running hard cost share
        self.integral = torch.zeros((), device=device)
        self.excess = torch.zeros((), device=device)  # extra cost of plain images over training batches

    def aim(self, progress: float) -> None:
        """Set the target, given the fraction of stage 1 that is done."""
        require_number("progress", progress, 0)
        fallen = min(1.0, progress / RAMP)
        self.target.fill_(1 - (1 - self.budget) * fallen).sub_(self.excess, alpha=fallen)

    def gamma(self) -> torch.Tensor:
        """Return the weight of the cost loss for the next batch."""
        return (PROPORTIONAL * (self.cost - self.target) + self.integral).clamp(-LIMIT, LIMIT)

    def observe(self, batch_cost: torch.Tensor) -> None:
        """Update γ with the hard cost share of one batch, a scalar tensor that is not read back."""
        require_tensor("batch_cost", batch_cost, ())
        self.cost.lerp_(batch_cost.to(self.cost.dtype), SMOOTHING)
        self.integral.add_(self.integral_gain * (self.cost - self.target)).clamp_(-LIMIT, LIMIT)

    def settle(self, networks: Iterable[RoutedNetwork], plain_cost: float, cost_at: CostAt, *, progress: float) -> None:
        """After an epoch of stage 1: correct the target and, in the second half, shift the routers half of the way.

        Args:
            networks: The networks to shift alike: the trained one and, if there is one, its moving average.
            plain_cost: Cost share of plain images in evaluation mode.
            cost_at: Their cost share as a function of the run threshold; an estimate is enough.
            progress: The fraction of stage 1 that is done.
        """
        require_number("plain_cost", plain_cost, 0)
        self.excess.lerp_(plain_cost - self.cost, TRUST)
        if progress >= SETTLE:
            # The epoch started at the budget, so the gap is how far it drifted.
            growth = DRIFT * self.integral.abs().clamp(min=SMALL)
            self.integral.add_(growth * (plain_cost - self.budget)).clamp_(-LIMIT, LIMIT)
            self._shift(networks, plain_cost, cost_at, fraction=0.5)

    def calibrate(self, networks: Iterable[RoutedNetwork], cost_at: CostAt) -> None:
        """Shift the routers all of the way; `cost_at` measures the cost share of plain images at a threshold."""
        cost_at = cache(cost_at)  # the check and the search both start at one half
        self._shift(networks, cost_at(0.5), cost_at, fraction=1.0)

    def _shift(self, networks: Iterable[RoutedNetwork], cost: float, cost_at: CostAt, *, fraction: float) -> None:
        shifted = set(networks)
        if abs(cost - self.budget) <= TOLERANCE or not shifted:
            return
        steps = max(map(search_steps, shifted))
        shift = -fraction * margin_limit(find_threshold(cost_at, self.budget, steps=steps))
        for network in shifted:
            assert network.routers is not None
            network.routers.shift(shift)

    def state(self) -> dict[str, torch.Tensor]:
        """All tensors that change, by name. They change in place, because a captured step knows their addresses."""
        return {"target": self.target, "cost": self.cost, "integral": self.integral, "excess": self.excess}


def estimated_cost(table: CostTable, run_probability_TN: torch.Tensor) -> CostAt:
    """The cost share as a function of the threshold, estimated from the run probabilities of one forward pass.

    The estimate ignores that a shift changes the features that later routers see.
    """
    return lambda threshold: table.share(run_probability_TN >= threshold).mean().item()
