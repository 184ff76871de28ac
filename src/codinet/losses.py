"""The paper's losses on routing paths, as pure functions (Eq. 8, 9, 11, 12).

Paths are vectors of decisions between 0 and 1; the caller chooses the relaxation (noise-free or noisy). Gradients are
finite where paths coincide. Checks look at shape, dtype and device but not at values, so the losses work in compiled
and captured steps. Shapes: L images, M views, N blocks, B = L·M.
"""

from typing import Any, NamedTuple

import torch

from codinet.checks import require_kind, require_number, require_same_place, require_tensor

_TINY = 1e-12  # squared distances below this count as zero, with zero gradient
LARGEST_WEIGHT = 1e6  # of a loss or a margin; beyond this, float32 overflows


def require_weight(name: str, value: Any) -> None:
    """Requires the weight of a loss, or a margin, between 0 and LARGEST_WEIGHT."""
    require_number(name, value, 0, LARGEST_WEIGHT)


def _norm(squared: torch.Tensor) -> torch.Tensor:
    """√x with gradient 0 instead of infinity at x = 0."""
    positive = squared > _TINY
    return torch.where(positive, squared, 1.0).sqrt() * positive


def consistency(paths_LMN: torch.Tensor, *, margin: float) -> torch.Tensor:
    """Eq. 8: mean over views of [‖r − centre of its image's views‖ − m_c]₊².

    Args:
        paths_LMN: Paths of M views of L images.
        margin: m_c.

    Returns:
        The loss, a scalar.
    """
    require_tensor("paths", paths_LMN, ("L", "M", "N"))
    require_weight("margin", margin)
    centre_L1N = paths_LMN.mean(dim=1, keepdim=True)
    distance_LM = _norm((paths_LMN - centre_L1N).square().sum(dim=-1))
    return (distance_LM - margin).relu().square().mean()


def diversity(paths_LMN: torch.Tensor, *, margin: float) -> torch.Tensor:
    """Eq. 9: mean over pairs of different images of [m_d − ‖centre − centre′‖]₊².

    Args:
        paths_LMN: Paths of M views of L images.
        margin: m_d.

    Returns:
        The loss, a scalar; 0 for a single image.
    """
    require_tensor("paths", paths_LMN, ("L", "M", "N"))
    require_weight("margin", margin)
    number = len(paths_LMN)
    centre_LN = paths_LMN.mean(dim=1)
    # ‖a − b‖² = ‖a‖² + ‖b‖² − 2ab loses half of its digits for a near b, where this loss acts. Double precision keeps
    # them, at no cost for this size.
    if centre_LN.device.type != "mps":
        centre_LN = centre_LN.double()
    square_L = centre_LN.square().sum(dim=-1)
    squared_LL = square_L[:, None] + square_L[None, :] - 2 * centre_LN @ centre_LN.T
    hinge_LL = (margin - _norm(squared_LL)).relu().square()
    pairs = 2 * hinge_LL.triu(1).sum()
    return (pairs / max(number * (number - 1), 1)).to(paths_LMN.dtype)


def expected_cost(paths_BN: torch.Tensor, costs_N: torch.Tensor) -> torch.Tensor:
    """Eq. 11: Σ c_k v_k, averaged over the batch.

    Args:
        paths_BN: Paths.
        costs_N: c_k, see `CostTable.loss_weights`.

    Returns:
        The loss, a scalar.
    """
    require_tensor("paths", paths_BN, ("B", "N"))
    require_tensor("costs", costs_N, paths_BN.shape[1:])
    require_same_place("paths", paths_BN, "costs", costs_N)
    return (paths_BN @ costs_N).mean()


def score_decay(scores_BN2: torch.Tensor) -> torch.Tensor:
    """Σ_k (U[run] − U[skip])², averaged over the batch. Not in the paper.

    Noise in the relaxation rewards routers for large margins. A router that gives every image the same large margin no
    longer responds to the cost loss. A small decay of the margins prevents that.

    Args:
        scores_BN2: Router scores (skip, run) of every block.

    Returns:
        The loss, a scalar.
    """
    require_tensor("scores", scores_BN2, ("B", "N", 2))
    return (scores_BN2[..., 1] - scores_BN2[..., 0]).square().sum(dim=-1).mean()


class Terms(NamedTuple):
    """The four losses of Eq. 12, before weighting."""

    classification: torch.Tensor
    consistency: torch.Tensor
    diversity: torch.Tensor
    cost: torch.Tensor


def total(terms: Terms, *, alpha: float, beta: float, gamma: float | torch.Tensor) -> torch.Tensor:
    """Eq. 12: L_cls + α L_con + β L_div + γ L_cost.

    Args:
        terms: The four losses.
        alpha: α.
        beta: β.
        gamma: γ. It may be negative, which a budget controller uses to raise the cost.

    Returns:
        The loss, a scalar.
    """
    require_kind("terms", terms, Terms, "a `Terms` with the four losses")
    for name, term in zip(Terms._fields, terms, strict=True):
        require_tensor(f"The {name} loss", term, ())
    for name, weight in (("alpha", alpha), ("beta", beta), ("gamma", gamma)):
        if isinstance(weight, torch.Tensor):
            require_tensor(name, weight, ())
        else:
            require_number(name, weight, -LARGEST_WEIGHT, LARGEST_WEIGHT)
    return terms.classification + alpha * terms.consistency + beta * terms.diversity + gamma * terms.cost
