"""Meeting a stated budget: a controller for γ in training, small shifts of the routers, a calibration at the end.

The controller is proportional-integral on the gap between the hard cost of the training batches and a target
that falls from 1 to the budget over the first part of stage 1. γ may go below zero, so a network that
undershoots is pulled back up. The state is in tensors, and nothing here reads them back to the host.

Training batches are augmented, and their blocks are mixed by relaxed, noised decisions. Routers therefore see other
features than at inference and decide differently. After every epoch the controller is given the cost of plain images
in evaluation mode, and aims lower by the difference.

The calibration shifts all run scores by one number, so that the hard cost of plain (not augmented) images in
evaluation mode, which is what a user pays, is the budget. One large shift at the end would destroy what was learnt,
and γ moves routers less and less as the learning rate falls. So in the second half of stage 1 every epoch ends with a
small shift that goes half of the way, and the rest of the network adapts to it.
"""

import torch

from codinet.checks import LARGEST_COUNT, require_kind, require_number, require_tensor, require_whole

RAMP = 0.3  # share of stage 1 over which the target falls to the budget
SETTLE = 0.5  # share of stage 1 after which every epoch ends with a nudge
PROPORTIONAL = 0.2  # γ for each unit of gap
LIMIT = 0.5  # γ stays within ± this
SMOOTHING = 0.1  # weight of the newest batch in the running cost
DRIFT = 10.0  # growth of γ for each unit of cost that an epoch drifted by, as a share of γ …
SMALL = 0.01  # … or of this, where γ is smaller
TRUST = 0.5  # weight of the newest epoch in the excess cost of plain images


class BudgetController:
    """γ as a function of the gap between cost and target."""

    def __init__(self, budget: float, *, steps: int, device: torch.device) -> None:
        """`steps` is the length of stage 1: a short one has to react faster."""
        require_number("budget", budget, 0, 1, above=True)
        require_whole("steps", steps, 1, LARGEST_COUNT)
        require_kind("device", device, torch.device, "a torch.device")
        self.budget = budget
        self.integral_gain = PROPORTIONAL / max(50, steps / 50)
        self.target = torch.ones((), device=device)
        self.cost = torch.ones((), device=device)  # running hard cost, as a share of the static network's
        self.integral = torch.zeros((), device=device)
        self.excess = torch.zeros((), device=device)  # extra cost of plain images over training batches

    def aim(self, progress: float) -> None:
        """Set the target for this share of stage 1 done."""
        require_number("progress", progress, 0)
        fallen = min(1.0, progress / RAMP)
        self.target.fill_(1 - (1 - self.budget) * fallen).sub_(self.excess, alpha=fallen)

    def gamma(self) -> torch.Tensor:
        """The weight of the cost loss for the next batch."""
        return (PROPORTIONAL * (self.cost - self.target) + self.integral).clamp(-LIMIT, LIMIT)

    def observe(self, batch_cost: torch.Tensor) -> None:
        """Take in the hard cost of one batch, a share of the static network's. The value is not read."""
        require_tensor("batch_cost", batch_cost, ())
        self.cost.lerp_(batch_cost.to(self.cost.dtype), SMOOTHING)
        self.integral.add_(self.integral_gain * (self.cost - self.target)).clamp_(-LIMIT, LIMIT)

    def compare(self, plain_cost: float, *, settling: bool) -> None:
        """Take in the hard cost of plain images in evaluation mode, after an epoch."""
        require_number("plain_cost", plain_cost, 0)
        self.excess.lerp_(plain_cost - self.cost, TRUST)
        if settling:  # the epoch started at the budget, so this is how far it drifted
            reach = self.integral.abs().clamp(min=SMALL)
            self.integral.add_(DRIFT * reach * (plain_cost - self.budget)).clamp_(-LIMIT, LIMIT)

    def state(self) -> dict[str, torch.Tensor]:
        """All tensors that change, by name. They change in place: a captured step knows them by their address."""
        return {"target": self.target, "cost": self.cost, "integral": self.integral, "excess": self.excess}
