"""A data set from a folder of the user's own images, one subfolder per class.

Images are decoded on loading, or on use if they do not fit in memory together. An image that cannot be read is an
error, or is skipped. Files without an image's suffix are skipped, and so are folders inside class folders.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from codinet.checks import require_number, require_whole
from codinet.config import SMALLEST_CROP
from codinet.data.dataset import (
    DamagedFiles,
    Dataset,
    LazyImages,
    Split,
    channel_stats,
    digest_step,
    image_digest,
    statistics_step,
)
from codinet.data.folder_index import Files, FolderIndex, Sizes
from codinet.data.free_memory import fits, require_memory
from codinet.data.images import DECODING, MAX_PIXELS, read_pixels
from codinet.data.threads import MAX_THREADS, count_cores, map_in_threads
from codinet.errors import UserError

OnDamaged = Literal["stop", "skip"]

_MAX_SIZE = math.isqrt(MAX_PIXELS)
_SAMPLE = 2**28  # bytes of images, about, that are decoded together to compute statistics and the digest
_LARGE = 2**25  # bytes of an image; smaller ones always fit, however many are decoded together


def load_folder(
    folder: Path,
    *,
    image_size: int | None = None,
    crop: float = 1.0,
    whole: bool = False,
    on_damaged: OnDamaged = "stop",
) -> Dataset:
    """Load a folder of images, with one channel if every image is grey, else three.

    Args:
        folder: The folder.
        image_size: The side of the square that images are scaled to. By default, images that all have one size keep
            it; otherwise the side is the median of the shorter sides, rounded to a multiple of 32 from 32 to 224.
        crop: Fraction of the shorter side of an image that is kept, at the centre, before scaling.
        whole: Whether views of a training show any part of an image, so that training images are decoded on use.
        on_damaged: Whether an image that cannot be read is an error or is skipped.
    """
    if image_size is not None:
        require_whole("the image size", image_size, 1, _MAX_SIZE)
    require_number("the crop", crop, SMALLEST_CROP, 1)
    damaged = DamagedFiles() if on_damaged == "skip" else None
    index = FolderIndex(folder, damaged)
    # A million headers take minutes, so they are read only if they decide something.
    sizes = None if image_size is not None and index.large else index.sizes()
    height, width = (image_size, image_size) if image_size is not None else default_size(sizes)
    channels = 1 if index.all_grey() else 3
    if sizes is not None:
        _require_memory_to_decode(sizes)
    number = len(index.train.paths) + len(index.test.paths)
    in_memory = fits(number * channels * height * width)
    if not in_memory:
        _require_memory_for_a_sample(number, channels, height, width)
    square = sizes is not None and bool(sizes.square)
    train, test = (
        _Part(part, LazyImages(part.paths, channels, (height, width), crop, square, damaged))
        for part in (index.train, index.test)
    )
    key = f"{channels}×{height}×{width}, crop {crop:g}, {on_damaged}"
    train_split = train.decoded() if in_memory and not whole else train.split()
    if in_memory:
        test_split = test.decoded_without_damaged()
    else:
        unreadable = index.fact(f"damaged test images of {key}", test.files.paths, test.unreadable) if damaged else []
        test_split = test.without(unreadable).split()
    of_train = train.every(statistics_step(train.images))
    mean, std = index.fact(f"statistics of {key}", of_train, lambda: channel_stats(train_split.images_NCHW))
    digest = None
    if index.large:
        of_both = [*train.every(digest_step(train_split)), *test.every(digest_step(test_split))]
        digest = index.fact(f"digest of {key}", of_both, lambda: image_digest(train_split, test_split))
    return Dataset(
        name=folder.resolve().name,
        train=train_split,
        test=test_split,
        classes=index.classes,
        mean=tuple(mean),
        std=tuple(std),
        pad=min(height, width) // 8,
        flip=True,
        crop=crop,
        sha256=digest,
        damaged=damaged,
    )


class _Part(NamedTuple):
    """The files of a split, and how they are decoded."""

    files: Files
    images: LazyImages

    def split(self) -> Split:
        """The images, decoded on use."""
        return Split(self.images, self.files.labels_N)

    def decoded(self) -> Split:
        """The images in memory. The next image takes the place of a damaged one, as if they were decoded on use."""
        images_NCHW = torch.empty(self.images.shape, dtype=torch.uint8)
        rows_NCHW = images_NCHW.numpy()

        def read(index: int) -> int:
            return self.images.read_into(rows_NCHW[index : index + 1], [index])[0]

        used = map_in_threads(read, range(len(self.images)), "Reading images")
        return Split(images_NCHW, self.files.labels_N[torch.tensor(used)])

    def decoded_without_damaged(self) -> Split:
        """The images in memory, without damaged ones."""
        images_NCHW = torch.empty(self.images.shape, dtype=torch.uint8)
        rows_NCHW = images_NCHW.numpy()

        def read(index: int) -> bool:
            return self._can_read(index, rows_NCHW[index])

        kept = map_in_threads(read, range(len(self.images)), "Reading images")
        if all(kept):
            return Split(images_NCHW, self.files.labels_N)
        kept_N = torch.tensor(kept)
        return Split(images_NCHW[kept_N], self.files.labels_N[kept_N])

    def unreadable(self) -> list[int]:
        """The indices of damaged files. Decodes all of them."""
        found = map_in_threads(self._can_read, range(len(self.images)), "Reading images")
        return [index for index, can_read in enumerate(found) if not can_read]

    def without(self, indices: Sequence[int]) -> "_Part":
        """The same without the files at these indices."""
        if not indices:
            return self
        kept_N = torch.ones(len(self.images), dtype=torch.bool)
        kept_N[torch.tensor(indices)] = False
        index_N = kept_N.nonzero().flatten()
        return _Part(self.files.pick(index_N), self.images.pick(index_N))

    def every(self, step: int) -> Sequence[str]:
        """Every k-th file."""
        return self.files.paths[::step]

    def _can_read(self, index: int, row_CHW: np.ndarray | None = None) -> bool:
        """Decode an image into a row; return whether it can be read. Without `damaged`, it is an error if not."""
        images, path = self.images, self.files.paths[index]
        try:
            pixels_CHW = read_pixels(path, images.channels, images.size, images.crop)
        except UserError as error:
            if images.damaged is None:
                raise
            images.damaged.add(path, str(error))
            return False
        if row_CHW is not None:
            row_CHW[:] = pixels_CHW
        return True


def _require_memory_to_decode(sizes: Sizes) -> None:
    """Raise a `UserError` if the threads cannot decode the largest images at the same time."""
    height, width, threads = sizes.largest_height, sizes.largest_width, min(MAX_THREADS, count_cores())
    needed = threads * height * width * DECODING
    if needed > _SAMPLE:
        require_memory(
            needed,
            what=f"Decoding images of {height}×{width} in {threads} threads",
            hint="scale the largest images down",
        )


def _require_memory_for_a_sample(number: int, channels: int, height: int, width: int) -> None:
    """Raise a `UserError` if a sample of the images does not fit, which happens with very large images only."""
    one = channels * height * width
    if one > _LARGE:
        some = min(number, _SAMPLE // one + 1)
        require_memory(
            some * (one + DECODING * height * width),
            what=f"Decoding images of {height}×{width}, {some} at once,",
            hint="choose a smaller --image-size",
        )


def default_size(sizes: Sizes | None) -> tuple[int, int]:
    """Return the height and width that images of these sizes get by default."""
    assert sizes is not None
    if sizes.height:
        return sizes.height, sizes.width
    side = min(max(32, (sizes.side + 16) // 32 * 32), 224)
    return side, side
