"""Writing files so that nothing is lost, and reading them so that nothing damaged is used.

A file appears whole or not at all: it is written beside its place, flushed to the disk, and renamed. Tensor files are
safetensors (they cannot contain code) and carry a digest of their contents. JSON is strict in both directions: numbers
are finite, so that every program can read it.
"""

import errno
import hashlib
import io
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as pack_tensors

from codinet.errors import UserError, first_line

try:
    import fcntl
except ImportError:  # not every system has it
    fcntl = None  # type: ignore[assignment]


LOCK = ".lock"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})  # errors that more space on the disk would solve
_MOST_JSON = 16 * 2**20  # bytes of a JSON file; ours have a few kilobytes
_DEEPEST_JSON = 50  # levels of lists and objects; ours have five
_MOST_TENSORS = 2**32  # bytes of a tensor file; checkpoints of the largest network have 2**29


class DamagedError(UserError):
    """A file that is not what was written."""


def unreadable(path: Path | str, error: OSError) -> UserError:
    """The error for a file that the system does not let us read. It may be intact, so it is not called damaged."""
    if error.errno in (errno.EACCES, errno.EPERM):
        way_out = "check its permissions"
    elif error.errno == errno.EIO:
        way_out = "check the disk"
    else:
        way_out = "check the path"
    return UserError(f"{path} cannot be read ({error.strerror or error}); {way_out}.")


def open_regular(path: Path | str) -> io.BufferedReader:
    """Open a file for reading; anything but a regular file is an `OSError`, where a named pipe would block."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return open(handle, "rb")
    os.close(handle)
    code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
    raise OSError(code, os.strerror(code) if code == errno.EISDIR else "Not a regular file", str(path))


def read(path: Path, most: int | None = None) -> bytes:
    """The content of a regular file; `OSError` where there is none, or it has more than `most` bytes."""
    with open_regular(path) as file:
        if most is not None and os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"larger than {most // 2**20} MiB")
        return file.read()


def sha256_of(path: Path) -> str:
    """The digest of a file's content."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write(path: Path, content: bytes) -> None:
    """Write a file atomically; an existing file survives any failure."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        _flush_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        way_out = "free some space" if error.errno in _FULL else "check the path and its permissions"
        raise UserError(
            f"Could not write {path}: {error.strerror or error}; {way_out} or choose another folder "
            "(what was written before is intact)."
        ) from error


def _flush_folder(folder: Path) -> None:
    """Flush the folder too: only then does a new name survive a power cut. Not every system can do this."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting: a named pipe that nobody reads is an `OSError`."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)


