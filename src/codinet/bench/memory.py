"""The most memory that a call needs beyond what the process held before it.

On CUDA torch counts it. On Linux the kernel does: the peak of resident memory can be reset. Elsewhere nobody
does, and the answer is None. Freed memory that the allocator keeps would hide a call's needs, so it is given
back first.
"""

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_mb(call: Callable[[], object], device: torch.device) -> float | None:
    """Megabytes that one call adds at its highest. The first call tells most: later ones reuse its memory."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return (torch.cuda.max_memory_allocated(device) - before) / 2**20
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        _RESET.write_text("5")
        before = _status("VmRSS")
        call()
        return max(0.0, (_status("VmHWM") - before) / 1024)
    except (OSError, StopIteration):
        call()
        return None


def _status(key: str) -> int:
    """A figure of the process, in kilobytes."""
    return next(int(line.split()[1]) for line in _STATUS.read_text().splitlines() if line.startswith(f"{key}:"))
