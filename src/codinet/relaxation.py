"""From router scores to decisions: hard, Gumbel-Softmax, straight-through (Eq. 5, 6, 13).

Each function maps scores_B2 (skip, run) to decision_B, where 1 means run. Scores are logits. A training
stage picks one of these functions; they keep no state between calls.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from codinet.checks import require_kind, require_number, shown
from codinet.errors import UserError

Decide = Callable[[torch.Tensor], torch.Tensor]

SMALLEST_TAU = 1e-6  # below it scores divided by tau overflow, and decisions would be NaN


def run_probability(scores: torch.Tensor) -> torch.Tensor:
    """The noise-free relaxation softmax(U)[run], for scores of any leading shape."""
    _require_scores(scores)
    return scores.softmax(dim=-1)[..., 1]


def hard(scores_B2: torch.Tensor, *, threshold: float = 0.5) -> torch.Tensor:
    """Eq. 5 and 13: run iff softmax(U)[run] ≥ threshold. No noise, no gradient: the rule of inference.

    The values are not read. NaN is not ≥ anything, so a block with NaN scores is skipped; networks refuse such scores.
    """
    _require_scores(scores_B2)
    margin_B = scores_B2[..., 1] - scores_B2[..., 0]
    return (margin_B >= margin_limit(threshold)).to(scores_B2.dtype)


def margin_limit(threshold: float) -> float:
    """The least U[run] − U[skip] that runs a block at this threshold, for code that compares margins itself.

    It is a logit, so that threshold ½ is exactly U[run] ≥ U[skip], ties included. Threshold 0 runs every block and
    threshold 1 none.
    """
    if type(threshold) is not float or not 0 < threshold < 1:  # what is left is right
        require_threshold(threshold)
    if 0 < threshold < 1:
        return math.log(threshold / (1 - threshold))
    return math.copysign(math.inf, threshold - 0.5)


def require_threshold(threshold: Any) -> None:
    """A run probability."""
    require_number("threshold", threshold, 0, 1)


def require_tau(tau: Any) -> None:
    """A temperature of the relaxation."""
    require_number("tau", tau, SMALLEST_TAU)


def gumbel(scores_B2: torch.Tensor, *, tau: float = 1.0, generator: torch.Generator | None = None) -> torch.Tensor:
    """Eq. 6: softmax((U + g) / τ)[run] with Gumbel noise g, drawn anew for each score."""
    _require_scores(scores_B2)
    require_tau(tau)
    if generator is not None:
        _require_generator(generator, scores_B2)
    # −log of an exponential sample is a Gumbel sample, and exponential_ never returns the 0 that would break it.
    noise_B2 = -torch.empty_like(scores_B2).exponential_(generator=generator).log()
    return run_probability((scores_B2 + noise_B2) / tau)


def straight_through(
    scores_B2: torch.Tensor, *, tau: float = 1.0, generator: torch.Generator | None = None
) -> torch.Tensor:
    """The appendix's variant: hard decisions of the noised scores forward, the gradient of `gumbel` backward."""
    soft_B = gumbel(scores_B2, tau=tau, generator=generator)
    return (soft_B >= 0.5).to(soft_B.dtype) + (soft_B - soft_B.detach())


def _require_scores(scores: Any) -> None:
    if isinstance(scores, torch.Tensor) and scores.dtype.is_floating_point and scores.shape[-1:] == (2,):
        return
    raise UserError(f"Router scores must be a tensor of floats whose last size is 2 (skip, run), got {shown(scores)}.")


def _require_generator(generator: Any, scores_B2: torch.Tensor) -> None:
    require_kind("generator", generator, torch.Generator, "a torch.Generator")
    if generator.device.type != scores_B2.device.type:
        raise UserError(
            f"generator must be on the device of the scores, {scores_B2.device}, got one on {generator.device}."
        )


RELAXATIONS: dict[str, Callable[..., torch.Tensor]] = {"gumbel": gumbel, "straight-through": straight_through}
