"""A network with every BatchNorm folded into the convolution before it, as plain functions of tensors.

The engines and the static network they are compared with are made of it: no module calls, activations and sums in
place, channels_last. Blocks of an adopted network keep their own forward, because their contents are unknown; their
BatchNorms stay. Knows nothing of decisions: routers are passed on unchanged.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from torch.nn import functional as F

from codinet.backbones import BasicBlock, Block, Bottleneck, ResNet
from codinet.engines.contract import require_finite
from codinet.engines.conv import Conv, FusedConv
from codinet.model import RoutedNetwork
from codinet.routers import Routers


class FoldedBlock:
    """A block in the parts that skipping needs. `skip` gives x itself wherever the shape stays."""

    in_channels: int
    keeps = False  # whether the shortcut is known to be x itself, so that `run_onto` may be used
    convs: tuple[Conv, ...] = ()  # of the residual, in order
    fused: tuple[FusedConv, ...] = ()  # the same, as they are called

    def skip(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def run(self, x_BCHW: torch.Tensor, shortcut_BCHW: torch.Tensor) -> torch.Tensor:
        """F(x) as a new tensor; x and its shortcut are left as they are."""
        return self.fused[-1].add_relu(self._inner(x_BCHW), shortcut_BCHW)

    def run_onto(self, x_BCHW: torch.Tensor) -> None:
        """F(x) written over x, which is channels_last."""
        self.fused[-1].add_relu_onto(self._inner(x_BCHW), x_BCHW)

    def _inner(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """What the last convolution of the residual sees."""
        for conv in self.fused[:-1]:
            x_BCHW = conv.relu(x_BCHW)
        return x_BCHW


class FoldedBasic(FoldedBlock):
    """Two convolutions; the shortcut subsamples and adds empty channels."""

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

    def skip(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return x_BCHW if self.project is None else self.project(x_BCHW)


class WholeBlock(FoldedBlock):
    """A block that is run as it stands."""

    def __init__(self, block: Block) -> None:
        self.in_channels, self.block = block.in_channels, block

    def skip(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return self.block.shortcut(x_BCHW)

    def run(self, x_BCHW: torch.Tensor, shortcut_BCHW: torch.Tensor) -> torch.Tensor:
        return self.block.run(x_BCHW, shortcut_BCHW)


@dataclass(frozen=True)
class FoldedNetwork:
    """A network's parts, ready to be called in order."""

    stem: Callable[[torch.Tensor], torch.Tensor]
    blocks: Sequence[FoldedBlock]
    head: Callable[[torch.Tensor], torch.Tensor]
    routers: Routers | None

    def start(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """The first block's input, in memory of its own: engines may write into it."""
        x_BCHW = self.stem(images_BCHW.contiguous(memory_format=torch.channels_last))
        same = x_BCHW.untyped_storage().data_ptr() == images_BCHW.untyped_storage().data_ptr()
        return x_BCHW.clone() if same else x_BCHW


def fold(model: RoutedNetwork) -> FoldedNetwork:
    """A folded copy of a network, in evaluation mode; the network itself does not change."""
    require_finite(model)
    model = copy.deepcopy(model).eval()
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch has it, its stubs do not
    blocks = fold_blocks(model)
    if not isinstance(model, ResNet):
        return FoldedNetwork(model.stem, blocks, model.head, model.routers)
    return FoldedNetwork(fold_stem(model), blocks, model.head, model.routers)


def fold_blocks(model: RoutedNetwork) -> list[FoldedBlock]:
    """The blocks of a network in evaluation mode, folded. Blocks that cannot be folded stay part of the network."""
    return [_fold_block(block) for block in model.blocks]


def fold_stem(model: ResNet) -> Callable[[torch.Tensor], torch.Tensor]:
    conv, pool = FusedConv(fold_pair(model.conv1, model.bn1)), model.pool
    if isinstance(pool, nn.Identity):
        return conv.relu
    return lambda images_BCHW: pool(conv.relu(images_BCHW))


def _fold_block(block: Block) -> FoldedBlock:
    # By exact type: a subclass may compute something else.
    if type(block) is BasicBlock:
        return FoldedBasic(block)
    if type(block) is Bottleneck:
        return FoldedBottleneck(block)
    return WholeBlock(block)


def fold_pair(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> Conv:
    """conv, then norm with its running statistics, as one convolution."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert isinstance(conv.padding, tuple)
    # In float64, so that folding adds one rounding and not four.
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
