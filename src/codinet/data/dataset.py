"""What every source of images gives: two splits of bytes, the class names, and how to augment the images.

Knows nothing of files (the sources do) or of random views (`views` does).
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from codinet.checks import shown
from codinet.data.lazy import LazyImages
from codinet.errors import UserError


@dataclass(frozen=True)
class Split:
    """Images as bytes and their labels, in a fixed order."""

    images_NCHW: Any  # uint8: a tensor, or `LazyImages`, which has a shape and is indexed like one
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
    """A classification data set, in memory or, if that is too small, decoded when it is used."""

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
    """Return the data set; `UserError` if something is wrong with it."""
    if not isinstance(dataset, Dataset):
        raise UserError(f"expected a codinet.data.Dataset, got {shown(dataset)}; load one with codinet.data.load.")
    if not is_printable(dataset.name):
        raise UserError(f"a data set is called {shown(dataset.name)}, which is not printable Unicode; rename it.")
    if not isinstance(dataset.classes, tuple):
        raise UserError(f"{dataset.name} has the classes {shown(dataset.classes)}; expected a tuple of names.")
    number = len(dataset.classes)
    if number < 2:
        raise UserError(f"{dataset.name} has {number} class; a classifier needs at least two.")
    require_names(dataset.classes, dataset.name)
    _check_split(dataset.train, dataset.name, "training", number)
    _check_split(dataset.test, dataset.name, "test", number)
    if dataset.train.images_NCHW.shape[1:] != dataset.test.images_NCHW.shape[1:]:
        raise UserError(
            f"{dataset.name} has training images of shape {tuple(dataset.train.images_NCHW.shape[1:])} but "
            f"test images of shape {tuple(dataset.test.images_NCHW.shape[1:])}; make them the same."
        )
    if len(dataset.train.labels_N.unique()) < 2:
        raise UserError(f"{dataset.name} has training images of one class only; a classifier needs at least two.")
    channels = dataset.image_shape[0]
    for word, values, least in (("mean", dataset.mean, 0.0), ("std", dataset.std, 1e-6)):
        if not _are_numbers(values, channels, least):
            raise UserError(
                f"{dataset.name} has the {word} {shown(values)}; expected a number from {least:g} to 255 for each of "
                f"{channels} channels."
            )
    if type(dataset.pad) is not int or not 0 <= dataset.pad <= max(dataset.image_shape[1:]):
        raise UserError(f"{dataset.name} has the pad {shown(dataset.pad)}; expected 0 to the longest side of an image.")
    return dataset


def require_names(names: Sequence[str], where: str) -> None:
    """`UserError` unless every class has a name of its own that can be printed and written as JSON."""
    seen: set[str] = set()
    for name in names:
        if not is_printable(name):
            raise UserError(f"{where} has a class called {shown(name)}; rename it to printable Unicode text.")
        if name in seen:
            raise UserError(f"{where} has the class {shown(name)} more than once; give every class a name of its own.")
        seen.add(name)


def is_printable(name: object) -> bool:
    """Whether a name is text that tables and JSON can hold."""
    # Lone surrogates (Cs) stand for bytes that are not UTF-8; control characters (Cc) would break tables.
    return (
        isinstance(name, str)
        and bool(name.strip())
        and not any(unicodedata.category(letter) in ("Cs", "Cc") for letter in name)
    )


def _check_split(split: Split, name: str, word: str, number: int) -> None:
    if not isinstance(split, Split):
        raise UserError(f"{name} has the {word} split {shown(split)}; expected a codinet.data.Split.")
    images_NCHW, labels_N = split.images_NCHW, split.labels_N
    if not isinstance(images_NCHW, torch.Tensor | LazyImages) or not isinstance(labels_N, torch.Tensor):
        raise UserError(f"{name} has {word} images or labels that are not tensors; use torch.from_numpy on arrays.")
    if len(images_NCHW.shape) != 4 or min(images_NCHW.shape[1:]) < 1:
        raise UserError(f"{name} has {word} images of shape {tuple(images_NCHW.shape)}; expected (N, C, H, W).")
    if isinstance(images_NCHW, torch.Tensor) and images_NCHW.dtype != torch.uint8:
        raise UserError(f"{name} has {word} images of type {images_NCHW.dtype}; expected torch.uint8.")
    if labels_N.ndim != 1:
        raise UserError(f"{name} has {word} labels of shape {tuple(labels_N.shape)}; expected (N,).")
    if len(labels_N) == 0:
        raise UserError(f"{name} has no {word} images; add some or choose another split.")
    if labels_N.dtype != torch.int64:
        raise UserError(f"{name} has {word} labels of type {labels_N.dtype}; expected torch.int64.")
    if len(images_NCHW) != len(labels_N):
        raise UserError(
            f"{name} has {len(images_NCHW)} {word} images but {len(labels_N)} labels; each image needs one label."
        )
    low, high = int(labels_N.min()), int(labels_N.max())
    if low < 0 or high >= number:
        raise UserError(
            f"{name} has {word} labels from {low} to {high} but {number} classes; labels must be between 0 and "
            f"{number - 1}."
        )


def _are_numbers(values: object, count: int, least: float) -> bool:
    return (
        isinstance(values, tuple | list)
        and len(values) == count
        and all(isinstance(value, int | float) and least <= value <= 255 for value in values)
    )
