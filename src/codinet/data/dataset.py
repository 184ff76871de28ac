"""What every source of images turns into: two splits of bytes, the class names, and how to augment them.

Knows nothing of files (the sources do) or of random views (`views` does).
"""

from dataclasses import dataclass
from typing import Any

import torch

from codinet.data.lazy import LazyImages
from codinet.errors import UserError


@dataclass(frozen=True)
class Split:
    """Images as bytes and their labels, in a fixed order."""

    images_NCHW: Any  # uint8: a tensor, or `LazyImages`, which has a shape and is indexed alike
    labels_N: torch.Tensor  # int64

    def __len__(self) -> int:
        return len(self.labels_N)

    def subset(self, indices: torch.Tensor) -> "Split":
        """The images at these places, in that order."""
        images_NCHW = self.images_NCHW
        picked = images_NCHW.pick(indices) if isinstance(images_NCHW, LazyImages) else images_NCHW[indices]
        return Split(picked, self.labels_N[indices])


@dataclass(frozen=True)
class Dataset:
    """A classification data set, in memory or, where that is too small, decoded when it is used."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, in bytes (0..255)
    std: tuple[float, ...]  # per channel, in bytes (0..255)
    pad: int  # random crops pad this many pixels on each side
    flip: bool  # whether a mirrored image keeps its class

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        channels, height, width = self.train.images_NCHW.shape[1:]
        return channels, height, width


def check(dataset: Dataset) -> Dataset:
    """The data set itself, or a `UserError` that says what is wrong with it."""
    number = len(dataset.classes)
    if number < 2:
        raise UserError(f"{dataset.name} has {number} class; a classifier needs at least two.")
    for word, split in (("training", dataset.train), ("test", dataset.test)):
        if len(split) == 0:
            raise UserError(f"{dataset.name} has no {word} images; add some or choose another split.")
        if len(split.images_NCHW) != len(split.labels_N):
            raise UserError(
                f"{dataset.name} has {len(split.images_NCHW)} {word} images but {len(split.labels_N)} "
                "labels; each image needs one label."
            )
        low, high = int(split.labels_N.min()), int(split.labels_N.max())
        if low < 0 or high >= number:
            raise UserError(
                f"{dataset.name} has {word} labels from {low} to {high} but {number} classes; "
                f"labels must lie between 0 and {number - 1}."
            )
    if dataset.train.images_NCHW.shape[1:] != dataset.test.images_NCHW.shape[1:]:
        raise UserError(
            f"{dataset.name} has training images of shape {tuple(dataset.train.images_NCHW.shape[1:])} but "
            f"test images of shape {tuple(dataset.test.images_NCHW.shape[1:])}; make them the same."
        )
    if len(dataset.train.labels_N.unique()) < 2:
        raise UserError(f"{dataset.name} has training images of one class only; a classifier needs at least two.")
    return dataset
