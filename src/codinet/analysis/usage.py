"""How a network spends its blocks on a set of images: by class, by path, by image."""

from typing import Any, NamedTuple

import torch

from codinet.records import PathTable


def class_block_rates(paths: PathTable, classes: int) -> torch.Tensor:
    """rate_KN: the share of a class's images that run a block; nan for a class without images."""
    sums_KN = torch.zeros(classes, paths.path_TN.shape[1], dtype=torch.float64)
    sums_KN.index_add_(0, paths.label_T.long(), paths.path_TN.double())
    return sums_KN / torch.bincount(paths.label_T.long(), minlength=classes).double()[:, None]


class PathCounts(NamedTuple):
    """The distinct paths, most common first."""

    path_PN: torch.Tensor  # uint8
    count_P: torch.Tensor  # int64
    place_T: torch.Tensor  # int64: which of them each image took


def path_counts(path_TN: torch.Tensor) -> PathCounts:
    path_PN, place_T, count_P = torch.unique(path_TN, dim=0, return_inverse=True, return_counts=True)
    order_P = count_P.argsort(descending=True, stable=True)
    return PathCounts(path_PN[order_P], count_P[order_P], order_P.argsort()[place_T])


def entropy_bits(count_P: torch.Tensor) -> float:
    """Of the distribution over distinct paths: 0 where all images share one, log2 P where P are equally common."""
    share_P = count_P[count_P > 0].double() / count_P.sum()
    return abs(-(share_P * share_P.log2()).sum().item())


def easiest_first(paths: PathTable) -> torch.Tensor:
    """Places of the images by blocks run and, among equals, from sure to unsure."""
    # Confidence lies in 0..1, so it only decides among images with as many blocks.
    effort_T = paths.path_TN.double().sum(dim=1) - paths.confidence_T.double()
    return effort_T.argsort(stable=True)


def by_blocks_run(paths: PathTable) -> list[dict[str, Any]]:
    """For each number of blocks that occurs: how many images, and the share of them classified rightly."""
    blocks_T = paths.path_TN.long().sum(dim=1)
    right_T = paths.prediction_T == paths.label_T
    rows = []
    for blocks in blocks_T.unique().tolist():
        chosen_T = blocks_T == blocks
        accuracy = 100 * right_T[chosen_T].double().mean().item()
        rows.append({"blocks": blocks, "images": int(chosen_T.sum()), "accuracy": accuracy})
    return rows


def sharing(counts: PathCounts, *, paths: int, images: int) -> list[torch.Tensor]:
    """For each of the most common paths, the places of some images that take it, spread over the set."""
    groups = []
    for place in range(min(paths, len(counts.count_P))):
        members = (counts.place_T == place).nonzero().flatten()
        # Evenly spaced, because a set in order of its classes would show one class only.
        spread = torch.linspace(0, len(members) - 1, min(images, len(members))).round().long()
        groups.append(members[spread])
    return groups


def expected_blocks(run_probability_TN: torch.Tensor) -> torch.Tensor:
    """The mean number of blocks each image would run, were each router's probability drawn."""
    return run_probability_TN.double().sum(dim=1)
