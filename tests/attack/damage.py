"""Random changes of JSON values, bytes, files and tensors."""

import copy
import json
import math
import os
import random
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 2**31, 2**53 + 1, 2**63, -(2**63), 10**400, 0.5, -0.5, 1e308, -1e308, 5e-324),
    *(math.nan, math.inf, -math.inf, "", "x", "1", "NaN", "\0", "\ud800", "\x1b[31m", "a\nb", "../../x", "$^{", "é×–"),
    *([], {}, [[]], [None], [1, "a"], {"a": 1}, {"": None}, list(range(100)), "a" * 10_000, "@deep", "@deeper"),
]
DEEP = {'"@deep"': 60, '"@deeper"': 100_000}


def text_of(value: Any) -> bytes:
    """JSON, with nesting that Python's own encoder could not write."""
    text = json.dumps(value)
    for word, depth in DEEP.items():
        text = text.replace(word, "[" * depth + "]" * depth)
    return text.encode()


def changed(value: Any, rng: random.Random) -> Any:
    """A JSON value with up to three entries replaced, removed, renamed or moved."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        value = _changed_once(value, rng)
    return value


def _changed_once(value: Any, rng: random.Random) -> Any:
    places: list[tuple[Any, Any]] = []
    waiting = [value] if isinstance(value, dict | list) else []
    while waiting:
        inner = waiting.pop()
        entries = inner.items() if isinstance(inner, dict) else enumerate(inner)
        for key, entry in entries:
            places.append((inner, key))
            if isinstance(entry, dict | list):
                waiting.append(entry)
    if not places or rng.random() < 0.02:
        return copy.deepcopy(rng.choice(ODD))
    inner, key = rng.choice(places)
    kind = rng.randrange(8)
    if kind == 0:
        del inner[key]
    elif kind == 1 and isinstance(inner, dict):
        inner[f"{key}{rng.choice(('', 's', ' '))}"] = inner.pop(key)
    elif kind == 2:
        inner[key] = [inner[key]]
    elif kind == 3:
        inner[key] = str(inner[key])
    elif kind == 4:
        other, place = rng.choice(places)
        with suppress(KeyError, IndexError):
            inner[key] = copy.deepcopy(other[place])
    elif kind == 5 and type(inner[key]) in (int, float):
        with suppress(OverflowError):
            inner[key] = inner[key] * rng.choice((-1, 0, 2, 1e-9, 1e9)) + rng.choice((0, 1, -1))
    else:
        inner[key] = copy.deepcopy(rng.choice(ODD))
    return value


def spoilt(content: bytes, rng: random.Random) -> bytes:
    """Bytes with bits flipped, parts cut out, repeated, zeroed or put in."""
    spoiling = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 5))):
        # Headers are at the beginning, so half of the changes are made there.
        place = rng.randrange(max(1, len(spoiling) if rng.random() < 0.5 else min(len(spoiling), 400)))
        length = rng.choice((1, 1, 2, 8, 100))
        kind = rng.randrange(6)
        if kind == 0 and spoiling:
            spoiling[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del spoiling[place:]
        elif kind == 2:
            del spoiling[place : place + length]
        elif kind == 3:
            spoiling[place:place] = rng.randbytes(length)
        elif kind == 4:
            spoiling[place : place + length] = bytes(length)
        else:
            spoiling[place:place] = spoiling[place : place + length]
    return bytes(spoiling)


def spoilt_tensors(tensors: dict[str, torch.Tensor], rng: random.Random) -> dict[str, torch.Tensor]:
    """Tensors with some of other types, shapes or values, missing, or too many."""
    found = dict(tensors)
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(sorted(found)) if found else "x"
        made = _spoilt_tensor(found.pop(name, torch.zeros(3)), rng)
        if made is not None:
            found[rng.choice((name, name, name, f"{name}2", "é"))] = made.contiguous().clone()
    return found


def _spoilt_tensor(tensor: torch.Tensor, rng: random.Random) -> torch.Tensor | None:
    if tensor.is_complex():
        return None
    odd = rng.choice((math.nan, math.inf, -1, 0, 300, 1e30, 2**40))
    dtype = rng.choice((torch.float16, torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool))
    makers: list[Callable[[], torch.Tensor]] = [
        lambda: tensor.to(dtype),
        lambda: tensor.flatten(),
        lambda: tensor[None],
        lambda: tensor[..., :1],
        lambda: tensor[:0],
        lambda: tensor[1:],
        lambda: tensor.T if tensor.ndim == 2 else tensor.reshape(-1),
        lambda: torch.full(tensor.shape, odd).to(tensor.dtype),
        lambda: _with_one(tensor, odd, rng),
        lambda: _with_one(tensor, odd, rng),
        lambda: torch.zeros((), dtype=tensor.dtype),
        lambda: torch.zeros(0, dtype=dtype),
        lambda: torch.randn(3).to(torch.complex64),
    ]
    try:
        return rng.choice(makers)() if rng.random() < 0.9 else None
    except (RuntimeError, IndexError):
        return None  # a tensor without axes has no first row


def _with_one(tensor: torch.Tensor, value: float, rng: random.Random) -> torch.Tensor:
    flat = tensor.flatten().clone()
    flat[rng.randrange(max(1, len(flat)))] = torch.tensor(value).to(flat.dtype)
    return flat.reshape(tensor.shape)


NUMBERS = [
    *(0, 1, 2, 3, 7, 8, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1),
    *(2**63, 2**64 - 1, 10**30, -1),
]


def damaged(rng: random.Random, content: bytes, other: bytes = b"") -> bytes:
    """The content with one to four changes: bits, bytes, numbers, cuts, repetitions."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        change = rng.randrange(9)
        if change == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif change == 1 and data:
            data[at % len(data)] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        elif change == 2:
            del data[at:]
        elif change == 3:
            del data[at : at + rng.choice([1, 2, 4, 8, 100])]
        elif change == 4:
            data[at:at] = data[at : at + rng.choice([1, 4, 12, 64])] * rng.choice([1, 2, 50])
        elif change == 5:
            data[at : at + 4] = struct.pack(rng.choice("<>") + "I", rng.choice(NUMBERS[:-3]) & 0xFFFFFFFF)
        elif change == 6:
            data[at : at + 2] = struct.pack(rng.choice("<>") + "H", rng.choice(NUMBERS) & 0xFFFF)
        elif change == 7:
            data[at : at + rng.choice([1, 8, 64])] = rng.randbytes(rng.choice([1, 8, 64]))
        else:
            data[at:] = other[rng.randrange(len(other) + 1) :]
    return bytes(data)


def place(rng: random.Random, path: Path, content: bytes, one_in: int = 8) -> None:
    """Write a file, or now and then something else in its place."""
    with suppress(OSError):
        path.unlink()
    odd = rng.randrange(5 * one_in)
    if odd == 0:
        os.mkfifo(path)
    elif odd == 1:
        path.mkdir()
    elif odd == 2:
        path.symlink_to(rng.choice(["nowhere", "/dev/zero", "/dev/null", path.name, "/"]))
    elif odd == 3:
        with socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            server.bind(str(path))
    elif odd == 4:
        with path.open("wb") as file:
            file.write(content)
            file.truncate(rng.choice([0, 1, 2**40]))
    else:
        path.write_bytes(content)
