"""Do images with similar features take similar paths? Pearson correlation over pairs of images.

A pair's two similarities are cosines: of its paths and of its features. A vector of zeros (an image that
runs no block) is taken to be similar to nothing, cosine 0. Knows nothing of where features come from.
"""

from typing import NamedTuple

import torch
from torch.nn import functional as F

EVERY_PAIR_UP_TO = 60_000_000  # pairs of 10,000 images are 49,995,000
SAMPLED_PAIRS = 2_000_000
SCATTERED_PAIRS = 4_000


class Correlation(NamedTuple):
    pcc: float | None  # None where one of the two similarities never varies
    pairs: int
    every_pair: bool  # else a seeded sample


class Moments:
    """Sums over pairs of cosines, enough for their correlation without keeping the pairs."""

    def __init__(self) -> None:
        self.count = 0
        self.sums_5 = torch.zeros(5, dtype=torch.float64)  # x, y, x², y², xy

    def add(self, x_P: torch.Tensor, y_P: torch.Tensor) -> "Moments":
        x_P, y_P = x_P.double(), y_P.double()
        self.count += len(x_P)
        self.sums_5 += torch.stack([x_P.sum(), y_P.sum(), x_P @ x_P, y_P @ y_P, x_P @ y_P])
        return self

    def pcc(self) -> float | None:
        if self.count == 0:
            return None
        x, y, xx, yy, xy = (self.sums_5 / self.count).tolist()
        # Cosines are float32: a spread below their rounding is no spread.
        spread_x, spread_y = xx - x * x, yy - y * y
        if min(spread_x, spread_y) < 1e-12:
            return None
        return max(-1.0, min(1.0, (xy - x * y) / (spread_x * spread_y) ** 0.5))


def correlate(
    path_TN: torch.Tensor,
    feature_TD: torch.Tensor,
    *,
    seed: int,
    every_pair_up_to: int = EVERY_PAIR_UP_TO,
    sampled: int = SAMPLED_PAIRS,
) -> Correlation:
    """Over every pair of different images where these are few enough, else over a sample of pairs."""
    paths_TN, features_TD = F.normalize(path_TN.float(), dim=1), F.normalize(feature_TD.float(), dim=1)
    number, moments = len(paths_TN), Moments()
    every = number * (number - 1) // 2 <= every_pair_up_to
    if every:
        for start in range(0, number, 500):
            rows = slice(start, min(start + 500, number))
            # Only partners further on, so that no pair is counted twice and none with itself.
            i, j = torch.triu_indices(rows.stop - start, number - start, offset=1).unbind()
            x_P = (paths_TN[rows] @ paths_TN[start:].T)[i, j]
            y_P = (features_TD[rows] @ features_TD[start:].T)[i, j]
            moments.add(x_P, y_P)
    elif number > 1:
        i_P, j_P = random_pairs(number, sampled, seed=seed)
        for i, j in zip(i_P.split(100_000), j_P.split(100_000), strict=True):
            moments.add(_cosines(paths_TN, i, j), _cosines(features_TD, i, j))
    return Correlation(moments.pcc(), int(moments.count), every)


def similarities(
    path_TN: torch.Tensor, feature_TD: torch.Tensor, *, seed: int, pairs: int = SCATTERED_PAIRS
) -> tuple[torch.Tensor, torch.Tensor]:
    """(path similarity, feature similarity) of a random sample of pairs: what a scatter shows."""
    i_P, j_P = random_pairs(len(path_TN), pairs, seed=seed)
    unit_TN, unit_TD = F.normalize(path_TN.float(), dim=1), F.normalize(feature_TD.float(), dim=1)
    return _cosines(unit_TN, i_P, j_P), _cosines(unit_TD, i_P, j_P)


def random_pairs(number: int, pairs: int, *, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Places of two different images each, drawn with replacement; none where there are no two images."""
    if number < 2:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    chance = torch.Generator().manual_seed(seed)
    i_P = torch.randint(0, number, (pairs,), generator=chance)
    step_P = torch.randint(1, number, (pairs,), generator=chance)
    return i_P, (i_P + step_P) % number


def _cosines(unit_TD: torch.Tensor, i_P: torch.Tensor, j_P: torch.Tensor) -> torch.Tensor:
    return (unit_TD[i_P] * unit_TD[j_P]).sum(dim=1)
