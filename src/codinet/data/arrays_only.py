"""Reads the python layout's files without trusting them: arrays, dicts, lists, tuples, bytes, text and
integers.

The format can name any function and have it called. Here the few names that array files need map to
stand-ins of our own, made afresh for each mention, and every other name is refused; numpy's own
reconstruction, which a crafted element type can turn against the process, is never reached. Knows nothing
of CIFAR.
"""

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from codinet.errors import UserError
from codinet.files import unreadable


def read_arrays_only(path: Path) -> Any:
    """What the file holds, or a `UserError` naming the file."""
    try:
        content = path.read_bytes()
        _require_modest(content)
        # latin1 is how text written by Python 2 keeps its bytes.
        return _plain(_Reader(io.BytesIO(content), encoding="latin1").load())
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; restore the file or fetch the data again.") from error
    except OSError as error:
        raise unreadable(path, error) from error
    except Exception as error:
        # A damaged or hostile file can raise anything here, and all of it means the same to the user.
        raise UserError(
            f"{path} is damaged or holds more than arrays and lists ({_reason(error)}); fetch the data again."
        ) from error


def _require_modest(content: bytes) -> None:
    """Refuse what makes the reader itself take memory that the file does not have."""
    for opcode, argument, _ in pickletools.genops(content):
        # The place of a remembered value sizes a table, so a small file could ask for gigabytes.
        if opcode.name.endswith("PUT") and int(argument or 0) > len(content):
            raise pickle.UnpicklingError(f"it remembers a value in place {argument}")
        if opcode.name == "BYTEARRAY8":
            raise pickle.UnpicklingError("it holds a bytearray")


class _Dtype:
    """Stands in for numpy.dtype: plain numbers only."""

    __slots__ = ("dtype",)

    def __init__(self, spec: Any) -> None:
        self.dtype = np.dtype(_text(spec))
        if self.dtype.kind not in "biuf":
            raise pickle.UnpicklingError(f"element type {self.dtype} is not a number")

    def __setstate__(self, state: Any) -> None:
        if _text(state[1]) == ">":
            self.dtype = self.dtype.newbyteorder(">")


class _Array:
    """Stands in for numpy.ndarray: bytes, a shape and an element type."""

    __slots__ = ("array",)

    def __setstate__(self, state: Any) -> None:
        _version, shape, kind, columns_first, content = state
        if isinstance(content, str):
            content = content.encode("latin1")
        if not isinstance(kind, _Dtype) or not isinstance(content, bytes):
            raise pickle.UnpicklingError("an array without plain content")
        if len(content) != math.prod(shape) * kind.dtype.itemsize:
            raise pickle.UnpicklingError(f"an array of shape {shape} with {len(content)} bytes")
        flat = np.frombuffer(content, kind.dtype)
        self.array = flat.reshape(shape, order="F" if columns_first else "C")


def _encode(text: str, encoding: str) -> bytes:
    """How a newer pickle of an older protocol writes bytes."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"text encoding {encoding}")
    return text.encode("latin1")


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        stand_in = _STAND_INS.get((module, name))
        if stand_in is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        # Afresh each time: the format can also write attributes onto what it names.
        return stand_in()


_STAND_INS: dict[tuple[str, str], Callable[[], Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): lambda: lambda *_: _Array(),
    ("numpy._core.multiarray", "_reconstruct"): lambda: lambda *_: _Array(),
    ("numpy", "ndarray"): object,
    ("numpy", "dtype"): lambda: lambda spec, *_: _Dtype(spec),
    ("_codecs", "encode"): lambda: lambda text, encoding: _encode(text, encoding),
    ("__builtin__", "bytes"): lambda: lambda: b"",  # how older protocols write no bytes at all
}


def _plain(value: Any) -> Any:
    """The value with stand-ins replaced by arrays; anything unexpected is refused."""
    if isinstance(value, _Array):
        return value.array
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value)
    if value is None or isinstance(value, bytes | str | int):
        return value
    raise pickle.UnpicklingError(f"it holds a {type(value).__name__}")


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
