"""From router scores to decisions: hard, Gumbel-Softmax, straight-through (Eq. 5, 6, 13).

Each function maps scores_B2 (skip, run) to decision_B, where 1 means run. Scores are logits. A training
stage picks one of these functions; nothing here is remembered between calls.
"""

import math
from collections.abc import Callable

import torch

Decide = Callable[[torch.Tensor], torch.Tensor]


def run_probability(scores: torch.Tensor) -> torch.Tensor:
    """The noise-free relaxation softmax(U)[run], for scores of any leading shape."""
    return scores.softmax(dim=-1)[..., 1]


def hard(scores_B2: torch.Tensor, *, threshold: float = 0.5) -> torch.Tensor:
    """Eq. 5 and 13: run iff softmax(U)[run] ≥ threshold. No noise, no gradient: the rule of inference."""
    margin_B = scores_B2[..., 1] - scores_B2[..., 0]
    return (margin_B >= margin_limit(threshold)).to(scores_B2.dtype)


def margin_limit(threshold: float) -> float:
    """The least U[run] − U[skip] that runs a block: `hard`, for whoever decides by other means.

    A logit, so that threshold ½ is exactly U[run] ≥ U[skip], ties included.
    """
    if 0 < threshold < 1:
        return math.log(threshold / (1 - threshold))
    return math.copysign(math.inf, threshold - 0.5)


def gumbel(scores_B2: torch.Tensor, *, tau: float = 1.0, generator: torch.Generator | None = None) -> torch.Tensor:
    """Eq. 6: softmax((U + g) / τ)[run] with Gumbel noise g, drawn anew for each score."""
    # −log of an exponential sample is a Gumbel sample, and exponential_ never returns the 0 that would break it.
    noise_B2 = -torch.empty_like(scores_B2).exponential_(generator=generator).log()
    return run_probability((scores_B2 + noise_B2) / tau)


def straight_through(
    scores_B2: torch.Tensor, *, tau: float = 1.0, generator: torch.Generator | None = None
) -> torch.Tensor:
    """The appendix's variant: hard decisions of the noised scores forward, the gradient of `gumbel` backward."""
    soft_B = gumbel(scores_B2, tau=tau, generator=generator)
    return (soft_B >= 0.5).to(soft_B.dtype) + (soft_B - soft_B.detach())


RELAXATIONS: dict[str, Callable[..., torch.Tensor]] = {"gumbel": gumbel, "straight-through": straight_through}
