"""A classification data set: two splits of images and labels, the class names, and how to augment the images.

Images are bytes in a tensor, or `LazyImages` if they do not fit in memory. `hold_out` and `channel_stats` complete data
that comes without a test split or normalisation constants. Knows nothing of file formats.
"""

import hashlib
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from codinet.checks import shown
from codinet.data.images import View, read_pixels, read_views
from codinet.data.threads import map_in_threads
from codinet.errors import UserError

_MAX_VALUES = 2**26  # per channel, for statistics; more would not change any digit that matters
_DIGEST_BYTES = 2**28  # of images; the digest of a larger split covers a sample
_MAX_DAMAGED = 100  # files in a row


class DamagedFiles:
    """The image files that could not be read and were skipped. Safe in many threads."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def add(self, name: str, reason: str) -> None:
        """Record a file."""
        self._reasons[name] = reason

    def names(self) -> list[str]:
        """Return the files, sorted."""
        return sorted(self._reasons)


@dataclass(frozen=True)
class LazyImages:
    """Image files that are decoded when they are indexed, for folders larger than memory.

    Has the shape of a uint8 tensor (N, C, H, W) and is indexed like one along its first axis.

    Args:
        sources: Paths or contents of the files. Not a list of `Path`: there may be millions.
        channels: 1 or 3.
        size: Height and width.
        crop: Fraction of the shorter side that is kept, at the centre; views of a training show other parts too.
        square: Whether all files are known to be square.
        damaged: Collects files that cannot be read, and the next file takes their place; None: they are an error.
    """

    sources: Sequence[str | bytes]
    channels: int
    size: tuple[int, int]
    crop: float = 1.0
    square: bool = False
    damaged: DamagedFiles | None = None

    @property
    def shape(self) -> torch.Size:
        """The shape of the tensor with all images."""
        return torch.Size((len(self.sources), self.channels, *self.size))

    @property
    def nbytes(self) -> int:
        """The memory that all decoded images would take."""
        return self.shape.numel()

    @property
    def whole(self) -> "LazyImages":
        """The same images without the crop, in the same resolution, so a little larger."""
        height, width = (round(side / self.crop) for side in self.size)
        return replace(self, size=(height, width), crop=1.0)

    @property
    def shard_N(self) -> torch.Tensor | None:  # noqa: N802 - named by its shape
        """The shard of each image if they are packed, else None."""
        return getattr(self.sources, "shard_N", None)

    def expect(self, index_N: torch.Tensor) -> None:
        """Say which images will be read, in this order, so that shards can be downloaded ahead."""
        if self.shard_N is not None:
            self.sources.expect(index_N)  # type: ignore[attr-defined]  # of `ShardFiles`

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int | slice | torch.Tensor) -> torch.Tensor:
        """Decode the images at these indices in several threads."""
        if isinstance(index, int):
            return self.decode(range(len(self))[index : index + 1 or None])[0][0]
        return self.decode(range(len(self))[index] if isinstance(index, slice) else index.tolist())[0]

    def decode(self, indices: Sequence[int]) -> tuple[torch.Tensor, list[int]]:
        """Decode images in several threads; return them and the indices of the files that were used."""
        images_BCHW = torch.empty((len(indices), *self.shape[1:]), dtype=torch.uint8)
        rows_BCHW = images_BCHW.numpy()

        def fill(row: int) -> int:
            return self.read_into(rows_BCHW[row : row + 1], indices[row : row + 1])[0]

        return images_BCHW, map_in_threads(fill, range(len(indices)), "Reading images")

    def read_into(self, rows_BCHW: np.ndarray, indices: Sequence[int]) -> list[int]:
        """Decode the images at these indices into an array, in this thread; return the indices that were used."""

        def read(row: int, source: str | bytes) -> None:
            rows_BCHW[row] = read_pixels(source, self.channels, self.size, self.crop)

        return [self._read(partial(read, row), index) for row, index in enumerate(indices)]

    def read_views_into(
        self, rows_BMHWC: np.ndarray, indices: Sequence[int], choose: Sequence[Callable[[int, int], Sequence[View]]]
    ) -> list[int]:
        """Like `read_into`, but cut the views that `choose` gives for each image (see `read_views`)."""

        def read(row: int, source: str | bytes) -> None:
            read_views(source, choose[row], rows_BMHWC[row])

        return [self._read(partial(read, row), index) for row, index in enumerate(indices)]

    def _read(self, read: Callable[[str | bytes], None], index: int) -> int:
        """Call `read` with a file, or with the next one that can be read; return its index."""
        if self.damaged is None:
            read(self.sources[index])
            return index
        for offset in range(min(len(self), _MAX_DAMAGED)):
            position, source = (index + offset) % len(self), None
            try:
                source = self.sources[position]
                read(source)
            except UserError as error:
                self.damaged.add(source if isinstance(source, str) else f"image {position}", str(error))
            else:
                return position
        raise UserError(f"{_MAX_DAMAGED} image files in a row cannot be read, from {self.damaged.names()[0]} on.")

    def pick(self, index_N: torch.Tensor) -> "LazyImages":
        """Return the images at these indices, without decoding them."""
        return replace(self, sources=pick(self.sources, index_N.tolist()))


def pick(sources: Sequence[str | bytes], indices: Sequence[int]) -> Sequence[str | bytes]:
    """Return the files at these indices, as a sequence of the same kind if it can pick."""
    own = getattr(sources, "pick", None)
    return own(indices) if own else [sources[index] for index in indices]


Images = torch.Tensor | LazyImages


@dataclass(frozen=True)
class Split:
    """Images as bytes and their labels, in a fixed order."""

    images_NCHW: Any  # uint8: a tensor or `LazyImages`
    labels_N: torch.Tensor  # int64

    def __len__(self) -> int:
        return len(self.labels_N)

    def subset(self, indices: torch.Tensor) -> "Split":
        """Return the images at these indices, in that order."""
        images_NCHW = self.images_NCHW
        picked = images_NCHW.pick(indices) if isinstance(images_NCHW, LazyImages) else images_NCHW[indices]
        return Split(picked, self.labels_N[indices])


@dataclass(frozen=True)
class Dataset:
    """A classification data set with a training and a test split."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, in bytes (0..255)
    std: tuple[float, ...]  # per channel, in bytes (0..255)
    pad: int  # pixels that random crops pad on each side
    flip: bool  # whether a mirrored image keeps its class
    crop: float = 1.0  # fraction of the shorter side that was kept of each image file
    sha256: str | None = None  # `image_digest` of both splits if it is known
    damaged: DamagedFiles | None = None  # files that could not be read and are skipped

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        channels, height, width = self.train.images_NCHW.shape[1:]
        return channels, height, width


