"""Checks that data fits in memory before any of it is read or decoded.

Reads Linux's numbers for the machine and the container, of which every process of torchrun on the machine may use an
equal part. On systems without these numbers nothing is refused.
"""

import os
from pathlib import Path

import torch

from codinet.environment import processes_here
from codinet.errors import UserError
from codinet.files import open_regular

_FRACTION = 0.8  # of the free memory that one data set may use

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Return the memory that this process may use without swapping, or None if the system does not report it."""
    known = [value for value in (_machine(), _container()) if value is not None]
    return min(known) // processes_here() if known else None


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device, or None if it is unknown. Devices other than CUDA share the machine's."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()


def fits(needed: int) -> bool:
    """Return whether `needed` bytes are at most 80 % of the free memory; True if that is unknown."""
    available = available_bytes()
    return available is None or needed <= _FRACTION * available


def require_memory(needed: int, *, what: str, hint: str) -> None:
    """Raise a `UserError` if `needed` bytes do not fit.

    Args:
        needed: Bytes.
        what: The subject of the error message.
        hint: What the user can do.
    """
    if not fits(needed):
        available = available_bytes() or 0
        raise UserError(
            f"{what} would take {needed / 2**30:.1f} GiB of memory and {available / 2**30:.1f} GiB are free; {hint}."
        )


def read_file(path: Path) -> bytes:
    """Return the content of a regular file; `OSError` if there is none, `UserError` if it does not fit in memory."""
    with open_regular(path) as file:
        require_memory(os.fstat(file.fileno()).st_size, what=str(path), hint="use a smaller file")
        return file.read()


def _machine() -> int | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _container() -> int | None:
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = (_CGROUP / "memory.current").read_text().strip()
    except OSError:
        return None
    return None if limit == "max" else max(0, int(limit) - int(used))
