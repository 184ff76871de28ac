"""The two records that packages exchange, and the legend of shape suffixes.

A suffix of capital letters in a name gives the tensor's shape:

    B  inputs of a batch        L  images of a training batch     M  views of one image, so B = L × M
    N  routed blocks            K  classes                        T  images of a test set
    C  channels                 H, W  height and width            2  (skip, run): index 1 means run

"""

from typing import NamedTuple

import torch

from codinet.notebook import MAX_IMAGES, Row, path_picture


class RoutedOutput(NamedTuple):
    """The output of a routed network for a batch."""

    logits_BK: torch.Tensor
    scores_BN2: torch.Tensor
    """Router scores U: index 0 for skipping, index 1 for running."""
    path_BN: torch.Tensor
    """The decisions that were applied: 0 or 1 if hard, in between if relaxed."""

    def _repr_html_(self) -> str:
        """A picture of the paths for notebooks, of the first images. It reads the tensors from the device."""
        number = min(len(self.path_BN), MAX_IMAGES)
        paths = self.path_BN[:number].detach().float().tolist()
        best = self.logits_BK[:number].argmax(dim=1).tolist()
        rows = [Row(f"image {index}: class {best[index]}", path) for index, path in enumerate(paths)]
        title = f"The paths of {number} of {len(self.path_BN)} images. Columns are blocks; filled blocks run."
        return path_picture(title, rows, unit="run")


class PathTable(NamedTuple):
    """How each image of a set was routed and classified: one row per image, in the order of the set."""

    path_TN: torch.Tensor  # uint8: 1 where the block ran
    run_probability_TN: torch.Tensor  # float32: the noise-free relaxation of the same decisions
    label_T: torch.Tensor  # int64
    prediction_T: torch.Tensor  # int64
    confidence_T: torch.Tensor  # float32: probability of the predicted class
    macs_T: torch.Tensor  # float64: multiply-adds spent on the image, routers included
