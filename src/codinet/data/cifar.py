"""CIFAR-10 and CIFAR-100 from either official layout, binary or python, found under a root folder.

Any whole number of rows is accepted, so small excerpts load; `catalogue.verify` checks whether files are the official
ones. Knows nothing of downloads or of augmentation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from codinet.data.arrays_only import read_arrays_only
from codinet.data.dataset import Dataset, Split
from codinet.data.known import Known, KnownFile
from codinet.data.memory import read_file
from codinet.data.official import KNOWN
from codinet.errors import UserError

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class _Variant:
    """What differs between the two data sets."""

    label_bytes: int  # per binary row; the last one is the class
    label_key: str  # in a python batch
    names_key: str  # in the python list of names
    number: int  # of classes
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


_CIFAR10 = _Variant(1, "labels", "label_names", 10, (125.3, 123.0, 113.9), (63.0, 62.1, 66.7))
_CIFAR100 = _Variant(2, "fine_labels", "fine_label_names", 100, (129.3, 124.1, 112.4), (68.2, 65.4, 70.4))


def load_cifar10(root: Path) -> Dataset:
    return _load(KNOWN["cifar10"], _CIFAR10, root)


def load_cifar100(root: Path) -> Dataset:
    """CIFAR-100 with its 100 fine classes."""
    return _load(KNOWN["cifar100"], _CIFAR100, root)


def _load(known: Known, variant: _Variant, root: Path) -> Dataset:
    folder, layout = known.found(root)
    for file in layout.files:
        if not (folder / file.name).is_file():
            raise UserError(f"{folder / file.name} is missing; {known.way_out}.")
    *train_files, test_file, names_file = layout.files
    binary = test_file.name.endswith(".bin")

    def split(files: Sequence[KnownFile]) -> Split:
        if binary:
            parts = [_read_binary(folder, file, variant, known) for file in files]
        else:
            parts = [_read_python(folder / file.name, variant, known) for file in files]
        images_NCHW = np.concatenate([images for images, _ in parts])
        labels_N = np.concatenate([labels for _, labels in parts])
        return Split(torch.from_numpy(images_NCHW), torch.from_numpy(labels_N))

    return Dataset(
        name=known.name,
        train=split(train_files),
        test=split([test_file]),
        classes=_class_names(folder / names_file.name, variant, known, binary=binary),
        mean=variant.mean,
        std=variant.std,
        pad=4,
        flip=True,
    )


def _read_binary(folder: Path, file: KnownFile, variant: _Variant, known: Known) -> tuple[np.ndarray, np.ndarray]:
    path, row = folder / file.name, variant.label_bytes + _PIXELS
    content = read_file(path)
    size = len(content)
    if size == 0 or size % row:
        assert file.size is not None
        problem = "is truncated" if size < file.size else "does not end with a whole row"
        raise UserError(
            f"{path} {problem}: it has {size:,} bytes, expected {file.size:,} "
            f"({file.size // row:,} rows of {row:,}); {known.way_out}."
        )
    rows = np.frombuffer(content, np.uint8).reshape(-1, row)
    labels_N = rows[:, variant.label_bytes - 1].astype(np.int64)
    _require_range(labels_N, path, variant, known)
    return rows[:, variant.label_bytes :].reshape(-1, 3, 32, 32), labels_N


def _read_python(path: Path, variant: _Variant, known: Known) -> tuple[np.ndarray, np.ndarray]:
    batch = _with_text_keys(read_arrays_only(path), path, known)
    images, labels = batch.get("data"), batch.get(variant.label_key)
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != _PIXELS:
        raise UserError(f"{path} has no array `data` of bytes with {_PIXELS:,} columns; {known.way_out}.")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise UserError(f"{path} has no list of integers `{variant.label_key}`; {known.way_out}.")
    if len(labels) != len(images) or not labels:
        raise UserError(f"{path} has {len(images)} images and {len(labels)} labels; {known.way_out}.")
    # Compared as Python integers: the file may hold one that does not fit in an array.
    if min(labels) < 0 or max(labels) >= variant.number:
        raise _out_of_range(min(labels), max(labels), path, variant, known)
    return images.reshape(-1, 3, 32, 32), np.array(labels, np.int64)


def _class_names(path: Path, variant: _Variant, known: Known, *, binary: bool) -> tuple[str, ...]:
    names: Any
    if binary:
        try:
            lines = read_file(path).decode("utf-8").splitlines()
            names = [line.strip() for line in lines if line.strip()]
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not a list of class names; {known.way_out}.") from error
    else:
        names = _with_text_keys(read_arrays_only(path), path, known).get(variant.names_key)
    if not isinstance(names, list) or len(names) != variant.number:
        found = len(names) if isinstance(names, list) else "no"
        raise UserError(f"{path} has {found} class names, expected {variant.number}; {known.way_out}.")
    if not all(isinstance(name, str | bytes) for name in names):
        raise UserError(f"{path} has class names that are not text; {known.way_out}.")
    return tuple(_text(name) for name in names)


def _with_text_keys(batch: Any, path: Path, known: Known) -> dict[str, Any]:
    if not isinstance(batch, dict):
        raise UserError(f"{path} does not hold a batch; {known.way_out}.")
    return {_text(key): value for key, value in batch.items()}


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _require_range(labels_N: np.ndarray, path: Path, variant: _Variant, known: Known) -> None:
    low, high = int(labels_N.min()), int(labels_N.max())
    if low < 0 or high >= variant.number:
        raise _out_of_range(low, high, path, variant, known)


def _out_of_range(low: int, high: int, path: Path, variant: _Variant, known: Known) -> UserError:
    return UserError(
        f"{path} has labels from {low} to {high}, expected 0 to {variant.number - 1}; "
        f"the file is damaged, {known.way_out}."
    )
