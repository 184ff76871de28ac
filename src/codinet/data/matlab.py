"""Numeric arrays out of a MATLAB 5 file (what MATLAB 5 to 7 save by default), and nothing else.

Reads full real arrays of integers and floats, stored plain, in the short form or compressed. Variables of
other kinds (text, cells, structures, sparse or complex arrays) are skipped. Knows nothing of SVHN.

A file is a header of 128 bytes and then elements: a tag (type, bytes) and its content, padded to 8 bytes.
An array is an element of elements: flags, dimensions, name, values.
"""

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from codinet.data.memory import read_file, require_room
from codinet.errors import UserError, first_line
from codinet.files import unreadable

_Order = Literal["<", ">"]
_HEADER = 128
_MATRIX, _COMPRESSED = 14, 15
_COMPLEX = 0x08  # in the second byte of the flags
_MOST_SIDES = 8  # of an array
_MOST_OF_SMALL = 2**26  # bytes that any file may unpack to
_MOST_RATIO = 100  # between unpacked arrays and the file; photographs reach 2
# Element types of stored values, and classes of arrays: a class may be stored in a narrower type.
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASSES = {
    6: "f8",
    7: "f4",
    8: "i1",
    9: "u1",
    10: "i2",
    11: "u2",
    12: "i4",
    13: "u4",
    14: "i8",
    15: "u8",
}


class _DamagedError(Exception):
    """The bytes do not follow the format."""


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Every numeric array in the file by name, in MATLAB's column order; `UserError` if it is damaged.

    Compressed arrays may take at most 100 times the size of the file, or 64 MiB if that is more.
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
        raise UserError(f"{path} is damaged or not a MATLAB 5 file ({first_line(error)}); fetch it again.") from error


class _Budget:
    """Counts the bytes that are unpacked, so that a small file cannot fill the memory."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.spent = path, 0
        self.most = max(_MOST_OF_SMALL, size * _MOST_RATIO)

    def spend(self, size: int) -> None:
        """Refuse to unpack `size` more bytes if that is too many."""
        self.spent += size
        if self.spent > self.most:
            raise _DamagedError(f"it unpacks to {self.spent:,} bytes, expected at most {self.most:,}")
        require_room(size, what=str(self.path), way_out="free some memory or use a smaller file")


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
    """(type, content) of each element, one after another."""
    at = 0
    while at < len(content):
        if len(content) - at < 8:
            raise _DamagedError("it ends inside a tag")
        kind, size = struct.unpack_from(f"{order}II", content, at)
        if kind >> 16:  # the short form: size and type share a word and the content sits in the tag
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
    """The one element inside; its tag states its size, and no more is unpacked."""
    stream = zlib.decompressobj()
    tag = stream.decompress(body, 8)
    kind, size = struct.unpack(f"{order}II", tag)
    budget.spend(size)
    content = stream.decompress(stream.unconsumed_tail, size) if size else b""
    if len(content) != size:
        raise _DamagedError(f"a compressed element of {size:,} bytes unpacks to {len(content):,}")
    return kind, memoryview(content)


def _array(body: memoryview, order: _Order, budget: _Budget) -> tuple[str, np.ndarray] | None:
    """(name, values), or None for a variable that is not a full real numeric array."""
    parts = _elements(body, order)
    _, flags = _next(parts)
    (word,) = struct.unpack_from(f"{order}I", flags)
    wanted = _CLASSES.get(word & 0xFF)
    if wanted is None or (word >> 8) & _COMPLEX:
        return None
    _, dimensions = _next(parts)
    shape = struct.unpack(f"{order}{len(dimensions) // 4}i", dimensions)
    _, name = _next(parts)
    stored, values = _next(parts)
    if stored not in _STORED:
        raise _DamagedError(f"values of unknown type {stored}")
    dtype = np.dtype(_STORED[stored]).newbyteorder(order)
    # Counted first: the product of very many sides would take very long.
    if not 1 <= len(shape) <= _MOST_SIDES:
        raise _DamagedError(f"an array of {len(shape):,} dimensions")
    if min(shape) < 0 or math.prod(shape) * dtype.itemsize != len(values):
        raise _DamagedError(f"an array of shape {shape} with {len(values):,} bytes of values")
    array = np.frombuffer(values, dtype).reshape(shape, order="F")
    if array.dtype == wanted:
        return bytes(name).decode("latin1"), array
    budget.spend(array.size * np.dtype(wanted).itemsize)
    with np.errstate(invalid="ignore"):
        converted = array.astype(wanted)
    if converted.dtype.kind in "iu" and not np.array_equal(converted, array):
        raise _DamagedError("values that do not fit the type of their array")
    return bytes(name).decode("latin1"), converted


def _next(parts: Iterator[tuple[int, memoryview]]) -> tuple[int, memoryview]:
    try:
        return next(parts)
    except StopIteration:
        raise _DamagedError("an array lacks a part") from None
