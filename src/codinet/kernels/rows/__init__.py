"""Kernels for inference on some of the images of a batch, given as a list, and for their routers.

Features are positions × channels in memory (channels_last). A list may end with a spare row, which is behind the last
image and whose content does not matter. A list with a number ends after that many images: programs for the others
do nothing, so one recorded launch serves every number of images. Sums are in float32.
"""

from typing import NamedTuple

import torch


class Listed(NamedTuple):
    """The images that a block runs for."""

    index_R: torch.Tensor
    number: torch.Tensor | None = None  # how many of them count, on the device; None: all
