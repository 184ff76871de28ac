"""Reads pickles without executing them: arrays, dicts, lists, tuples, bytes, text and integers only.

A pickle is a program for a small stack machine that can call any function, so Python's own reader is never used. This
module interprets the few instructions that the files of CIFAR's python layout need and refuses all others. A value that
is used twice is stored once, dict keys are text, bytes or integers, and integers are short, so a small file cannot take
much time or memory.
"""

import math
import pickletools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from codinet.data.free_memory import read_file
from codinet.errors import UserError, first_line
from codinet.files import unreadable

_MAX_INSTRUCTIONS = 1_000_000  # the largest official file has about 200,000
_MAX_INTEGER = 512  # bits
_MAX_DIMENSIONS = 8  # of an array
_MAX_ARGUMENTS = 3  # of a call
_MARK = object()

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_INTEGERS = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4")
_TEXTS = ("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8")
_LITERALS = frozenset((*_INTEGERS, *_TEXTS, "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"))


class _RefusedError(Exception):
    """The file is damaged or contains something that this module does not read."""


def read_pickle(path: Path) -> Any:
    """Return the value in a pickle file; raise a `UserError` if it is damaged or contains anything else."""
    try:
        return _interpret(read_file(path))
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; restore the file or download the data again.") from error
    except OSError as error:
        raise unreadable(path, error) from error
    except UserError:
        raise
    except Exception as error:
        # A damaged file can raise any exception.
        raise UserError(
            f"{path} is damaged or contains more than arrays and lists ({first_line(error)[:120]}); download it again."
        ) from error


def _interpret(content: bytes) -> Any:
    """Run the pickle program and return its result."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    created = 0  # bytes in arrays and results of calls

    def take(count: int) -> list[Any]:
        if count > len(stack):
            raise _RefusedError("a value is missing")
        values = stack[len(stack) - count :]
        del stack[len(stack) - count :]
        return [_finished(value) for value in values]

    def take_to_mark() -> list[Any]:
        count = next(offset for offset, value in enumerate(reversed(stack)) if value is _MARK)
        values = take(count)
        stack.pop()
        return values

    program: Iterable[tuple[Any, Any, Any]] = pickletools.genops(content)
    for number, (opcode, argument, _) in enumerate(program):
        if number == _MAX_INSTRUCTIONS:
            raise _RefusedError(f"more than {_MAX_INSTRUCTIONS:,} instructions")
        if created > 2 * len(content):  # older protocols write bytes as text, so they count twice
            raise _RefusedError("more bytes in arrays than in the file")
        name = opcode.name
        if name in _LITERALS:
            if isinstance(argument, int) and argument.bit_length() > _MAX_INTEGER:
                raise _RefusedError(f"an integer of {argument.bit_length():,} bits")
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            stack.append(tuple(take(int(name[-1]))))
        elif name == "TUPLE":
            stack.append(tuple(take_to_mark()))
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name == "LIST":
            stack.append(_extended([], take_to_mark()))
        elif name in ("APPEND", "APPENDS"):
            items = take(1) if name == "APPEND" else take_to_mark()
            _extended(stack[-1], items)
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "DICT":
            stack.append(_updated({}, take_to_mark()))
        elif name in ("SETITEM", "SETITEMS"):
            entries = take(2) if name == "SETITEM" else take_to_mark()
            _updated(stack[-1], entries)
        elif name == "GLOBAL":
            stack.append(_find(*argument.split(" ", 1)))
        elif name == "STACK_GLOBAL":
            stack.append(_find(*take(2)))
        elif name == "REDUCE":
            function, arguments = take(2)
            if not isinstance(function, _Function) or not isinstance(arguments, tuple):
                raise _RefusedError("a call of something that is not a function")
            if len(arguments) > _MAX_ARGUMENTS:
                raise _RefusedError(f"a call with {len(arguments):,} arguments")
            stack.append(function.call(*arguments))
            created += len(stack[-1]) if isinstance(stack[-1], bytes) else 0
        elif name == "BUILD":
            (state,) = take(1)
            if not isinstance(stack[-1], _Array | _Dtype):
                raise _RefusedError("attributes of something that is not an array")
            created += stack[-1].set_state(state)
        elif name == "STOP":
            (result,) = take(len(stack))
            return _plain(result)
        elif name not in ("PROTO", "FRAME"):
            raise _RefusedError(f"the instruction {name}")
    raise _RefusedError("no end")


class _Function:
    """One of our functions, which replaces the function that the file names."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call


