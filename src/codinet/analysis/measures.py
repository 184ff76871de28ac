"""Measures of how a network routes images, as pure functions on tensors.

Four topics: consistency under augmentation, accuracy with swapped paths, correlation of paths with features, and use of
blocks and paths. Suffixes: T images, N blocks, K classes, P pairs of images or distinct paths, I some of the images.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from codinet.records import PathTable

# ---------------------------------------------------------------------------------------------------------------------
# Consistency: does an image keep its path and its prediction when it is augmented?

KL_EDGES = (0.0, *(float(f"{10 ** (half / 2):.3g}") for half in range(-8, 3)))  # half-decades from 1e-4 to 10


def same_path(path_TN: torch.Tensor, other_TN: torch.Tensor) -> torch.Tensor:
    """Whether each pair of images runs the same blocks (bool, T)."""
    return (path_TN == other_TN).all(dim=1)


def blocks_changed(path_TN: torch.Tensor, other_TN: torch.Tensor) -> torch.Tensor:
    """The number of blocks with different decisions in each pair (int64, T)."""
    return (path_TN != other_TN).sum(dim=1)


def kl_divergence(logits_TK: torch.Tensor, other_TK: torch.Tensor) -> torch.Tensor:
    """KL(original ‖ augmented) of the predicted class probabilities, in nats (float64, T)."""
    log_p_TK = logits_TK.double().log_softmax(dim=1)
    log_q_TK = other_TK.double().log_softmax(dim=1)
    # Rounding can give -1e-17 for equal predictions.
    return (log_p_TK.exp() * (log_p_TK - log_q_TK)).sum(dim=1).clamp(min=0)


def mean_by_kind(values_T: torch.Tensor, kind_T: torch.Tensor, kinds: Sequence[str]) -> dict[str, Any]:
    """Mean value and number of pairs for each kind of augmentation that occurs.

    Args:
        values_T: One value per image.
        kind_T: The image's augmentation, as an index into `kinds`.
        kinds: Names of the augmentations.
    """
    means = {}
    for index, kind in enumerate(kinds):
        chosen = values_T[kind_T == index].double()
        if len(chosen):
            means[kind] = {"pairs": len(chosen), "mean": chosen.mean().item()}
    return means


def histogram(values_T: torch.Tensor, edges: Sequence[float]) -> np.ndarray:
    """The fraction of values in each bin [edge, next edge); the last bin has no upper bound (float64)."""
    counts, _ = np.histogram(values_T.double().numpy(), [*edges, np.inf])
    return counts / max(1, len(values_T))


def kl_summary(kl_T: torch.Tensor, kind_T: torch.Tensor, kinds: Sequence[str]) -> dict[str, Any]:
    """Mean, median and histogram of KL divergences, ready for JSON."""
    return {
        "unit": "nats, KL(original ‖ augmented)",
        "mean": kl_T.mean().item(),
        "median": kl_T.median().item(),
        "kinds": mean_by_kind(kl_T, kind_T, kinds),
        "histogram": {"edges": list(KL_EDGES), "shares": histogram(kl_T, KL_EDGES).tolist()},
    }


# ---------------------------------------------------------------------------------------------------------------------
# Swapped paths: how much accuracy is lost when every image takes the path of another? The paths are permuted, so the
# mean cost stays the same.

Predict = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From indices of images (I) and the path forced on each (I×N) to the predicted classes (I)."""


def swap_partners(group_T: torch.Tensor, *, seed: int) -> torch.Tensor:
    """A random permutation of the images within their groups, without fixed points.

    Args:
        group_T: Images swap paths only with images of the same group.
        seed: Seed of the permutation.

    Returns:
        For each image, the index of the image whose path it takes. An image that is alone in its group keeps its own.
    """
    shuffled_T = torch.randperm(len(group_T), generator=torch.Generator().manual_seed(seed))
    partner_T = torch.arange(len(group_T))
    for group in group_T.unique():
        member_G = shuffled_T[group_T[shuffled_T] == group]
        partner_T[member_G] = member_G.roll(1)  # one cycle, so no image keeps its own path
    return partner_T


