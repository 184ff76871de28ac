"""Atomic writes, and reads that detect damage.

A file is written to a temporary name, flushed to disk and renamed, so it is either complete or absent. Tensor files are
safetensors, which cannot contain code, and carry a digest of their contents. JSON is strict in both directions: all
numbers are finite, so that every program can read it.
"""

from __future__ import annotations

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
from typing import TYPE_CHECKING, Any, BinaryIO

from codinet.errors import UserError, first_line

if TYPE_CHECKING:
    import torch

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


LOCK = ".lock"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})  # errors that more disk space would solve
_MAX_JSON_BYTES = 16 * 2**20  # our files have a few kilobytes
_MAX_JSON_DEPTH = 50  # nested lists and objects; our files have five levels
_MAX_TENSOR_BYTES = 2**32  # checkpoints of the largest network have 2**29


class DamagedError(UserError):
    """A file whose contents are not what was written."""


def unreadable(path: Path | str, error: OSError) -> UserError:
    """The error for a file that the system cannot read. It is not a `DamagedError`, as the file may be intact."""
    if error.errno in (errno.EACCES, errno.EPERM):
        way_out = "check its permissions"
    elif error.errno == errno.EIO:
        way_out = "check the disk"
    else:
        way_out = "check the path"
    return UserError(f"{path} cannot be read ({error.strerror or error}); {way_out}.")


def open_regular(path: Path | str) -> io.BufferedReader:
    """Opens a regular file for reading. Anything else, such as a named pipe that would block, is an `OSError`."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return open(handle, "rb")
    os.close(handle)
    code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
    raise OSError(code, os.strerror(code) if code == errno.EISDIR else "Not a regular file", str(path))


def read(path: Path, limit: int | None = None) -> bytes:
    """The content of a regular file; `OSError` if there is none, or it has more than `limit` bytes."""
    with open_regular(path) as file:
        if limit is not None and os.fstat(file.fileno()).st_size > limit:
            raise OSError(errno.EFBIG, f"larger than {limit // 2**20} MiB")
        return file.read()


def sha256_of(path: Path) -> str:
    """The SHA-256 digest of a file."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256(content: bytes) -> str:
    """The SHA-256 digest of bytes."""
    return hashlib.sha256(content).hexdigest()


def write(path: Path, content: bytes) -> None:
    """Writes a file atomically. An existing file survives any failure."""
    if not path.name:
        raise UserError(f"Could not write {path}: it is a folder; name a file in it.")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _flush_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        way_out = "free some space" if error.errno in _FULL else "check the path and its permissions"
        raise UserError(
            f"Could not write {path}: {error.strerror or error}; {way_out} or choose another folder "
            "(what was written before is intact)."
        ) from error


def _flush_folder(folder: Path) -> None:
    """Flushes the folder, so that a new name survives a power cut. Not every system supports this."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _open_nonblocking(path: str, flags: int) -> int:
    """Opens without waiting: a named pipe without a reader is an `OSError`."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)


@contextmanager
def lock_folder(folder: Path, refusal: str) -> Iterator[None]:
    """Creates a folder and locks it while the block runs.

    The lock ends with the process, even if it is killed. Child processes do not inherit it, so a worker that outlives a
    killed training does not block the next one.

    Args:
        folder: The folder.
        refusal: Message of the `UserError` if another process holds the lock.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / LOCK, "w", opener=_open_nonblocking)  # noqa: SIM115 - closed below
    except OSError as error:
        raise UserError(f"Cannot write to the folder {folder}: {error.strerror}; choose another --out.") from error
    with lock:
        if fcntl is not None:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise UserError(refusal) from error
                # Otherwise the file system does not support locks; continue without one.
        yield


def remove_leftovers(folder: Path) -> None:
    """Removes temporary files that killed processes left in a folder."""
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
    """Parses strict JSON; `ValueError` for anything else.

    NaN and infinity, integers beyond 64 bits, invalid Unicode and nesting deeper than 50 levels are refused as well:
    our own files never contain them, and they would cause errors later.
    """
    try:
        value = json.loads(content)
    except RecursionError:
        raise ValueError(f"it is nested more than {_MAX_JSON_DEPTH} levels deep") from None
    level, depth = [value], 0
    while level:
        if depth > _MAX_JSON_DEPTH:
            raise ValueError(f"it is nested more than {_MAX_JSON_DEPTH} levels deep")
        level, depth = [inner for one in level for inner in _checked_entries(one)], depth + 1
    return value


def _checked_entries(value: Any) -> list[Any]:
    """The entries and keys of a JSON value; `ValueError` if it is not allowed."""
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
    """Writes indented JSON atomically."""
    write(path, (to_json(content, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """The value in a JSON file; `DamagedError` if it is not JSON."""
    try:
        return parse_json(read(path, _MAX_JSON_BYTES))
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist; is {path.parent} a run folder?") from error
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise DamagedError(f"{path} cannot be read as JSON ({error}); restore it or train again.") from error


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor], about: Any = None) -> None:
    """Writes tensors, a description (JSON) and a digest of both, atomically."""
    write(path, pack_tensors(tensors, about))


def pack_tensors(tensors: Mapping[str, torch.Tensor], about: Any = None) -> bytes:
    """The content of the file that `save_tensors` writes."""
    from safetensors.torch import save

    plain = _unshared({name: _plain(tensor.detach().cpu()) for name, tensor in tensors.items()})
    note = to_json(about, sort_keys=True)
    return _sort_metadata(save(plain, metadata={"about": note, "sha256": _digest(plain, note)}))


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    # A tensor of one element counts as contiguous with any stride.
    return tensor.clone(memory_format=torch.contiguous_format) if tensor.numel() == 1 else tensor.contiguous()


def _unshared(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors, with copies of those that share memory with another one, which safetensors refuses."""
    seen: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return separate


