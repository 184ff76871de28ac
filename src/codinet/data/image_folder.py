"""A data set from a folder of the user's own images, one subfolder per class.

Either `DIR/train/<class>/*` with `DIR/test/<class>/*` (or `val`), or `DIR/<class>/*`, of which a fixed, stratified
fifth becomes the test split: files are sorted by name, so the same folder always splits the same way. Files without an
image's suffix are skipped, and so are folders inside class folders (`ignored_folders` lists them). An image that cannot
be read is an error. Images are decoded on loading, or on use if they do not fit in memory together.
"""

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median_low
from typing import NamedTuple

import torch

from codinet.checks import require_whole
from codinet.data.dataset import Dataset, LazyImages, Split, channel_stats, hold_out, require_names
from codinet.data.free_memory import fits, require_memory
from codinet.data.images import DECODING, FORMATS, MAX_PIXELS, Header, read_header
from codinet.data.threads import MAX_THREADS, count_cores, map_in_threads
from codinet.errors import UserError

SUFFIXES = frozenset(
    [".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm"],
)

_TEST_FOLDERS = ("test", "val", "valid", "validation")
_MAX_SIZE = math.isqrt(MAX_PIXELS)
_SAMPLE = 2**28  # bytes of images, about, that are decoded together to compute statistics and the digest
_LARGE = 2**25  # bytes of an image; smaller ones always fit, however many are decoded together


def is_image_file(path: Path) -> bool:
    """Return whether a path has an image's suffix and is not a folder. Its content is not checked."""
    return path.suffix.lower() in SUFFIXES and is_visible(path) and not path.is_dir()


def is_visible(path: Path) -> bool:
    """Return whether a path is not one of the hidden entries that archivers and file managers create."""
    return not path.name.startswith((".", "__MACOSX"))


class _Files(NamedTuple):
    """Image files and the class of each, in a fixed order."""

    paths: list[Path]
    labels: list[int]


def load_folder(folder: Path, *, image_size: int | None = None) -> Dataset:
    """Load a folder of images, with one channel if every image is grey, else three.

    Args:
        folder: The folder.
        image_size: The side of the square that images are scaled to. By default, images that all have one size keep
            it; otherwise the side is the median of the shorter sides, rounded to a multiple of 32 from 32 to 224.
    """
    if image_size is not None:
        require_whole("the image size", image_size, 1, _MAX_SIZE)
    train, test, classes = _find(folder)
    headers = map_in_threads(read_header, [*train.paths, *test.paths], "Reading image headers")
    height, width = (image_size, image_size) if image_size is not None else _choose_size(headers)
    channels = 1 if all(header.grey for header in headers) else 3
    _require_memory_to_decode(headers)
    in_memory = fits(len(headers) * channels * height * width)
    if not in_memory:
        _require_memory_for_a_sample(len(headers), channels, height, width)
    train_split = _split(train, channels, (height, width), decode=in_memory)
    mean, std = channel_stats(train_split.images_NCHW)
    return Dataset(
        name=folder.resolve().name,
        train=train_split,
        test=_split(test, channels, (height, width), decode=in_memory),
        classes=classes,
        mean=mean,
        std=std,
        pad=min(height, width) // 8,
        flip=True,
    )


class FolderSummary(NamedTuple):
    """The content of an image folder, without its pixels."""

    train: int  # number of training images
    channels: int


def summarise_folder(folder: Path, *, most: int) -> FolderSummary | None:
    """Return the number of training images and their channels; None, without reading any, if there are `most` or more.

    Only the headers of images are read.
    """
    train, test, _ = _find(folder)
    if len(train.paths) >= most:
        return None
    headers = map_in_threads(read_header, [*train.paths, *test.paths], "Reading image headers")
    return FolderSummary(len(train.paths), 1 if all(header.grey for header in headers) else 3)


def ignored_folders(folder: Path) -> list[Path]:
    """Return the folders inside class folders that contain images, which are not read."""
    train = folder / "train"
    splits = [train, *_test_folders(folder)[:1]] if train.is_dir() else [folder]
    classes = [split / name for split in splits for name in _class_names(split, at_least=1)]
    return [nested for name in classes for nested in _folders(name) if _contains_images(nested)]


