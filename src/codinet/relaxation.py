"""Turns router scores into decisions: hard, Gumbel-Softmax, straight-through (Eq. 5, 6, 13).

Each function maps scores_B2 (logits of skip and run) to decision_B, where 1 means run. A training stage picks one of
these functions. They keep no state between calls.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from codinet.checks import require_kind, require_number, shown
from codinet.errors import UserError

Decide = Callable[[torch.Tensor], torch.Tensor]

SMALLEST_TAU = 1e-6  # below this, scores / tau overflow and decisions become NaN


def run_probability(scores: torch.Tensor) -> torch.Tensor:
    """The noise-free relaxation softmax(U)[run].

    Args:
        scores: Router scores of any leading shape; the last dimension is (skip, run).

    Returns:
        Probabilities of the leading shape.
    """
    _require_scores(scores)
    return scores.softmax(dim=-1)[..., 1]


def hard(scores_B2: torch.Tensor, *, threshold: float = 0.5) -> torch.Tensor:
    """Eq. 5 and 13: run iff softmax(U)[run] ≥ threshold. No noise and no gradient. Inference uses this rule.

    Args:
        scores_B2: Router scores (skip, run). A block with NaN scores is skipped; networks reject such scores.
        threshold: The smallest run probability that runs a block.

    Returns:
        decision_B: 1 for run, 0 for skip, in the dtype of the scores.
    """
    _require_scores(scores_B2)
    margin_B = scores_B2[..., 1] - scores_B2[..., 0]
    return (margin_B >= margin_limit(threshold)).to(scores_B2.dtype)


def margin_limit(threshold: float) -> float:
    """The smallest margin U[run] − U[skip] that runs a block, for code that compares margins itself.

    Args:
        threshold: The smallest run probability that runs a block. 0 runs every block and 1 none.

    Returns:
        The logit of the threshold. For ½ it is exactly 0, so ties run.
    """
    if type(threshold) is not float or not 0 < threshold < 1:  # the common case needs no check
        require_threshold(threshold)
    if 0 < threshold < 1:
        return math.log(threshold / (1 - threshold))
    return math.copysign(math.inf, threshold - 0.5)


def require_threshold(threshold: Any) -> None:
    """Requires a run probability between 0 and 1."""
    require_number("threshold", threshold, 0, 1)


def require_tau(tau: Any) -> None:
    """Requires a temperature of at least SMALLEST_TAU."""
    require_number("tau", tau, SMALLEST_TAU)


def gumbel(scores_B2: torch.Tensor, *, tau: float = 1.0, generator: torch.Generator | None = None) -> torch.Tensor:
    """Eq. 6: softmax((U + g) / τ)[run] with Gumbel noise g, sampled independently for each score.

    Args:
        scores_B2: Router scores (skip, run).
        tau: The temperature τ.
        generator: Source of the noise; None uses PyTorch's global one.

    Returns:
        decision_B between 0 and 1, differentiable in the scores.
    """
    _require_scores(scores_B2)
    require_tau(tau)
    if generator is not None:
        _require_generator(generator, scores_B2)
    # −log of an exponential sample is a Gumbel sample. exponential_ never returns 0, so the log is finite.
    noise_B2 = -torch.empty_like(scores_B2).exponential_(generator=generator).log()
    return run_probability((scores_B2 + noise_B2) / tau)


def straight_through(
    scores_B2: torch.Tensor, *, tau: float = 1.0, generator: torch.Generator | None = None
) -> torch.Tensor:
    """The appendix's variant: hard decisions of the noisy scores forward, the gradient of `gumbel` backward.

    Args:
        scores_B2: Router scores (skip, run).
        tau: The temperature τ.
        generator: Source of the noise; None uses PyTorch's global one.

    Returns:
        decision_B of 0 and 1, differentiable in the scores.
    """
    soft_B = gumbel(scores_B2, tau=tau, generator=generator)
    return (soft_B >= 0.5).to(soft_B.dtype) + (soft_B - soft_B.detach())


def _require_scores(scores: Any) -> None:
    if isinstance(scores, torch.Tensor) and scores.dtype.is_floating_point and scores.shape[-1:] == (2,):
        return
    raise UserError(f"Router scores must be a float tensor whose last dimension is 2 (skip, run), got {shown(scores)}.")


def _require_generator(generator: Any, scores_B2: torch.Tensor) -> None:
    require_kind("generator", generator, torch.Generator, "a torch.Generator")
    if generator.device.type != scores_B2.device.type:
        raise UserError(
            f"generator must be on the device of the scores, {scores_B2.device}, got one on {generator.device}."
        )


RELAXATIONS: dict[str, Callable[..., torch.Tensor]] = {"gumbel": gumbel, "straight-through": straight_through}
