"""Triton kernels, shared by training and engines; each has a plain torch twin that it is tested against.

What launches a kernel needs Triton: ask `available` before importing it. `stage_tuning`, `stage_weights` and
`stage_twin` do without. Knows tensors, not networks.
"""

import importlib.util
import os

import torch


def available(device: torch.device) -> bool:
    """Whether Triton's kernels can run there. On the CPU they do in its interpreter, slowly, for tests."""
    if importlib.util.find_spec("triton") is None:
        return False
    return device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
