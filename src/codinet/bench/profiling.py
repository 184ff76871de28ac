"""Memory and profile of a call: its peak memory, the time of its kernels, and the fraction that convolutions take."""

import ctypes
import gc
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

# Read when the profiler is first used; otherwise its library logs to stderr.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
# Words in the names of convolution kernels: cuDNN's, CUTLASS's and ours. `sm90_` and the like are cuDNN's prefixes.
_KERNELS = ("conv", "cudnn", "implicit_gemm", "xmma", "wgrad", "dgrad", "fprop")
_ARCHITECTURES = ("sm80_", "sm86_", "sm89_", "sm90_", "sm100_")
_NOT_CONVOLUTIONS = ("bn_fw", "bn_bw", "batchnorm", "batch_norm", "nchwtonhwc", "nhwctonchw")  # also cuDNN's


def peak_mb(call: Callable[[], object], device: torch.device) -> float | None:
    """The memory that a call needs beyond what the process had before, in megabytes.

    torch counts it on CUDA. On Linux the kernel does: the peak of resident memory can be reset. Memory that was freed
    but is kept by the allocator would hide a call's needs, so it is released first. Later calls reuse the memory of the
    first one, so measure the first.

    Args:
        call: What to measure; it is called once.
        device: Where it computes.

    Returns:
        Megabytes; None on other systems.
    """
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
    """An entry of the process status, in kilobytes."""
    return next(int(line.split()[1]) for line in _STATUS.read_text().splitlines() if line.startswith(f"{key}:"))


def operation_times(call: Callable[[], object], device: torch.device) -> dict[str, float]:
    """The time of everything that a call computes, measured by torch's profiler.

    On CUDA this is the time of kernels; elsewhere the time of operators, without the operators that they call.

    Args:
        call: What to measure; it is called once.
        device: Where it computes.

    Returns:
        Microseconds by name, the longest first. Kernels of one name are added up.
    """
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities, acc_events=True) as recorded:
        call()
        if cuda:
            torch.cuda.synchronize(device)
    times = {event.key: _own_time(event, cuda) for event in recorded.key_averages()}
    return dict(sorted(((name, time) for name, time in times.items() if time > 0), key=lambda item: -item[1]))


def conv_share(times: Mapping[str, float], device: torch.device) -> float | None:
    """The fraction of these times that convolutions take, recognised by their names; None without any times."""
    is_conv, total = is_conv_kernel if device.type == "cuda" else is_conv_operator, sum(times.values())
    return sum(time for name, time in times.items() if is_conv(name)) / total if total else None


def is_conv_kernel(name: str) -> bool:
    """Whether a CUDA kernel of this name computes a convolution or its gradient."""
    name = name.lower()
    if any(word in name for word in _NOT_CONVOLUTIONS):
        return False
    return any(word in name for word in _KERNELS) or name.startswith(_ARCHITECTURES)


def is_conv_operator(name: str) -> bool:
    """Whether an operator of this name is a convolution or its gradient."""
    return "convolution" in name.lower() or "conv2d" in name


def _own_time(event: Any, cuda: bool) -> float:
    if not cuda:
        return float(event.self_cpu_time_total)
    # Operators also report the time of their kernels, which must not be counted twice.
    return float(event.self_device_time_total) if event.device_type.name == "CUDA" else 0.0
