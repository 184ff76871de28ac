"""A convolution with its BatchNorm folded in, and the same with the activation and the sum that follow it.

On the CPU in float32 `FusedConv` is one call of oneDNN: the sum and the activation happen while the result is in
cache, and weights are laid out for oneDNN once, at the first call, instead of at every one. The operations are those
that torch's own compiler calls; where a build of torch lacks them, and on other devices, the parts are computed one
by one. Knows nothing of blocks.
"""

from functools import cache
from typing import NamedTuple

import torch


class Conv(NamedTuple):
    """A convolution and the BatchNorm that followed it."""

    weight: torch.Tensor
    bias: torch.Tensor
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    def __call__(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return torch.conv2d(x_BCHW, self.weight, self.bias, self.stride, self.padding)


@cache
def has_fused() -> bool:
    """Whether this build of torch has the operations."""
    names = "_convolution_pointwise", "_convolution_pointwise_", "_reorder_convolution_weight"
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)


class FusedConv:
    """relu(conv(x)), or relu(conv(x) + other)."""

    def __init__(self, conv: Conv) -> None:
        self.conv = conv
        self.geometry = list(conv.padding), list(conv.stride), [1] * len(conv.stride), 1
        self.fusable = has_fused() and conv.weight.device.type == "cpu" and conv.weight.dtype == torch.float32
        self.laid_out: torch.Tensor | None = None
        if self.fusable:
            ops = torch.ops.mkldnn
            self.call, self.call_add = ops._convolution_pointwise.default, ops._convolution_pointwise.binary
            self.call_onto = ops._convolution_pointwise_.binary

    def relu(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        weight = self._weight(x_BCHW)
        if weight is None:
            return self.conv(x_BCHW).relu_()
        return self.call(x_BCHW, weight, self.conv.bias, *self.geometry, "relu", [], "")

    def add_relu(self, x_BCHW: torch.Tensor, other_BCHW: torch.Tensor) -> torch.Tensor:
        """As a new tensor."""
        weight = self._weight(x_BCHW)
        if weight is None:
            return self.conv(x_BCHW).add_(other_BCHW).relu_()
        return self.call_add(x_BCHW, other_BCHW, weight, self.conv.bias, *self.geometry, "add", 1.0, "relu", [], "")

    def add_relu_onto(self, x_BCHW: torch.Tensor, other_BCHW: torch.Tensor) -> None:
        """Written over `other`, which is channels_last."""
        weight = self._weight(x_BCHW)
        if weight is None:
            other_BCHW.add_(self.conv(x_BCHW)).relu_()
        else:
            self.call_onto(other_BCHW, x_BCHW, weight, self.conv.bias, *self.geometry, "add", 1.0, "relu", [], "")

    def _weight(self, x_BCHW: torch.Tensor) -> torch.Tensor | None:
        """The weight as oneDNN wants it, or None where it cannot be used: a compiler fuses by itself."""
        if not self.fusable or torch.compiler.is_compiling():
            return None
        if self.laid_out is None:
            layout = torch.ops.mkldnn._reorder_convolution_weight
            self.laid_out = layout(self.conv.weight, *self.geometry, list(x_BCHW.shape))
        return self.laid_out
