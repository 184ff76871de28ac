"""Does an image keep its path and its prediction when it is augmented?

Letters: T images, each with its augmentation at the same place of the second argument.
"""

from collections.abc import Sequence
from typing import Any

import torch

# Log-spaced, because most divergences are tiny and the few large ones matter: half-decades from 1e-4 to 10.
KL_EDGES = (0.0, *(float(f"{10 ** (half / 2):.3g}") for half in range(-8, 3)))


def same_path(path_TN: torch.Tensor, other_TN: torch.Tensor) -> torch.Tensor:
    """Whether each pair took the very same blocks (bool, T)."""
    return (path_TN == other_TN).all(dim=1)


def blocks_changed(path_TN: torch.Tensor, other_TN: torch.Tensor) -> torch.Tensor:
    """How many blocks each pair decided differently (int64, T)."""
    return (path_TN != other_TN).sum(dim=1)


def divergence(logits_TK: torch.Tensor, other_TK: torch.Tensor) -> torch.Tensor:
    """KL(original ‖ augmented) of the predicted class probabilities, in nats (float64, T)."""
    log_p_TK = logits_TK.double().log_softmax(dim=1)
    log_q_TK = other_TK.double().log_softmax(dim=1)
    # Rounding can leave −1e-17 where both agree; a divergence is never negative.
    return (log_p_TK.exp() * (log_p_TK - log_q_TK)).sum(dim=1).clamp(min=0)


def by_kind(values_T: torch.Tensor, kind_T: torch.Tensor, kinds: Sequence[str]) -> dict[str, Any]:
    """The mean of the values of each kind of augmentation that occurs, with the number of pairs behind it."""
    found = {}
    for place, kind in enumerate(kinds):
        chosen = values_T[kind_T == place].double()
        if len(chosen):
            found[kind] = {"pairs": len(chosen), "mean": chosen.mean().item()}
    return found


def shares(values_T: torch.Tensor, edges: Sequence[float]) -> torch.Tensor:
    """The share of values in each bin [edge, next edge); the last bin has no upper end (float64)."""
    place_T = torch.bucketize(values_T.double(), torch.tensor(edges, dtype=torch.float64)[1:], right=True)
    return torch.bincount(place_T, minlength=len(edges)).double() / max(1, len(values_T))


def kl_figures(kl_T: torch.Tensor, kind_T: torch.Tensor, kinds: Sequence[str]) -> dict[str, Any]:
    """Mean, spread and histogram of divergences, ready for JSON."""
    return {
        "unit": "nats, KL(original ‖ augmented)",
        "mean": kl_T.mean().item(),
        "median": kl_T.median().item(),
        "kinds": by_kind(kl_T, kind_T, kinds),
        "histogram": {"edges": list(KL_EDGES), "shares": shares(kl_T, KL_EDGES).tolist()},
    }