def load_tensors(path: Path, *, foreign: bool = False) -> tuple[dict[str, torch.Tensor], Any]:
    """The tensors and the description of a file by `save_tensors`; `DamagedError` if it is anything else.

    With `foreign`, a safetensors file of another program, which has no digest, is accepted; its description is None.
    """
    missing = "check the path." if foreign else f"is {path.parent} a finished run folder?"
    tensors, metadata = _load_safetensors(path, missing)
    if foreign and "sha256" not in (metadata or {}):
        return tensors, None
    return tensors, _checked_description(tensors, metadata, path)


def parse_tensors(content: bytes, where: str) -> tuple[dict[str, torch.Tensor], Any]:
    """Like `load_tensors` for the content of a file; `where` is its name in errors."""
    with _safetensors_errors(where, ""):
        tensors, metadata = _parse_safetensors(io.BytesIO(content), len(content))
    return tensors, _checked_description(tensors, metadata, where)


def _checked_description(tensors: dict[str, torch.Tensor], metadata: Any, path: Path | str) -> Any:
    """The description in the metadata of a file by `save_tensors`; `DamagedError` unless the checksum matches."""
    if not isinstance(metadata, dict) or not isinstance(metadata.get("about"), str) or "sha256" not in metadata:
        raise DamagedError(f"{path} was not written by codinet: it carries no checksum.")
    if _digest(tensors, metadata["about"]) != metadata["sha256"]:
        raise DamagedError(f"{path} is damaged: its contents do not match its checksum.")
    try:
        return parse_json(metadata["about"])
    except ValueError as error:
        raise DamagedError(f"{path} was not written by codinet: its description is not JSON ({error}).") from error


def load_foreign_tensors(path: Path) -> Any:
    """The content of a file of weights that other programs write: .safetensors, or tensors pickled by torch.save.

    Pickled code is not run: torch refuses everything except tensors and plain containers.
    """
    import torch

    if path.suffix == ".safetensors":
        return _load_safetensors(path, "check the path.")[0]
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > _MAX_TENSOR_BYTES:
                raise ValueError(f"it has more than {_MAX_TENSOR_BYTES} bytes")
            return torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist; check the path.") from error
    except OSError as error:
        raise unreadable(path, error) from error
    except MemoryError as error:
        raise _too_large(path) from error
    except Exception as error:  # from the unpickler and the archive
        raise DamagedError(f"{path} is damaged or does not hold only tensors ({first_line(error)}).") from error


def _load_safetensors(path: Path, missing: str) -> tuple[dict[str, torch.Tensor], Any]:
    """The tensors and the metadata of a safetensors file; `missing` is advice if there is none."""
    with _safetensors_errors(path, missing), open_regular(path) as file:
        return _parse_safetensors(file, os.fstat(file.fileno()).st_size)


def _parse_safetensors(file: BinaryIO, size: int) -> tuple[dict[str, torch.Tensor], Any]:
    from safetensors.torch import load as parse_tensors

    header = _read_header(file, size)
    file.seek(0)
    return parse_tensors(file.read()), header.get("__metadata__")


@contextmanager
def _safetensors_errors(path: Path | str, missing: str) -> Iterator[None]:
    """Turn every error of reading a safetensors file into a `UserError` that names the file."""
    from safetensors import SafetensorError

    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist; {missing}") from error
    except OSError as error:
        raise unreadable(path, error) from error
    except MemoryError as error:
        raise _too_large(path) from error
    except KeyError as error:  # a dtype that torch lacks
        raise DamagedError(f"{path} holds tensors of the unknown type {error}.") from error
    except (ValueError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        raise DamagedError(f"{path} is damaged or not a safetensors file ({first_line(error)}).") from error


def _too_large(path: Path | str) -> UserError:
    return UserError(f"{path} is too large for the memory of this machine; use a machine with more.")


def _read_header(file: BinaryIO, size: int) -> dict[str, Any]:
    """The header of a safetensors file; `ValueError` unless it matches the size of the file.

    It is checked before the rest is read, because a sparse file can be arbitrarily large.
    """
    length = int.from_bytes(file.read(8), "little")
    if length > min(size - 8, _MAX_JSON_BYTES) or size > _MAX_TENSOR_BYTES:
        raise ValueError(f"its header would have {length} bytes and the file has {size}")
    header = parse_json(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    parts = [entry.get("data_offsets") for name, entry in header.items() if name != "__metadata__"]
    if max((end for _, end in parts), default=0) != size - 8 - length:
        raise ValueError("its header does not describe a file of this size")
    return header


def _sort_metadata(content: bytes) -> bytes:
    """Sorts the metadata, whose order is random, so that equal contents give equal files."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start at multiples of eight
    return len(text).to_bytes(8, "little") + text + content[start:]


def _digest(tensors: Mapping[str, torch.Tensor], note: str) -> str:
    import torch

    digest = hashlib.sha256(note.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        # A uint8 view, because numpy has no bfloat16.
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