def swapped_accuracy(
    path_TN: torch.Tensor, prediction_T: torch.Tensor, label_T: torch.Tensor, partner_T: torch.Tensor, predict: Predict
) -> float:
    """Accuracy in percent when image t takes the path of image `partner_T[t]`.

    Args:
        path_TN: Each image's own path.
        prediction_T: Predictions along these paths.
        label_T: Labels.
        partner_T: See `swap_partners`.
        predict: Runs the images whose path changes; the other predictions are reused.
    """
    moved_I = (~same_path(path_TN, path_TN[partner_T])).nonzero().flatten()
    right_T = prediction_T == label_T
    if len(moved_I):
        right_T[moved_I] = predict(moved_I, path_TN[partner_T[moved_I]]) == label_T[moved_I]
    return 100 * right_T.double().mean().item()


# ---------------------------------------------------------------------------------------------------------------------
# Correlation: do images with similar features take similar paths? Pearson correlation, over pairs of images, of the
# cosine similarity of their paths and that of their features. A path without blocks has similarity 0 to every other.

ALL_PAIRS_LIMIT = 60_000_000  # 10,000 images have 49,995,000 pairs
SAMPLED_PAIRS = 2_000_000
SCATTER_PAIRS = 4_000


class Correlation(NamedTuple):
    """A Pearson correlation coefficient over pairs of images."""

    pcc: float | None  # None if one of the two similarities is constant
    pairs: int
    every_pair: bool  # otherwise a seeded sample of pairs


class PearsonSums:
    """Running sums that give a Pearson correlation without keeping the pairs."""

    def __init__(self) -> None:
        self.count = 0
        self.sums_5 = torch.zeros(5, dtype=torch.float64)  # x, y, x², y², xy

    def add(self, x_P: torch.Tensor, y_P: torch.Tensor) -> "PearsonSums":
        x_P, y_P = x_P.double(), y_P.double()
        self.count += len(x_P)
        self.sums_5 += torch.stack([x_P.sum(), y_P.sum(), x_P @ x_P, y_P @ y_P, x_P @ y_P])
        return self

    def pcc(self) -> float | None:
        if self.count == 0:
            return None
        x, y, xx, yy, xy = (self.sums_5 / self.count).tolist()
        variance_x, variance_y = xx - x * x, yy - y * y
        if min(variance_x, variance_y) < 1e-12:  # below the rounding of float32 cosines
            return None
        return max(-1.0, min(1.0, (xy - x * y) / (variance_x * variance_y) ** 0.5))


def correlate(
    path_TN: torch.Tensor,
    feature_TD: torch.Tensor,
    *,
    seed: int,
    all_pairs_limit: int = ALL_PAIRS_LIMIT,
    sampled: int = SAMPLED_PAIRS,
) -> Correlation:
    """Correlation of path similarity and feature similarity.

    Args:
        path_TN: Hard or relaxed paths.
        feature_TD: Features of the same images.
        seed: Seed of the sample of pairs.
        all_pairs_limit: Up to this number of pairs all are used, above it a sample.
        sampled: Size of that sample.
    """
    paths_TN, features_TD = F.normalize(path_TN.float(), dim=1), F.normalize(feature_TD.float(), dim=1)
    number, sums = len(paths_TN), PearsonSums()
    every_pair = number * (number - 1) // 2 <= all_pairs_limit
    if every_pair:
        for start in range(0, number, 500):
            rows = slice(start, min(start + 500, number))
            i, j = torch.triu_indices(rows.stop - start, number - start, offset=1).unbind()
            x_P = (paths_TN[rows] @ paths_TN[start:].T)[i, j]
            y_P = (features_TD[rows] @ features_TD[start:].T)[i, j]
            sums.add(x_P, y_P)
    elif number > 1:
        i_P, j_P = random_pairs(number, sampled, seed=seed)
        for i, j in zip(i_P.split(100_000), j_P.split(100_000), strict=True):
            sums.add(_cosines(paths_TN, i, j), _cosines(features_TD, i, j))
    return Correlation(sums.pcc(), sums.count, every_pair)


