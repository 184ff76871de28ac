"""SVHN's cropped digits from `train_32x32.mat` and `test_32x32.mat`, and the reader of MATLAB 5 files.

`extra_32x32.mat` is not used. `read_mat` reads full real arrays of integers and floats, stored plain, in the short form
or compressed. Variables of other kinds (text, cells, structures, sparse or complex arrays) are skipped.

A MATLAB 5 file is a header of 128 bytes followed by elements: a tag (type, bytes) and its content, padded to 8 bytes.
An array is an element of elements: flags, dimensions, name, values.
"""

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from codinet.data.catalogue import KNOWN
from codinet.data.dataset import Dataset, Split
from codinet.data.free_memory import read_file, require_memory
from codinet.errors import UserError, first_line
from codinet.files import unreadable

_Order = Literal["<", ">"]
_HEADER = 128
_MATRIX, _COMPRESSED = 14, 15
_COMPLEX = 0x08  # in the second byte of the flags
_MAX_DIMENSIONS = 8  # of an array
_SMALL = 2**26  # bytes that any file may unpack to
_MAX_RATIO = 100  # between unpacked arrays and the file; photographs reach 2
# Element types of stored values, and classes of arrays: a class may be stored in a narrower type.
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}


def load_svhn(root: Path) -> Dataset:
    """Load SVHN from a folder of known data sets."""
    known = KNOWN["svhn"]
    folder, layout = known.require(root)
    train_file, test_file = layout.files
    return Dataset(
        name=known.name,
        train=_read_split(folder / train_file.name),
        test=_read_split(folder / test_file.name),
        classes=tuple("0123456789"),
        mean=(111.6, 113.2, 120.6),
        std=(50.5, 51.3, 50.2),
        pad=4,
        flip=False,
    )


def _read_split(path: Path) -> Split:
    hint = KNOWN["svhn"].hint
    if not path.is_file():
        raise UserError(f"{path} is missing; {hint}.")
    arrays = read_mat(path)
    images_HWCN, labels_N1 = arrays.get("X"), arrays.get("y")
    if images_HWCN is None or labels_N1 is None:
        raise UserError(f"{path} has no arrays X and y; {hint}.")
    number = images_HWCN.shape[-1]
    if images_HWCN.dtype != np.uint8 or images_HWCN.shape != (32, 32, 3, number) or number == 0:
        raise UserError(
            f"{path} has X of shape {images_HWCN.shape} and type {images_HWCN.dtype}, "
            f"expected (32, 32, 3, N) bytes; {hint}."
        )
    if labels_N1.size != number:
        raise UserError(f"{path} has {number} images and {labels_N1.size} labels; {hint}.")
    labels_N = labels_N1.reshape(-1)
    if not np.isin(labels_N, np.arange(1, 11)).all():
        raise UserError(f"{path} has labels outside 1 to 10; the file is damaged, {hint}.")
    # In the file, the digit 0 has the label 10.
    digits_N = labels_N.astype(np.int64) % 10
    images_NCHW = np.ascontiguousarray(images_HWCN.transpose(3, 2, 0, 1))
    return Split(torch.from_numpy(images_NCHW), torch.from_numpy(digits_N))


class _DamagedError(Exception):
    """The bytes do not follow the format."""


def read_mat(path: Path) -> dict[str, np.ndarray]:
    """Read the numeric arrays of a MATLAB 5 file, in MATLAB's column order.

    Compressed arrays may take at most 100 times the size of the file, or 64 MiB if that is more.

    Returns:
        The arrays by name. A damaged file is a `UserError`.
    """
    try:
        content = read_file(path)
    except OSError as error:
        raise unreadable(path, error) from error
    if content.startswith(b"MATLAB 7.3"):
        raise UserError(f"{path} is a MATLAB 7.3 file; save it again with `save -v7`.")
    try:
        return _read(content, _Budget(path, len(content)))
    except (_DamagedError, struct.error, zlib.error, ValueError, OverflowError) as error:
        if isinstance(error, UserError):  # which is a ValueError too
            raise
        raise UserError(
            f"{path} is damaged or not a MATLAB 5 file ({first_line(error)}); download it again."
        ) from error