@contextmanager
def held(folder: Path, refusal: str) -> Iterator[None]:
    """Create and lock the folder; another process that asks for it meanwhile gets a `UserError` with the refusal.

    The lock ends with the process, however it ends. Children do not inherit it: a worker that outlives a killed
    training does not block the next one.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / LOCK, "w", opener=_open_at_once)  # noqa: SIM115 - closed below
    except OSError as error:
        raise UserError(f"Cannot work in the folder {folder}: {error.strerror}; choose another --out.") from error
    with lock:
        if fcntl is not None:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise UserError(refusal) from error
                # Otherwise the file system has no locks, and we go on without one.
        yield


def sweep(folder: Path) -> None:
    """Remove the half-written files that killed processes left in a folder."""
    for leftover in folder.glob(".*.tmp"):
        with suppress(OSError):
            leftover.unlink()


def to_json(content: Any, **layout: Any) -> str:
    """Strict JSON; `layout` holds options of `json.dumps`. NaN, infinity and invalid Unicode are a `UserError`."""
    try:
        text = json.dumps(content, allow_nan=False, **layout)
        text.encode()
    except ValueError as error:
        found = _first_not_finite(content)
        if found is None:
            raise UserError(
                f"The result cannot be written as JSON ({first_line(error)}); rename what is not Unicode."
            ) from error
        raise UserError(
            f"{found[0] or 'The result'} is {found[1]}, and JSON has finite numbers only; check the weights and the "
            "data that it was computed from."
        ) from error
    return text


def _first_not_finite(content: Any, name: str = "") -> tuple[str, float] | None:
    """The name and value of the first number that is NaN or infinite."""
    if isinstance(content, float):
        return None if math.isfinite(content) else (name, content)
    entries: Any = content.items() if isinstance(content, dict) else ()
    entries = enumerate(content) if isinstance(content, list | tuple) else entries
    found = (_first_not_finite(value, f"{name}.{key}" if name else str(key)) for key, value in entries)
    return next(filter(None, found), None)


def parse_json(content: bytes | str) -> Any:
    """The value of strict JSON; `ValueError` for everything else.

    Refused as well: NaN and infinity, integers beyond 64 bits, invalid Unicode, nesting deeper than 50 levels. They are
    never in our own files, and would fail later, where they are used.
    """
    try:
        value = json.loads(content)
    except RecursionError:
        raise ValueError(f"it is nested more than {_DEEPEST_JSON} levels deep") from None
    level, depth = [value], 0
    while level:
        if depth > _DEEPEST_JSON:
            raise ValueError(f"it is nested more than {_DEEPEST_JSON} levels deep")
        level, depth = [inner for one in level for inner in _checked_entries(one)], depth + 1
    return value


def _checked_entries(value: Any) -> list[Any]:
    """What a JSON value contains: entries and keys; `ValueError` for a value that we do not take."""
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, list):
        return value
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"it contains {value}")
    elif isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError("it contains an integer beyond 64 bits")
    return []


def write_json(path: Path, content: Any) -> None:
    """Write JSON atomically, indented for people."""
    write(path, (to_json(content, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """The value in a JSON file; `DamagedError` where it is not JSON."""
    try:
        return parse_json(read(path, _MOST_JSON))
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist; is {path.parent} a run folder?") from error
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise DamagedError(f"{path} cannot be read as JSON ({error}); restore it or train again.") from error


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor], about: Any = None) -> None:
    """Write tensors and a description (JSON), sealed with a digest."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    note = to_json(about, sort_keys=True)
    write(path, _settled(pack_tensors(plain, metadata={"about": note, "sha256": _digest(plain, note)})))


def load_tensors(path: Path) -> tuple[dict[str, torch.Tensor], Any]:
    """The tensors and the description that `save_tensors` wrote; `DamagedError` where the file is anything else."""
    try:
        with open_regular(path) as file:
            header = _read_header(file)
            file.seek(0)
            tensors = parse_tensors(file.read())
        metadata = header.get("__metadata__")
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist; is {path.parent} a finished run folder?") from error
    except OSError as error:
        raise unreadable(path, error) from error
    except MemoryError as error:
        raise UserError(f"{path} is too large for the memory of this machine; use a machine with more.") from error
    except KeyError as error:  # a dtype that torch has not
        raise DamagedError(f"{path} holds tensors of the unknown type {error}.") from error
    except (ValueError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        raise DamagedError(f"{path} is damaged or not a safetensors file ({first_line(error)}).") from error
    if not isinstance(metadata, dict) or not isinstance(metadata.get("about"), str) or "sha256" not in metadata:
        raise DamagedError(f"{path} was not written by codinet: it carries no checksum.")
    if _digest(tensors, metadata["about"]) != metadata["sha256"]:
        raise DamagedError(f"{path} is damaged: its contents do not match its checksum.")
    try:
        return tensors, parse_json(metadata["about"])
    except ValueError as error:
        raise DamagedError(f"{path} was not written by codinet: its description is not JSON ({error}).") from error


def _read_header(file: BinaryIO) -> dict[str, Any]:
    """The header of a safetensors file; `ValueError` unless the file has the size that it says.

    Checked before the rest is read, because a file of any size can be made of nothing but a hole.
    """
    size, length = os.fstat(file.fileno()).st_size, int.from_bytes(file.read(8), "little")
    if length > min(size - 8, _MOST_JSON) or size > _MOST_TENSORS:
        raise ValueError(f"its header would have {length} bytes and the file has {size}")
    header = parse_json(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    parts = [entry.get("data_offsets") for name, entry in header.items() if name != "__metadata__"]
    if max((end for _, end in parts), default=0) != size - 8 - length:
        raise ValueError("its header does not describe a file of this size")
    return header


def _settled(content: bytes) -> bytes:
    """The same file with its metadata sorted (their order is random), so that equal contents give equal files."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start at multiples of eight
    return len(text).to_bytes(8, "little") + text + content[start:]


def _digest(tensors: Mapping[str, torch.Tensor], note: str) -> str:
    digest = hashlib.sha256(note.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        # Bytes are read through a uint8 view because numpy has no bfloat16.
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
