"""Meeting a stated budget: a controller for γ while routers train, nudges while they settle, a calibration at the end.

The controller is proportional-integral on the gap between the hard cost of the training batches and a target
that falls from 1 to the budget over the first part of stage 1; γ may go below zero, so a network that
undershoots is pulled back up. It lives in tensors and never asks the device for a number.

Training batches are augmented, and their blocks are mixed by relaxed, noised decisions, so routers see other features
than they will in use and decide otherwise. What plain images cost more in evaluation mode is told to the controller
after every epoch, and it aims that much lower.

The calibration shifts all run scores by one number, so that the hard cost of plain (not augmented) images in
evaluation mode, which is what a user pays, is the budget. One large shift at the end would ruin what was learnt, and
as the learning rate falls γ moves routers less and less. So in the second half of stage 1 every epoch ends with a small
shift that goes half the way, and the rest of the network learns to live with it.
"""

import torch

RAMP = 0.3  # share of stage 1 over which the target falls to the budget
SETTLE = 0.5  # share of stage 1 after which every epoch ends with a nudge
PROPORTIONAL = 0.2  # γ for each unit of gap
LIMIT = 0.5  # γ stays within ± this
SMOOTHING = 0.1  # weight of the newest batch in the running cost
DRIFT = 10.0  # by which γ grows for each unit of cost that an epoch drifted by, as a share of γ …
SMALL = 0.01  # … or of this, where γ is smaller
TRUST = 0.5  # weight of the newest epoch in what plain images cost more


class BudgetController:
    """γ as a function of the gap between cost and target."""

    def __init__(self, budget: float, *, steps: int, device: torch.device) -> None:
        """`steps` is the length of stage 1: a short one has to react faster."""
        self.budget = budget
        self.integral_gain = PROPORTIONAL / max(50, steps / 50)
        self.target = torch.ones((), device=device)
        self.cost = torch.ones((), device=device)  # running hard cost, as a share of the static network's
        self.integral = torch.zeros((), device=device)
        self.excess = torch.zeros((), device=device)  # what plain images cost more than training batches

    def aim(self, progress: float) -> None:
        """Set the target for this share of stage 1 done."""
        fallen = min(1.0, progress / RAMP)
        self.target.fill_(1 - (1 - self.budget) * fallen).sub_(self.excess, alpha=fallen)

    def gamma(self) -> torch.Tensor:
        """The weight of the cost loss for the next batch."""
        return (PROPORTIONAL * (self.cost - self.target) + self.integral).clamp(-LIMIT, LIMIT)

    def observe(self, batch_cost: torch.Tensor) -> None:
        """Take in the hard cost of one batch."""
        self.cost.lerp_(batch_cost.to(self.cost.dtype), SMOOTHING)
        self.integral.add_(self.integral_gain * (self.cost - self.target)).clamp_(-LIMIT, LIMIT)

    def compare(self, plain_cost: float, *, settling: bool) -> None:
        """Take in the hard cost of plain images in evaluation mode, after an epoch."""
        self.excess.lerp_(plain_cost - self.cost, TRUST)
        if settling:  # the epoch began at the budget, so this is how far γ let it drift
            reach = self.integral.abs().clamp(min=SMALL)
            self.integral.add_(DRIFT * reach * (plain_cost - self.budget)).clamp_(-LIMIT, LIMIT)

    def state(self) -> dict[str, torch.Tensor]:
        """All that changes, by name; in place, for a captured step knows the tensors by their address."""
        return {"target": self.target, "cost": self.cost, "integral": self.integral, "excess": self.excess}