def pair_similarities(
    path_TN: torch.Tensor, feature_TD: torch.Tensor, *, seed: int, pairs: int = SCATTER_PAIRS
) -> tuple[torch.Tensor, torch.Tensor]:
    """(path similarity, feature similarity) of a random sample of pairs, for a scatter plot."""
    i_P, j_P = random_pairs(len(path_TN), pairs, seed=seed)
    unit_TN, unit_TD = F.normalize(path_TN.float(), dim=1), F.normalize(feature_TD.float(), dim=1)
    return _cosines(unit_TN, i_P, j_P), _cosines(unit_TD, i_P, j_P)


def random_pairs(number: int, pairs: int, *, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices of two different images for each pair, drawn with replacement; empty for fewer than two images."""
    if number < 2:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    generator = torch.Generator().manual_seed(seed)
    i_P = torch.randint(0, number, (pairs,), generator=generator)
    step_P = torch.randint(1, number, (pairs,), generator=generator)
    return i_P, (i_P + step_P) % number


def _cosines(unit_TD: torch.Tensor, i_P: torch.Tensor, j_P: torch.Tensor) -> torch.Tensor:
    return (unit_TD[i_P] * unit_TD[j_P]).sum(dim=1)


# ---------------------------------------------------------------------------------------------------------------------
# Usage: which blocks and paths do images take?


def class_block_rates(paths: PathTable, classes: int) -> torch.Tensor:
    """The fraction of each class's images that run a block (float64, K×N); NaN for a class without images."""
    sums_KN = torch.zeros(classes, paths.path_TN.shape[1], dtype=torch.float64)
    sums_KN.index_add_(0, paths.label_T.long(), paths.path_TN.double())
    return sums_KN / torch.bincount(paths.label_T.long(), minlength=classes).double()[:, None]


class PathCounts(NamedTuple):
    """The distinct paths, most common first."""

    path_PN: torch.Tensor  # uint8
    count_P: torch.Tensor  # int64
    index_T: torch.Tensor  # int64: the path of each image, as an index into the two above


def path_counts(path_TN: torch.Tensor) -> PathCounts:
    """Count how many images take each path."""
    path_PN, index_T, count_P = torch.unique(path_TN, dim=0, return_inverse=True, return_counts=True)
    order_P = count_P.argsort(descending=True, stable=True)
    return PathCounts(path_PN[order_P], count_P[order_P], order_P.argsort()[index_T])


def entropy_bits(count_P: torch.Tensor) -> float:
    """Entropy of the distribution over paths: 0 for a single path, log2 P for P equally common ones."""
    p_P = count_P[count_P > 0].double() / count_P.sum()
    return abs(-(p_P * p_P.log2()).sum().item())


def expected_blocks(run_probability_TN: torch.Tensor) -> torch.Tensor:
    """The expected number of blocks that each image runs (float64, T)."""
    return run_probability_TN.double().sum(dim=1)


def accuracy_by_blocks(paths: PathTable) -> list[dict[str, Any]]:
    """For each number of blocks run that occurs: the number of images, and their accuracy in percent."""
    blocks_T = paths.path_TN.long().sum(dim=1)
    right_T = paths.prediction_T == paths.label_T
    rows = []
    for blocks in blocks_T.unique().tolist():
        chosen_T = blocks_T == blocks
        accuracy = 100 * right_T[chosen_T].double().mean().item()
        rows.append({"blocks": blocks, "images": int(chosen_T.sum()), "accuracy": accuracy})
    return rows


def easiest_first(paths: PathTable) -> torch.Tensor:
    """Indices of the images, ordered by blocks run, and by falling confidence for the same number of blocks."""
    effort_T = paths.path_TN.double().sum(dim=1) - paths.confidence_T.double()  # confidence is at most 1
    return effort_T.argsort(stable=True)


def images_of_top_paths(counts: PathCounts, *, paths: int, images: int) -> list[torch.Tensor]:
    """For each of the `paths` most common paths, indices of up to `images` images that take it.

    The images are evenly spaced over the set, which may be sorted by class.
    """
    groups = []
    for path in range(min(paths, len(counts.count_P))):
        members = (counts.index_T == path).nonzero().flatten()
        spaced = torch.linspace(0, len(members) - 1, min(images, len(members))).round().long()
        groups.append(members[spaced])
    return groups
