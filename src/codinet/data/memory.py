"""Checks that data fits in memory before any of it is read or decoded.

Reads Linux's numbers for the machine and the container. On systems without them nothing is refused.
"""

import os
from pathlib import Path

from codinet.errors import UserError
from codinet.files import open_regular

_SHARE = 0.8  # of the free memory that one data set may take

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Free memory without swapping, or None if the system does not report it."""
    answers = [answer for answer in (_machine(), _container()) if answer is not None]
    return min(answers, default=None)


def fits(needed: int) -> bool:
    """Whether `needed` bytes are at most 80 % of the free memory; true if that is unknown."""
    available = available_bytes()
    return available is None or needed <= _SHARE * available


def require_room(needed: int, *, what: str, way_out: str) -> None:
    """A `UserError` if `needed` bytes do not fit."""
    if not fits(needed):
        available = available_bytes() or 0
        raise UserError(
            f"{what} would take {needed / 2**30:.1f} GiB of memory and {available / 2**30:.1f} GiB are free; {way_out}."
        )


def read_file(path: Path) -> bytes:
    """The content of a regular file; `OSError` if there is none, `UserError` if it does not fit."""
    with open_regular(path) as file:
        require_room(os.fstat(file.fileno()).st_size, what=str(path), way_out="use a smaller file")
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
