"""What is an image's own path worth? The accuracy when every image is sent down the path of another.

Paths change hands and none is lost, so the mean cost stays. Letters: T images, of which I are run again.
"""

from collections.abc import Callable

import torch

from codinet.analysis.consistency import same_path

Predict = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From places of images (I) and the path that each is sent down (I×N) to their predicted classes (I)."""


def others(group_T: torch.Tensor, *, seed: int) -> torch.Tensor:
    """For each image the place of another of its group, each taken once; an image alone in its group keeps its own."""
    shuffled_T = torch.randperm(len(group_T), generator=torch.Generator().manual_seed(seed))
    other_T = torch.arange(len(group_T))
    for group in group_T.unique():
        member_G = shuffled_T[group_T[shuffled_T] == group]
        other_T[member_G] = member_G.roll(1)  # round a circle in random order, so that nobody meets themselves
    return other_T


def swapped_accuracy(
    path_TN: torch.Tensor, prediction_T: torch.Tensor, label_T: torch.Tensor, other_T: torch.Tensor, predict: Predict
) -> float:
    """In percent, where image t takes the path of image `other_T[t]`; the predictions are those of its own path."""
    moved_I = (~same_path(path_TN, path_TN[other_T])).nonzero().flatten()
    right_T = prediction_T == label_T
    if len(moved_I):  # along an equal path, an image is told the same again
        right_T[moved_I] = predict(moved_I, path_TN[other_T[moved_I]]) == label_T[moved_I]
    return 100 * right_T.double().mean().item()