class _Budget:
    """Limits the unpacked bytes, so that a small file cannot fill the memory."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.used = path, 0
        self.limit = max(_SMALL, size * _MAX_RATIO)

    def use(self, size: int) -> None:
        """Count `size` more bytes; raise an error if that is too many."""
        self.used += size
        if self.used > self.limit:
            raise _DamagedError(f"it unpacks to {self.used:,} bytes, expected at most {self.limit:,}")
        require_memory(size, what=str(self.path), hint="free some memory or use a smaller file")


def _read(content: bytes, budget: _Budget) -> dict[str, np.ndarray]:
    order = _byte_order(content)
    arrays = {}
    for kind, body in _elements(memoryview(content)[_HEADER:], order):
        if kind == _COMPRESSED:
            kind, body = _decompress(body, order, budget)
        if kind == _MATRIX:
            named = _array(body, order, budget)
            if named is not None:
                arrays[named[0]] = named[1]
    return arrays


def _byte_order(content: bytes) -> _Order:
    mark = content[126:128]
    if mark not in (b"IM", b"MI"):
        raise _DamagedError("no MATLAB 5 header")
    return "<" if mark == b"IM" else ">"


def _elements(content: memoryview, order: _Order) -> Iterator[tuple[int, memoryview]]:
    """Yield the type and content of each element."""
    at = 0
    while at < len(content):
        if len(content) - at < 8:
            raise _DamagedError("it ends inside a tag")
        kind, size = struct.unpack_from(f"{order}II", content, at)
        if kind >> 16:  # the short form: size and type in one word, followed by the content
            kind, size, start, step = kind & 0xFFFF, kind >> 16, at + 4, 8
            if size > 4:
                raise _DamagedError(f"a short element of {size} bytes")
        else:
            start = at + 8
            step = 8 + (size if kind == _COMPRESSED else -(-size // 8) * 8)
        if start + size > len(content):
            raise _DamagedError(f"it ends inside an element of {size:,} bytes")
        yield kind, content[start : start + size]
        at += step


def _decompress(body: memoryview, order: _Order, budget: _Budget) -> tuple[int, memoryview]:
    """Return the one element inside. Its tag states its size, and no more is unpacked."""
    stream = zlib.decompressobj()
    tag = stream.decompress(body, 8)
    kind, size = struct.unpack(f"{order}II", tag)
    budget.use(size)
    content = stream.decompress(stream.unconsumed_tail, size) if size else b""
    if len(content) != size:
        raise _DamagedError(f"a compressed element of {size:,} bytes unpacks to {len(content):,}")
    return kind, memoryview(content)


def _array(body: memoryview, order: _Order, budget: _Budget) -> tuple[str, np.ndarray] | None:
    """Return name and values, or None for a variable that is not a full real numeric array."""
    elements = _elements(body, order)
    _, flags = _next(elements)
    (word,) = struct.unpack_from(f"{order}I", flags)
    target = _CLASSES.get(word & 0xFF)
    if target is None or (word >> 8) & _COMPLEX:
        return None
    _, dimensions = _next(elements)
    shape = struct.unpack(f"{order}{len(dimensions) // 4}i", dimensions)
    _, name = _next(elements)
    stored, values = _next(elements)
    if stored not in _STORED:
        raise _DamagedError(f"values of unknown type {stored}")
    dtype = np.dtype(_STORED[stored]).newbyteorder(order)
    # Checked first: the product of very many dimensions would take very long.
    if not 1 <= len(shape) <= _MAX_DIMENSIONS:
        raise _DamagedError(f"an array of {len(shape):,} dimensions")
    if min(shape) < 0 or math.prod(shape) * dtype.itemsize != len(values):
        raise _DamagedError(f"an array of shape {shape} with {len(values):,} bytes of values")
    array = np.frombuffer(values, dtype).reshape(shape, order="F")
    if array.dtype == target:
        return bytes(name).decode("latin1"), array
    budget.use(array.size * np.dtype(target).itemsize)
    with np.errstate(invalid="ignore"):
        converted = array.astype(target)
    if converted.dtype.kind in "iu" and not np.array_equal(converted, array):
        raise _DamagedError("values that do not fit the type of their array")
    return bytes(name).decode("latin1"), converted


def _next(elements: Iterator[tuple[int, memoryview]]) -> tuple[int, memoryview]:
    try:
        return next(elements)
    except StopIteration:
        raise _DamagedError("an array is incomplete") from None