class _Dtype:
    """Replaces numpy.dtype: plain numbers only."""

    def __init__(self, spec: Any, *_: Any) -> None:
        text = spec.decode("latin1") if isinstance(spec, bytes) else spec
        if not re.fullmatch(r"[biuf]\d\d?", text):
            raise _RefusedError(f"elements of type {text[:20]}, not numbers")
        self.dtype = np.dtype(text)

    def set_state(self, state: Any) -> int:
        """Set the byte order. Returns the bytes used: 0."""
        if state[1] in (">", b">"):
            self.dtype = self.dtype.newbyteorder(">")
        return 0


class _Array:
    """Replaces numpy.ndarray: bytes, a shape and an element type."""

    def __init__(self, *_: Any) -> None:
        self.array: np.ndarray | None = None

    def set_state(self, state: Any) -> int:
        """Set shape, type and content. Returns the bytes used."""
        _version, shape, kind, columns_first, content = state
        if isinstance(content, str):
            content = content.encode("latin1")
        if not isinstance(kind, _Dtype) or not isinstance(content, bytes):
            raise _RefusedError("an array without plain content")
        # Sides are checked one by one first: the product of many large numbers would take very long.
        if len(shape) > _MAX_DIMENSIONS or not all(type(side) is int and 0 <= side < 2**48 for side in shape):
            raise _RefusedError("an array of an impossible shape")
        if math.prod(shape) * kind.dtype.itemsize != len(content):
            raise _RefusedError(f"an array of shape {shape} with {len(content):,} bytes")
        self.array = np.frombuffer(content, kind.dtype).reshape(shape, order="F" if columns_first else "C")
        return self.array.nbytes


def _encode(text: str, encoding: str) -> bytes:
    """Return bytes from text, as older protocols write them."""
    if encoding not in ("latin1", "latin-1"):
        raise _RefusedError("text in an unknown encoding")
    return text.encode("latin1")


_FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): lambda: b"",  # how older protocols write empty bytes
}


def _find(module: Any, name: Any) -> _Function:
    if not isinstance(module, str) or not isinstance(name, str):
        raise _RefusedError("a function without a name")
    if (module, name) not in _FUNCTIONS:
        raise _RefusedError(f"it uses {module}.{name}")
    return _Function(_FUNCTIONS[module, name])


def _finished(value: Any) -> Any:
    """Return a value that becomes part of another one; arrays must be complete by then."""
    if value is _MARK or (isinstance(value, _Array) and value.array is None):
        raise _RefusedError("an incomplete value")
    return value.array if isinstance(value, _Array) else value


def _plain(value: Any) -> Any:
    if isinstance(value, _Dtype | _Function):
        raise _RefusedError("a type or a function")
    return value


def _extended(target: Any, items: list[Any]) -> list[Any]:
    if type(target) is not list:
        raise _RefusedError("an item for something that is not a list")
    target.extend(map(_plain, items))
    return target


def _updated(target: Any, entries: list[Any]) -> dict[Any, Any]:
    if type(target) is not dict or len(entries) % 2:
        raise _RefusedError("an entry for something that is not a dict")
    for key, value in zip(entries[::2], entries[1::2], strict=True):
        # Tuples are refused: hashing one that contains another twice, which contains another twice, takes forever.
        if not isinstance(key, str | bytes | int):
            raise _RefusedError(f"a {type(key).__name__} as the key of a dict")
        target[key] = _plain(value)
    return target
