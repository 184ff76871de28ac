"""Blocks of codinet's own networks with every BatchNorm folded into the convolution before it, as functions of tensors.

No module calls, activations and sums in place, channels_last. On the CPU in float32, `FusedConv` is one oneDNN call:
the sum and the activation happen while the result is in cache, and weights are laid out for oneDNN once, at the first
call. These are the operations that torch's own compiler emits. Where torch lacks them, and on other devices, the parts
are computed one by one.
"""

from functools import cache
from typing import NamedTuple, cast

import torch
from torch import nn
from torch.nn import functional as F

from codinet.backbones import BasicBlock, Bottleneck


class Conv(NamedTuple):
    """A convolution with its BatchNorm folded in."""

    weight: torch.Tensor
    bias: torch.Tensor
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    def __call__(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return torch.conv2d(x_BCHW, self.weight, self.bias, self.stride, self.padding)


@cache
def has_fused() -> bool:
    """Whether this build of torch has the oneDNN operations."""
    names = "_convolution_pointwise", "_convolution_pointwise_", "_reorder_convolution_weight"
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)


class FusedConv:
    """A convolution fused with what follows it: conv(x), relu(conv(x)), or relu(conv(x) + other)."""

    def __init__(self, conv: Conv) -> None:
        self.conv = conv
        self.geometry = list(conv.padding), list(conv.stride), [1] * len(conv.stride), 1
        self.fusable = has_fused() and conv.weight.device.type == "cpu" and conv.weight.dtype == torch.float32
        self.reordered: torch.Tensor | None = None
        if self.fusable:
            ops = torch.ops.mkldnn
            self.call, self.call_add = ops._convolution_pointwise.default, ops._convolution_pointwise.binary
            self.call_add_ = ops._convolution_pointwise_.binary

    def plain(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """conv(x)."""
        weight = self._weight(x_BCHW)
        if weight is None:
            return self.conv(x_BCHW)
        return self.call(x_BCHW, weight, self.conv.bias, *self.geometry, "none", [], "")

    def relu(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """relu(conv(x))."""
        weight = self._weight(x_BCHW)
        if weight is None:
            return self.conv(x_BCHW).relu_()
        return self.call(x_BCHW, weight, self.conv.bias, *self.geometry, "relu", [], "")

    def add_relu(self, x_BCHW: torch.Tensor, other_BCHW: torch.Tensor) -> torch.Tensor:
        """relu(conv(x) + other), as a new tensor."""
        weight = self._weight(x_BCHW)
        if weight is None:
            return self.conv(x_BCHW).add_(other_BCHW).relu_()
        return self.call_add(x_BCHW, other_BCHW, weight, self.conv.bias, *self.geometry, "add", 1.0, "relu", [], "")

    def add_relu_(self, x_BCHW: torch.Tensor, other_BCHW: torch.Tensor) -> None:
        """Write relu(conv(x) + other) into `other`, which is channels_last."""
        weight = self._weight(x_BCHW)
        if weight is None:
            other_BCHW.add_(self.conv(x_BCHW)).relu_()
        else:
            self.call_add_(other_BCHW, x_BCHW, weight, self.conv.bias, *self.geometry, "add", 1.0, "relu", [], "")

    def _weight(self, x_BCHW: torch.Tensor) -> torch.Tensor | None:
        """The weight in oneDNN's layout; None where it is not used. torch.compile fuses by itself."""
        if not self.fusable or torch.compiler.is_compiling():
            return None
        if self.reordered is None:
            reorder = torch.ops.mkldnn._reorder_convolution_weight
            self.reordered = reorder(self.conv.weight, *self.geometry, list(x_BCHW.shape))
        return self.reordered


class FoldedBlock:
    """A residual block, split into what a skipped block computes and the rest."""

    in_channels: int
    keeps = False  # whether the shortcut is known to be x itself; required by `run_inplace`
    writes_inplace = True  # whether `run_inplace` takes no copy
    projects_twice = False  # whether `run` computes the shortcut again, which `whole` does not
    convs: tuple[Conv, ...] = ()  # of the residual branch, in order
    fused: tuple[FusedConv, ...] = ()  # the same convolutions, as they are called

    def skip(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """The shortcut: x itself where the shape stays."""
        raise NotImplementedError

    def run(self, x_BCHW: torch.Tensor, shortcut_BCHW: torch.Tensor) -> torch.Tensor:
        """The block's output as a new tensor; x and its shortcut do not change."""
        return self.fused[-1].add_relu(self._inner(x_BCHW), shortcut_BCHW)

    def whole(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """The block's output for any image that runs it, as a new tensor."""
        return self.run(x_BCHW, self.skip(x_BCHW))

    def run_inplace(self, x_BCHW: torch.Tensor) -> None:
        """Write the block's output into x, which is channels_last."""
        self.fused[-1].add_relu_(self._inner(x_BCHW), x_BCHW)

    def _inner(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """The input of the last convolution of the residual branch."""
        for conv in self.fused[:-1]:
            x_BCHW = conv.relu(x_BCHW)
        return x_BCHW


class FoldedBasic(FoldedBlock):
    """Two convolutions; the shortcut subsamples and pads with zero channels."""

    def __init__(self, block: BasicBlock) -> None:
        self.in_channels, self.grown, self.stride = block.in_channels, block.grown, block.stride
        self.before = self.grown // 2
        self.keeps = self.stride == 1 and self.grown == 0
        self.convs = (fold_pair(block.conv1, block.bn1), fold_pair(block.conv2, block.bn2))
        self.fused = tuple(map(FusedConv, self.convs))

    def skip(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        if self.keeps:
            return x_BCHW
        x_BCHW = x_BCHW[:, :, :: self.stride, :: self.stride]
        x_BCHW = F.pad(x_BCHW, (0, 0, 0, 0, self.before, self.grown - self.before))
        return x_BCHW.contiguous(memory_format=torch.channels_last)


class FoldedBottleneck(FoldedBlock):
    """Three convolutions; the shortcut projects where the shape changes."""

    def __init__(self, block: Bottleneck) -> None:
        self.in_channels = block.in_channels
        pairs = ((block.conv1, block.bn1), (block.conv2, block.bn2), (block.conv3, block.bn3))
        self.convs = tuple(fold_pair(conv, norm) for conv, norm in pairs)
        self.fused = tuple(map(FusedConv, self.convs))
        self.project: Conv | None = None
        self.keeps = block.downsample is None
        if block.downsample is not None:
            conv, norm = block.downsample
            self.project = fold_pair(cast(nn.Conv2d, conv), cast(nn.BatchNorm2d, norm))
            self.fused_project = FusedConv(self.project)

    def skip(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return x_BCHW if self.project is None else self.fused_project.plain(x_BCHW)


def fold_pair(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> Conv:
    """A convolution and its BatchNorm, with running statistics, as one convolution."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert isinstance(conv.padding, tuple)
    # In float64, so that folding rounds once and not four times.
    scale_C = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    weight = (conv.weight.double() * scale_C[:, None, None, None]).to(conv.weight.dtype)
    before_C = 0.0 if conv.bias is None else conv.bias.double()
    bias_C = norm.bias.double() + (before_C - norm.running_mean.double()) * scale_C
    return Conv(
        weight.detach().contiguous(memory_format=torch.channels_last),
        bias_C.to(conv.weight.dtype).detach(),
        tuple(conv.stride),
        conv.padding,
    )