def image_digest(*splits: Split) -> str:
    """Return the sha256 of the images and labels of splits; of every k-th image if there are very many."""
    digest = hashlib.sha256()
    for split in splits:
        for tensor in (split.images_NCHW[:: digest_step(split)], split.labels_N):
            digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def digest_step(split: Split) -> int:
    """Return k. It depends on the size only, so images in memory and images decoded on use have the same digest."""
    return -(-split.images_NCHW.nbytes // _DIGEST_BYTES) or 1


def hold_out(labels_N: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose a fixed, stratified test split of about `count` images.

    The same labels in the same order give the same split on every machine and in every version: indices are computed,
    not drawn at random. Each class contributes in proportion to its size (largest remainders first), at evenly spaced
    positions. A class of two or more contributes at least one image and keeps at least one, so tiny classes can change
    the total. A class of one stays in the training split.

    Args:
        labels_N: The label of each image.
        count: The size of the test split.

    Returns:
        Training indices and test indices, both ascending.
    """
    total = len(labels_N)
    assert 0 <= count <= total, f"cannot hold out {count} of {total}"
    if total == 0:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    # Only classes that occur: a single huge label must not cost time and memory.
    sizes = torch.unique(labels_N, return_counts=True)[1].tolist()
    quotas = [size * count // total for size in sizes]
    by_remainder = sorted(range(len(sizes)), key=lambda label: (-(sizes[label] * count % total), label))
    for label in by_remainder[: count - sum(quotas)]:
        quotas[label] += 1

    indices_per_class = torch.argsort(labels_N, stable=True).split(sizes)
    is_test_N = torch.zeros(total, dtype=torch.bool)
    for size, quota, indices in zip(sizes, quotas, indices_per_class, strict=True):
        quota = max(0, min(max(quota, 1), size - 1))
        if quota:
            # The class is cut into `quota` equal intervals; the middle of each is taken.
            is_test_N[indices[(2 * torch.arange(quota) + 1) * size // (2 * quota)]] = True
    return torch.nonzero(~is_test_N).flatten(), torch.nonzero(is_test_N).flatten()


def channel_stats(images_NCHW: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compute the mean and standard deviation of each channel, in bytes. Of very many images, every k-th is used.

    Counts byte values instead of adding floats, so the result does not depend on order or precision.
    """
    channels = images_NCHW.shape[1]
    sample_NCHW = images_NCHW[:: statistics_step(images_NCHW)]
    values_256 = torch.arange(256, dtype=torch.float64)
    means, stds = [], []
    for channel in range(channels):
        counts_256 = torch.bincount(sample_NCHW[:, channel].flatten(), minlength=256).double()
        frequency_256 = counts_256 / counts_256.sum()
        mean = (frequency_256 * values_256).sum()
        std = (frequency_256 * (values_256 - mean) ** 2).sum().sqrt()
        means.append(float(mean))
        # A channel of one colour has a standard deviation of zero, and normalising divides by it.
        stds.append(max(float(std), 1.0))
    return tuple(means), tuple(stds)


def statistics_step(images_NCHW: Images) -> int:
    """Return k: statistics use every k-th image."""
    number, _, height, width = images_NCHW.shape
    return -(-number * height * width // _MAX_VALUES) or 1


def check(dataset: Dataset) -> Dataset:
    """Return the data set unchanged; raise a `UserError` if it is invalid."""
    if not isinstance(dataset, Dataset):
        raise UserError(f"expected a codinet.data.Dataset, got {shown(dataset)}; load one with codinet.data.load.")
    if not is_printable(dataset.name):
        raise UserError(f"The name of a data set must be printable Unicode text, got {shown(dataset.name)}; rename it.")
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
    """Raise a `UserError` unless class names are unique and can be printed and written as JSON.

    Args:
        names: The class names.
        where: The subject of the error message.
    """
    seen: set[str] = set()
    for name in names:
        if not is_printable(name):
            raise UserError(f"{where} has a class called {shown(name)}; rename it to printable Unicode text.")
        if name in seen:
            raise UserError(f"{where} has the class {shown(name)} more than once; give every class a unique name.")
        seen.add(name)


def is_printable(name: object) -> bool:
    """Return whether a name is text that can be written in tables and JSON."""
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