def _contains_images(folder: Path) -> bool:
    """Return whether there is an image at any depth. Links to folders are not followed: they may form a cycle."""
    queue = [folder]
    while queue:
        entries = []
        with suppress(OSError), os.scandir(queue.pop()) as found:
            entries = list(found)
        if any(is_image_file(Path(entry.path)) for entry in entries):
            return True
        queue += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return False


def _folders(folder: Path) -> list[Path]:
    # `scandir` knows which entries are folders; `iterdir` would need a system call for each.
    with os.scandir(folder) as entries:
        return sorted(Path(entry.path) for entry in entries if _is_folder(entry) and is_visible(Path(entry.path)))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):  # a link to itself
        return entry.is_dir()
    return False


def _require_memory_to_decode(headers: Sequence[Header]) -> None:
    """Raise a `UserError` if the threads cannot decode the largest images at the same time."""
    largest = max(headers, key=lambda header: header.height * header.width)
    threads = min(MAX_THREADS, count_cores(), len(headers))
    needed = threads * largest.height * largest.width * DECODING
    if needed > _SAMPLE:
        require_memory(
            needed,
            what=f"Decoding images of {largest.height}×{largest.width} in {threads} threads",
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


def _find(folder: Path) -> tuple[_Files, _Files, tuple[str, ...]]:
    """Return the training files, the test files and the class names."""
    if not folder.is_dir():
        raise UserError(f"The folder {folder} does not exist; check the path.")
    if not (folder / "train").is_dir():
        classes = _class_names(folder)
        everything = _list_files(folder, classes)
        labels_N = torch.tensor(everything.labels)
        train, test = hold_out(labels_N, max(1, round(len(labels_N) / 5)))
        return _pick(everything, train), _pick(everything, test), classes
    test_folders = _test_folders(folder)
    if not test_folders:
        raise UserError(f"{folder} has a train folder but no test folder; add {folder / 'test'}.")
    classes = _class_names(folder / "train")
    test_classes = _class_names(test_folders[0], at_least=1)
    unknown = sorted(set(test_classes) - set(classes))
    if unknown:
        raise UserError(
            f"{test_folders[0]} has a class {unknown[0]!r} that {folder / 'train'} lacks; "
            "give both the same class folders."
        )
    return _list_files(folder / "train", classes), _list_files(test_folders[0], classes, having=test_classes), classes


def _test_folders(folder: Path) -> list[Path]:
    """Return the test folders that exist; the first is used."""
    return [folder / name for name in _TEST_FOLDERS if (folder / name).is_dir()]


def _class_names(folder: Path, *, at_least: int = 2) -> tuple[str, ...]:
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and is_visible(entry))
    if not names:
        raise UserError(f"{folder} has no class folders; put the images of each class in a separate folder.")
    if len(names) < at_least:
        raise UserError(f"{folder} has one class folder only ({names[0]}); a classifier needs at least two.")
    require_names(names, str(folder))
    return tuple(names)


def _list_files(folder: Path, classes: Sequence[str], *, having: Sequence[str] | None = None) -> _Files:
    paths, labels = [], []
    for label, name in enumerate(classes):
        if having is not None and name not in having:
            continue
        found = sorted(filter(is_image_file, (folder / name).iterdir()))
        if not found:
            inside = " (folders inside it are not read)" if _folders(folder / name) else ""
            raise UserError(
                f"The class folder {folder / name} has no images{inside}; add some ({', '.join(FORMATS)}) or remove it."
            )
        paths += found
        labels += [label] * len(found)
    return _Files(paths, labels)


def _pick(files: _Files, indices: torch.Tensor) -> _Files:
    chosen = indices.tolist()
    return _Files([files.paths[index] for index in chosen], [files.labels[index] for index in chosen])


def _choose_size(headers: Sequence[Header]) -> tuple[int, int]:
    sizes = {(header.height, header.width) for header in headers}
    if len(sizes) == 1:
        return sizes.pop()
    middle = median_low(min(header.height, header.width) for header in headers)
    side = min(max(32, (middle + 16) // 32 * 32), 224)
    return side, side


def _split(files: _Files, channels: int, size: tuple[int, int], *, decode: bool) -> Split:
    images = LazyImages([str(path) for path in files.paths], channels, size)
    return Split(images[:] if decode else images, torch.tensor(files.labels, dtype=torch.int64))
