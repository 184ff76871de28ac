"""CIFAR-10 and CIFAR-100 in either official layout, binary or python.

Any whole number of rows is accepted, so that small excerpts load; `download.verify` checks for the official files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from codinet.data.catalogue import KNOWN, KnownDataset, KnownFile
from codinet.data.dataset import Dataset, Split
from codinet.data.free_memory import read_file
from codinet.data.safe_pickle import read_pickle
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
    """Load CIFAR-10 from a folder of known data sets."""
    return _load(KNOWN["cifar10"], _CIFAR10, root)


def load_cifar100(root: Path) -> Dataset:
    """Load CIFAR-100, with its 100 fine classes, from a folder of known data sets."""
    return _load(KNOWN["cifar100"], _CIFAR100, root)


def _load(known: KnownDataset, variant: _Variant, root: Path) -> Dataset:
    folder, layout = known.require(root)
    for file in layout.files:
        if not (folder / file.name).is_file():
            raise UserError(f"{folder / file.name} is missing; {known.hint}.")
    *train_files, test_file, names_file = layout.files
    binary = test_file.name.endswith(".bin")

    def split(files: Sequence[KnownFile]) -> Split:
        if binary:
            batches = [_read_binary(folder, file, variant, known) for file in files]
        else:
            batches = [_read_python(folder / file.name, variant, known) for file in files]
        images_NCHW = np.concatenate([images for images, _ in batches])
        labels_N = np.concatenate([labels for _, labels in batches])
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


def _read_binary(
    folder: Path, file: KnownFile, variant: _Variant, known: KnownDataset
) -> tuple[np.ndarray, np.ndarray]:
    path, row = folder / file.name, variant.label_bytes + _PIXELS
    content = read_file(path)
    size = len(content)
    if size == 0 or size % row:
        assert file.size is not None
        problem = "is truncated" if size < file.size else "does not end with a whole row"
        raise UserError(
            f"{path} {problem}: it has {size:,} bytes, expected {file.size:,} "
            f"({file.size // row:,} rows of {row:,}); {known.hint}."
        )
    rows = np.frombuffer(content, np.uint8).reshape(-1, row)
    labels_N = rows[:, variant.label_bytes - 1].astype(np.int64)
    _require_range(int(labels_N.min()), int(labels_N.max()), path, variant, known)
    return rows[:, variant.label_bytes :].reshape(-1, 3, 32, 32), labels_N


def _read_python(path: Path, variant: _Variant, known: KnownDataset) -> tuple[np.ndarray, np.ndarray]:
    batch = _with_text_keys(read_pickle(path), path, known)
    images, labels = batch.get("data"), batch.get(variant.label_key)
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != _PIXELS:
        raise UserError(f"{path} has no array `data` of bytes with {_PIXELS:,} columns; {known.hint}.")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise UserError(f"{path} has no list of integers `{variant.label_key}`; {known.hint}.")
    if len(labels) != len(images) or not labels:
        raise UserError(f"{path} has {len(images)} images and {len(labels)} labels; {known.hint}.")
    # Compared as Python integers: one of them may not fit in an array.
    _require_range(min(labels), max(labels), path, variant, known)
    return images.reshape(-1, 3, 32, 32), np.array(labels, np.int64)


def _class_names(path: Path, variant: _Variant, known: KnownDataset, *, binary: bool) -> tuple[str, ...]:
    names: Any
    if binary:
        try:
            lines = read_file(path).decode("utf-8").splitlines()
            names = [line.strip() for line in lines if line.strip()]
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not a list of class names; {known.hint}.") from error
    else:
        names = _with_text_keys(read_pickle(path), path, known).get(variant.names_key)
    if not isinstance(names, list) or len(names) != variant.number:
        found = len(names) if isinstance(names, list) else "no"
        raise UserError(f"{path} has {found} class names, expected {variant.number}; {known.hint}.")
    if not all(isinstance(name, str | bytes) for name in names):
        raise UserError(f"{path} has class names that are not text; {known.hint}.")
    return tuple(_text(name) for name in names)


def _with_text_keys(batch: Any, path: Path, known: KnownDataset) -> dict[str, Any]:
    if not isinstance(batch, dict):
        raise UserError(f"{path} does not contain a batch; {known.hint}.")
    return {_text(key): value for key, value in batch.items()}


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _require_range(low: int, high: int, path: Path, variant: _Variant, known: KnownDataset) -> None:
    if low < 0 or high >= variant.number:
        raise UserError(
            f"{path} has labels from {low} to {high}, expected 0 to {variant.number - 1}; "
            f"the file is damaged, {known.hint}."
        )
