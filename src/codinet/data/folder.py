"""A data set from a folder of the user's own images, one subfolder per class.

Either `DIR/train/<class>/*` with `DIR/test/<class>/*` (or `val`), or `DIR/<class>/*`, of which a fixed, stratified
fifth becomes the test part: files are sorted by name, so the same folder always splits the same way. Files without the
suffix of an image are skipped, and so are folders inside class folders (`nested` lists them). An image that cannot be
read is an error. Images are decoded at once, or when they are used if all of them are too large for memory. Knows
nothing of decoding (`images` does).
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
from codinet.data.channel_stats import channel_stats
from codinet.data.dataset import Dataset, Split, require_names
from codinet.data.holdout import hold_out
from codinet.data.images import DECODING, FORMATS, MAX_PIXELS, Header, is_image_file, is_visible, read_header
from codinet.data.lazy import LazyImages
from codinet.data.memory import fits, require_room
from codinet.data.threads import count_cores, map_in_threads
from codinet.errors import UserError

_TEST_FOLDERS = ("test", "val", "valid", "validation")
_MOST_SIDE = math.isqrt(MAX_PIXELS)
_THREADS = 8  # that decode at once, at most
_SAMPLE = 2**28  # bytes of images that are decoded at once to compute statistics and the digest, about
_LARGE = 2**25  # bytes of an image; smaller ones are never a problem, however many are decoded at once


class _Files(NamedTuple):
    """Image files and the class of each, in a fixed order."""

    paths: list[Path]
    labels: list[int]


def load_folder(folder: Path, *, image_size: int | None = None) -> Dataset:
    """The folder's images, square with sides of `image_size`, or of a size chosen from the images.

    Without `image_size`, images that all have one size keep it; otherwise the side is the median of the
    shorter sides, rounded to a multiple of 32 between 32 and 224. One channel if every image is grey, else
    three.
    """
    if image_size is not None:
        require_whole("the image size", image_size, 1, _MOST_SIDE)
    train, test, classes = _find(folder)
    headers = map_in_threads(read_header, [*train.paths, *test.paths], "Reading image headers")
    height, width = (image_size, image_size) if image_size is not None else _choose_size(headers)
    channels = 1 if all(header.grey for header in headers) else 3
    _require_room_to_decode(headers)
    now = fits(len(headers) * channels * height * width)
    if not now:
        _require_room_for_a_sample(len(headers), channels, height, width)
    train_split = _split(train, channels, (height, width), decode=now)
    mean, std = channel_stats(train_split.images_NCHW)
    return Dataset(
        name=folder.resolve().name,
        train=train_split,
        test=_split(test, channels, (height, width), decode=now),
        classes=classes,
        mean=mean,
        std=std,
        pad=min(height, width) // 8,
        flip=True,
    )


def nested(folder: Path) -> list[Path]:
    """The folders inside a data set's class folders that hold images, which are not read."""
    inner = folder / "train"
    parts = [inner, *_test_folders(folder)[:1]] if inner.is_dir() else [folder]
    classes = [part / name for part in parts for name in _class_names(part, at_least=1)]
    return [deeper for name in classes for deeper in _folders(name) if _holds_images(deeper)]


def _holds_images(folder: Path) -> bool:
    """Whether there is an image at any depth. Links to folders are not followed, for they may form a circle."""
    waiting = [folder]
    while waiting:
        entries = []
        with suppress(OSError), os.scandir(waiting.pop()) as found:
            entries = list(found)
        if any(is_image_file(Path(entry.path)) for entry in entries):
            return True
        waiting += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return False


def _folders(folder: Path) -> list[Path]:
    # `scandir` knows which entries are folders; `iterdir` would ask the system for each.
    with os.scandir(folder) as entries:
        return sorted(Path(entry.path) for entry in entries if _is_folder(entry) and is_visible(Path(entry.path)))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):  # a link to itself
        return entry.is_dir()
    return False


def _require_room_to_decode(headers: Sequence[Header]) -> None:
    """`UserError` if the threads cannot decode the largest images at the same time."""
    largest = max(headers, key=lambda header: header.height * header.width)
    threads = min(_THREADS, count_cores(), len(headers))
    needed = threads * largest.height * largest.width * DECODING
    if needed > _SAMPLE:
        require_room(
            needed,
            what=f"Decoding images of {largest.height}×{largest.width} in {threads} threads",
            way_out="scale the largest images down",
        )


def _require_room_for_a_sample(number: int, channels: int, height: int, width: int) -> None:
    """If not all images fit, a sample must; only very large images are a problem."""
    one = channels * height * width
    if one > _LARGE:
        some = min(number, _SAMPLE // one + 1)
        require_room(
            some * (one + DECODING * height * width),
            what=f"Decoding images of {height}×{width}, {some} at once,",
            way_out="choose a smaller --image-size",
        )


def _find(folder: Path) -> tuple[_Files, _Files, tuple[str, ...]]:
    """Training files, test files and class names."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; check the path.")
    if not (folder / "train").is_dir():
        classes = _class_names(folder)
        everything = _list(folder, classes)
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
    return _list(folder / "train", classes), _list(test_folders[0], classes, having=test_classes), classes


def _test_folders(folder: Path) -> list[Path]:
    """Those that exist; the first is the test part."""
    return [folder / name for name in _TEST_FOLDERS if (folder / name).is_dir()]


def _class_names(folder: Path, *, at_least: int = 2) -> tuple[str, ...]:
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and is_visible(entry))
    if not names:
        raise UserError(f"{folder} has no class folders; put each class's images in a folder of its own.")
    if len(names) < at_least:
        raise UserError(f"{folder} has one class folder only ({names[0]}); a classifier needs at least two.")
    require_names(names, str(folder))
    return tuple(names)


def _list(folder: Path, classes: Sequence[str], *, having: Sequence[str] | None = None) -> _Files:
    paths, labels = [], []
    for label, name in enumerate(classes):
        if having is not None and name not in having:
            continue
        found = sorted(filter(is_image_file, (folder / name).iterdir()))
        if not found:
            inside = " (folders inside it are not read)" if _folders(folder / name) else ""
            raise UserError(
                f"the class folder {folder / name} has no image{inside}; add some ({', '.join(FORMATS)}) or remove it."
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
