"""Whether data fits in memory, asked before any of it is decoded.

Knows Linux's figures (the machine's and the container's). Where there are none it answers "unknown", and
nothing is refused.
"""

from pathlib import Path

from codinet.errors import UserError

_SHARE = 0.8  # what one data set may take of what is free now

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Memory that can be had without swapping, or None where the system does not say."""
    answers = [answer for answer in (_machine(), _container()) if answer is not None]
    return min(answers, default=None)


def fits(needed: int) -> bool:
    """Whether `needed` bytes are at most 80 % of what is free; where nobody says, they are."""
    available = available_bytes()
    return available is None or needed <= _SHARE * available


def require_room(needed: int, *, what: str, way_out: str) -> None:
    """A `UserError` if `needed` bytes do not fit."""
    if not fits(needed):
        available = available_bytes() or 0
        raise UserError(
            f"{what} would take {needed / 2**30:.1f} GiB of memory and {available / 2**30:.1f} GiB are free; {way_out}."
        )


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
