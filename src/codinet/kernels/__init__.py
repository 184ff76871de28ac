"""Triton kernels for training (`block`) and inference (`network`), each with a reference in plain PyTorch.

Modules that launch a kernel import Triton: call `available` before importing them. `network.network_tuning`,
`network.network_weights` and `network.network_reference` do not import it. Kernels work on tensors and know nothing
of modules.
"""

import importlib.util
import os

import torch


class TooLargeError(RuntimeError):
    """A kernel was not launched because it needs more of a resource, such as shared memory, than the device has."""


def available(device: torch.device) -> bool:
    """Returns whether Triton kernels can run on `device`.

    On the CPU they run in Triton's interpreter, which is slow and meant for tests. It requires TRITON_INTERPRET=1.
    """
    if importlib.util.find_spec("triton") is None:
        return False
    return device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
