"""Triton kernels, shared by training and engines; each has a plain torch twin that it is tested against.

Modules that launch a kernel need Triton: call `available` before importing them. `stage_tuning`, `stage_weights` and
`stage_twin` do not need it. Knows tensors, not networks.
"""

import importlib.util
import os

import torch


class TooLargeError(RuntimeError):
    """A kernel needs more of a resource, such as shared memory, than the device has. It was not launched."""


def available(device: torch.device) -> bool:
    """Whether Triton's kernels can run there. On the CPU they run in its interpreter, slowly, for tests."""
    if importlib.util.find_spec("triton") is None:
        return False
    return device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
