"""Residual networks without routing: blocks with their shortcuts, stems and heads.

A block is F(x) = relu(residual(x) + shortcut(x)). Skipping it leaves shortcut(x), which is x itself if the shape does
not change. A network has groups of blocks of one width, `layer1` … `layerS`. Parameter names are torchvision's, so its
state dicts load.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.nn import functional as F

from codinet.checks import LARGEST_SIDE, require_choice, require_kind, require_whole, shown
from codinet.errors import UserError

StrideOn = Literal["3x3", "1x1"]
MOST_CLASSES = 1_000_000


def require_stride_on(value: Any) -> None:
    """Requires the name of the convolution of a bottleneck that has the stride."""
    require_choice("stride_on", value, get_args(StrideOn))


def _require_sizes(in_channels: Any, width: Any, stride: Any, stride_on: Any) -> None:
    require_whole("in_channels", in_channels, 1, LARGEST_SIDE)
    require_whole("width", width, 1, LARGEST_SIDE)
    require_whole("stride", stride, 1, LARGEST_SIDE)
    require_stride_on(stride_on)


class Block(nn.Module):
    """A residual block, split into the two parts that routing needs: shortcut and residual."""

    in_channels: int

    def shortcut(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """The output of a skipped block."""
        raise NotImplementedError

    def residual(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """What the block adds to its shortcut."""
        raise NotImplementedError

    def run(self, x_BCHW: torch.Tensor, shortcut_BCHW: torch.Tensor) -> torch.Tensor:
        """F(x), for a shortcut that is already computed."""
        return F.relu(self.residual(x_BCHW) + shortcut_BCHW)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return self.run(x_BCHW, self.shortcut(x_BCHW))


class BasicBlock(Block):
    """Two 3×3 convolutions. The shortcut has no parameters (option A of the ResNet paper).

    Args:
        in_channels: Channels of the input.
        width: Channels of the output, at least `in_channels`.
        stride: Stride of the first convolution and the shortcut.
        stride_on: Not used; the argument matches `Bottleneck`.
        inner: Channels between the convolutions; by default `width`.
    """

    expansion = 1

    def __init__(
        self, in_channels: int, width: int, stride: int, stride_on: StrideOn, inner: int | None = None
    ) -> None:
        super().__init__()
        _require_sizes(in_channels, width, stride, stride_on)
        inner = width if inner is None else inner
        require_whole("inner", inner, 1, LARGEST_SIDE)
        if width < in_channels:
            raise UserError(f"width must be at least in_channels ({in_channels}), got {width}.")
        self.in_channels, self.grown, self.stride = in_channels, width - in_channels, stride
        self.conv1 = nn.Conv2d(in_channels, inner, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def shortcut(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        if self.stride == 1 and self.grown == 0:
            return x_BCHW
        before = self.grown // 2
        x_BCHW = x_BCHW[:, :, :: self.stride, :: self.stride]
        return F.pad(x_BCHW, (0, 0, 0, 0, before, self.grown - before))

    def residual(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x_BCHW)))))


class Bottleneck(Block):
    """1×1, 3×3 and 1×1 convolutions. The shortcut is a projection if the shape changes.

    Args:
        in_channels: Channels of the input.
        width: Channels of the inner convolutions; the output has four times as many.
        stride: Stride of the block.
        stride_on: The convolution that has the stride.
    """

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int, stride_on: StrideOn) -> None:
        super().__init__()
        _require_sizes(in_channels, width, stride, stride_on)
        self.in_channels = in_channels
        first, second = (1, stride) if stride_on == "3x3" else (stride, 1)
        out = width * self.expansion
        self.conv1 = nn.Conv2d(in_channels, width, 1, first, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, second, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or in_channels != out:
            self.downsample = nn.Sequential(nn.Conv2d(in_channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def shortcut(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return x_BCHW if self.downsample is None else self.downsample(x_BCHW)

    def convolutions(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """The output of the last convolution, before its BatchNorm."""
        x_BCHW = F.relu(self.bn1(self.conv1(x_BCHW)))
        x_BCHW = F.relu(self.bn2(self.conv2(x_BCHW)))
        return self.conv3(x_BCHW)

    def residual(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return self.bn3(self.convolutions(x_BCHW))


@dataclass(frozen=True)
class Architecture:
    """The shape of a residual network."""

    block: type[BasicBlock] | type[Bottleneck]
    counts: tuple[int, ...]  # blocks of each group
    widths: tuple[int, ...]  # channels of each group, before expansion
    image_size: int  # the size it was published for; others work too
    paper_unit: int  # operations that the paper's "GMACCs" column counts per multiply-add: 1 or 2

    def __post_init__(self) -> None:
        require_choice("block", getattr(self.block, "__name__", None), ("BasicBlock", "Bottleneck"))
        require_kind("counts", self.counts, tuple, "a tuple with the number of blocks of each group")
        require_kind("widths", self.widths, tuple, "a tuple with the channels of each group")
        if len(self.counts) != len(self.widths) or not self.counts:
            found = f"{shown(self.counts)} and {shown(self.widths)}"
            raise UserError(f"counts and widths must have one entry per group, got {found}.")
        for count, width in zip(self.counts, self.widths, strict=True):
            require_whole("The number of blocks of a group", count, 1, LARGEST_SIDE)
            require_whole("The width of a group", width, 1, LARGEST_SIDE)
        require_whole("image_size", self.image_size, 1, LARGEST_SIDE)
        require_whole("paper_unit", self.paper_unit, 1, 2)

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return sum(self.counts)

    def checked_widths(self, widths: Any) -> tuple[int, ...]:
        """Requires numbers of channels for the inside of every block, or none; returns them as a tuple."""
        if not isinstance(widths, tuple | list):
            raise UserError(f"widths must be numbers of channels, got {shown(widths)}.")
        if not widths:
            return ()
        if self.block is not BasicBlock:
            raise UserError("widths apply to networks of basic blocks, such as resnet56; leave them out.")
        if len(widths) != self.blocks:
            raise UserError(f"widths must have one entry for each of the {self.blocks} blocks, got {len(widths)}.")
        for width in widths:
            require_whole("Each of widths", width, 1, LARGEST_SIDE)
        return tuple(widths)


class ResNet(nn.Module):
    """A stem, groups of blocks `layer1` … `layerS`, and a head.

    Args:
        shape: The architecture. Architectures for images below 64 pixels have a 3×3 stem without pooling.
        num_classes: Outputs of the head.
        in_channels: Channels of the images.
        stride_on: The convolution of a bottleneck that has the stride.
        widths: Channels between the convolutions of each basic block; by default those of the architecture.
    """

    def __init__(
        self,
        shape: Architecture,
        *,
        num_classes: int,
        in_channels: int,
        stride_on: StrideOn,
        widths: Sequence[int] = (),
    ) -> None:
        super().__init__()
        require_kind("shape", shape, Architecture, "an Architecture")
        require_whole("num_classes", num_classes, 1, MOST_CLASSES)
        require_whole("in_channels", in_channels, 1, LARGEST_SIDE)
        require_stride_on(stride_on)
        self.shape = shape
        small = shape.image_size < 64
        channels = shape.widths[0]
        self.conv1 = (
            nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
            if small
            else nn.Conv2d(in_channels, channels, 7, stride=2, padding=3, bias=False)
        )
        self.bn1 = nn.BatchNorm2d(channels)
        self.pool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        inner = iter(shape.checked_widths(widths))
        for group, (count, width) in enumerate(zip(shape.counts, shape.widths, strict=True)):
            blocks = []
            for position in range(count):
                stride = 2 if group > 0 and position == 0 else 1
                blocks.append(shape.block(channels, width, stride, stride_on, *islice(inner, 1)))
                channels = width * shape.block.expansion
            self.add_module(f"layer{group + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def stem(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """From images to the input of the first block."""
        return self.pool(F.relu(self.bn1(self.conv1(images_BCHW))))

    @property
    def blocks(self) -> Sequence[Block]:
        """Every block, in order."""
        groups = [getattr(self, f"layer{group + 1}") for group in range(len(self.shape.counts))]
        return [block for group in groups for block in group]

    def head(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """From the output of the last block to logits."""
        return self.fc(x_BCHW.mean(dim=(2, 3)))


def _small(depth: int, widening: int = 1) -> Architecture:
    widths = tuple(widening * width for width in (16, 32, 64))
    return Architecture(BasicBlock, ((depth - 2) // 6,) * 3, widths, image_size=32, paper_unit=2)


# 14, 26 and 62 are static baselines: 0.38 and 0.8 of the cost of ResNet-32, and 0.55 of that of ResNet-110. 32x2 costs
# about as much as ResNet-110. 32x4 is a teacher.
ARCHITECTURES: dict[str, Architecture] = {
    **{f"resnet{depth}": _small(depth) for depth in (14, 20, 26, 32, 44, 56, 62, 74, 110)},
    **{f"resnet32x{widening}": _small(32, widening) for widening in (2, 4)},
    "resnet50": Architecture(Bottleneck, (3, 4, 6, 3), (64, 128, 256, 512), image_size=224, paper_unit=1),
    "resnet101": Architecture(Bottleneck, (3, 4, 23, 3), (64, 128, 256, 512), image_size=224, paper_unit=1),
}
