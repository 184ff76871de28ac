"""Tile sizes of the training kernels.

Feature maps are stored as B×H×W×C. A convolution of 16 channels is too narrow to fill the tensor cores, so two
neighbouring output pixels of a row are computed together. The pair reads four adjacent input pixels, and for each of
the three input rows the 3×3 convolution becomes one product of [pairs × 4C] with a banded [4C × 2C] weight matrix. A
third of that matrix is zeros, which costs less than the larger product gains. At 64 channels single pixels fill the
tensor cores.
"""

from dataclasses import dataclass

WIDTHS = (16, 32, 64)  # channels that the kernels support


@dataclass(frozen=True)
class Tiles:
    """Sizes for blocks of one width. All are powers of two."""

    pair: int  # output pixels computed together: 1 or 2
    images: int  # images per program
    rows: int  # output rows per program
    warps: int
    weight_pair: int  # as above, for the weight gradient, whose programs process all rows
    weight_images: int
    weight_warps: int


def choose(channels: int, height: int, width: int) -> Tiles:
    """Returns the sizes that were fastest on an H200. `python -m tools.tune_tiles` measures them."""
    if channels == 16:
        return Tiles(2, _images(64, 2, width), min(height, 16), 4, 2, _images(64, 2, width), 4)
    if channels == 32:
        return Tiles(1, _images(64, 1, width), min(height, 16), 4, 2, _images(64, 2, width), 8)
    return Tiles(1, _images(32, 1, width), min(height, 8), 4, 1, _images(64, 1, width), 8)


def _images(lines: int, pair: int, width: int) -> int:
    """Returns the number of images that give a matrix product this many lines."""
    return max(1, lines * pair // width)


def fits(channels: int, height: int, width: int) -> bool:
    """Returns whether the kernels support feature maps of this shape."""
    return channels in WIDTHS and height in (8, 16, 32, 64) and width in (8, 16, 32, 64)
