"""How the convolution kernels cut their work: windows of pixels, banded weights, tile sizes.

Feature maps lie in memory as B×H×W×C. A narrow convolution keeps tensor cores idle: 16 channels are a sixteenth of
what they like. So neighbouring output pixels of a row are taken together: a pair reads four neighbouring input pixels,
which lie side by side in memory, and a 3×3 convolution becomes, for each of the three rows it reads, one product of
[pairs × 4C] with a banded [4C × 2C] matrix of the weights. A third of that matrix is zeros, which costs less than the
shapes gain. Wide maps (C = 64) fill the tensor cores by themselves and read pixel by pixel.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@dataclass(frozen=True)
class Tiles:
    """Sizes for one width of block. All are powers of two."""

    pair: int  # output pixels taken together: 2, or 1
    images: int  # images of a program
    rows: int  # output rows of a program
    warps: int
    weight_pair: int  # the same for the weight gradient, whose programs take all rows
    weight_images: int
    weight_warps: int


def choose(channels: int, height: int, width: int) -> Tiles:
    """What was fastest on an H200 for each width, as `tuning` measures it."""
    if channels == 16:
        return Tiles(2, _images(64, 2, width), min(height, 16), 4, 2, _images(64, 2, width), 4)
    if channels == 32:
        return Tiles(1, _images(64, 1, width), min(height, 16), 4, 2, _images(64, 2, width), 8)
    return Tiles(1, _images(32, 1, width), min(height, 8), 4, 1, _images(64, 1, width), 8)


def _images(lines: int, pair: int, width: int) -> int:
    """How many images give a matrix product so many lines."""
    return max(1, lines * pair // width)


def fits(channels: int, height: int, width: int) -> bool:
    """Whether the kernels take maps of this shape."""
    return channels in (16, 32, 64) and height in (8, 16, 32, 64) and width in (8, 16, 32, 64)


def programs(number: int, height: int, tiles: Tiles) -> int:
    """Programs that a convolution over `number` images launches."""
    return triton.cdiv(number, tiles.images) * (height // tiles.rows)


def per_pixel(x_BCHW: torch.Tensor) -> torch.Tensor:
    """The same features with the channels of a pixel side by side."""
    return x_BCHW.contiguous(memory_format=torch.channels_last)


@triton.jit
def activated(x, mask, scale, shift, ACT: tl.constexpr):
    """Features, through the BatchNorm and ReLU before them where ACT; zero outside of the map."""
    if ACT:
        return tl.where(mask, tl.maximum(x.to(tl.float32) * scale + shift, 0.0), 0.0).to(x.dtype)
    return x


@triton.jit
def normalised_gradient(dz, y, mask, a, b, c):
    """Gradient before a BatchNorm from the one after it: a·dz + b·y + c, zero outside of the map."""
    return tl.where(mask, a * dz.to(tl.float32) + (b * y.to(tl.float32) + c), 0.0).to(dz.dtype)
