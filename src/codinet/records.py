"""The two records that travel between rooms, and the legend of shape letters.

A suffix of capitals on a name is the tensor's shape:

    B  inputs of a batch        L  images of a training batch     M  views of one image, so B = L × M
    N  routed blocks            K  classes                        T  images of a test set
    C  channels                 H, W  height and width            2  (skip, run): index 1 means run

Knows nothing of networks, losses or files.
"""

from typing import NamedTuple

import torch


class RoutedOutput(NamedTuple):
    """What a routed network says of a batch."""

    logits_BK: torch.Tensor
    scores_BN2: torch.Tensor
    """Router scores U: index 0 speaks for skipping, index 1 for running."""
    path_BN: torch.Tensor
    """The decisions that were applied: 0 or 1 when hard, between them when relaxed."""


class PathTable(NamedTuple):
    """How each image of a set was routed and classified; one row an image, in the set's order."""

    path_TN: torch.Tensor  # uint8: 1 where the block ran
    run_probability_TN: torch.Tensor  # float32: the noise-free relaxation of the same decisions
    label_T: torch.Tensor  # int64
    prediction_T: torch.Tensor  # int64
    confidence_T: torch.Tensor  # float32: the predicted class's probability
    macs_T: torch.Tensor  # float64: multiply-adds spent on the image, routers included
