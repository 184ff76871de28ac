"""The share of a step's computing time that convolutions take, by torch's profiler.

On CUDA it is time of kernels, told apart by their names. Elsewhere it is the time operators spend themselves,
without what they call. Knows names, not networks.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

# Read when the profiler is first used; otherwise its library tells stderr that it began and stopped.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

# What cuDNN, CUTLASS and our own kernels call convolutions; `sm90_` and its like are cuDNN's prefixes.
_KERNELS = ("conv", "cudnn", "implicit_gemm", "xmma", "wgrad", "dgrad", "fprop")
_ARCHITECTURES = ("sm80_", "sm86_", "sm89_", "sm90_", "sm100_")
_NOT_CONVOLUTIONS = ("bn_fw", "bn_bw", "batchnorm", "batch_norm", "nchwtonhwc", "nhwctonchw")  # cuDNN's too


def conv_share(call: Callable[[], object], device: torch.device) -> float | None:
    """Share of convolutions in one call; None where nothing was recorded."""
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities, acc_events=True) as recorded:
        call()
        if cuda:
            torch.cuda.synchronize(device)
    times = [(event.key, _own_time(event, cuda)) for event in recorded.key_averages()]
    total = sum(time for _, time in times)
    if total <= 0:
        return None
    return sum(time for name, time in times if (is_conv_kernel if cuda else is_conv_operator)(name)) / total


def is_conv_kernel(name: str) -> bool:
    """Whether a CUDA kernel of this name is a convolution's."""
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
    # Operators are credited with their kernels' time as well, which would count it twice.
    return float(event.self_device_time_total) if event.device_type.name == "CUDA" else 0.0
