"""Writing files so that nothing is lost, and reading them so that nothing damaged is used.

A file appears whole or not at all: it is written beside its place, flushed to the disk, and renamed. Tensor
files are safetensors (no code can hide in them) and carry a digest of their contents.
"""

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as pack_tensors

from codinet.errors import UserError

try:
    import fcntl
except ImportError:  # not every system has it
    fcntl = None  # type: ignore[assignment]


LOCK = ".lock"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})  # what more room would help against


class DamagedError(UserError):
    """A file that is not what was written."""


def unreadable(path: Path | str, error: OSError) -> UserError:
    """The error for a file that the system does not give. It may be whole, so it is not called damaged."""
    if error.errno in (errno.EACCES, errno.EPERM):
        way_out = "check its permissions"
    elif error.errno == errno.EIO:
        way_out = "check the disk that it lies on"
    else:
        way_out = "check the path"
    return UserError(f"{path} cannot be read ({error.strerror or error}); {way_out}.")


def sha256_of(path: Path) -> str:
    """Of the file as it lies there."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write(path: Path, content: bytes) -> None:
    """Put `content` at `path`, atomically; what was there before survives any failure."""
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
    """A new name is safe from a power cut only once its folder is on the disk too; not every system can do it."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def held(folder: Path, refusal: str) -> Iterator[None]:
    """Make the folder and keep other processes that ask for it out: they get a `UserError` with the refusal.

    The lock goes with the process, however that ends, and children do not inherit it: workers that outlive a killed
    training must not keep it from going on.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("w")
    except OSError as error:
        raise UserError(f"Cannot work in the folder {folder}: {error.strerror}; choose another --out.") from error
    with lock:
        if fcntl is not None:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise UserError(refusal) from error
                # Else the file system has no locks, and nobody can be kept out.
        yield


def sweep(folder: Path) -> None:
    """Remove what writers that were killed left half-written in a folder."""
    for leftover in folder.glob(".*.tmp"):
        with suppress(OSError):
            leftover.unlink()


def write_json(path: Path, content: Any) -> None:
    """Put it at `path`, atomically, as text for people too."""
    write(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """What a JSON file holds; `DamagedError` where it is none."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist; is {path.parent} a run folder?") from error
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise DamagedError(f"{path} cannot be read as JSON ({error}); restore it or train again.") from error


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor], about: Any = None) -> None:
    """Tensors and a JSON-able description, sealed with a digest."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    note = json.dumps(about, sort_keys=True)
    write(path, _settled(pack_tensors(plain, metadata={"about": note, "sha256": _digest(plain, note)})))


def load_tensors(path: Path) -> tuple[dict[str, torch.Tensor], Any]:
    """What `save_tensors` wrote; `DamagedError` where the file is not that."""
    try:
        content = path.read_bytes()
        tensors = parse_tensors(content)
        length = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist; is {path.parent} a finished run folder?") from error
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, SafetensorError) as error:
        raise DamagedError(f"{path} is damaged or no safetensors file ({error}).") from error
    if "sha256" not in metadata or "about" not in metadata:
        raise DamagedError(f"{path} was not written by codinet: it carries no checksum.")
    if _digest(tensors, metadata["about"]) != metadata["sha256"]:
        raise DamagedError(f"{path} is damaged: its contents do not match its checksum.")
    return tensors, json.loads(metadata["about"])


def _settled(content: bytes) -> bytes:
    """The same file with its metadata in order (they come in a random one), so that equal contents are equal files."""
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
