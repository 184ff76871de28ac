"""The paper's four test-time augmentations: random crop, horizontal flip, vertical flip, rotation.

Chance is drawn first, on the CPU and for a whole set, and applied later, batch by batch: what an image is
turned into depends on the seed alone, not on batch size or device, so that runs can be set side by side.
Images are normalised: the zeros that crops and rotations bring in are the mean colour.

The paper names the kinds and not their strength: crops are the training's, rotations are uniform in ±15°.
"""

import math
from typing import NamedTuple

import torch
from torch.nn import functional as F

from codinet.data.views import crop_flip

KINDS = ("crop", "horizontal flip", "vertical flip", "rotation")
CROP, HORIZONTAL, VERTICAL, ROTATION = range(4)


class Draws(NamedTuple):
    """One augmentation for each image; of dy, dx and degrees, those that its kind needs are used."""

    kind_B: torch.Tensor  # uint8, a place in KINDS
    dy_B: torch.Tensor  # int64 in 0..2·pad
    dx_B: torch.Tensor
    degrees_B: torch.Tensor  # float32, counter-clockwise

    def at(self, rows: slice, device: torch.device) -> "Draws":
        return Draws(*(column[rows].to(device) for column in self))


def draw(number: int, *, pad: int, seed: int, degrees: float = 15.0) -> Draws:
    """An augmentation for each of `number` images: kinds in equal numbers, in random order."""
    chance = torch.Generator().manual_seed(seed)
    return Draws(
        kind_B=(torch.randperm(number, generator=chance) % len(KINDS)).to(torch.uint8),
        dy_B=torch.randint(0, 2 * pad + 1, (number,), generator=chance),
        dx_B=torch.randint(0, 2 * pad + 1, (number,), generator=chance),
        degrees_B=(2 * torch.rand(number, generator=chance) - 1) * degrees,
    )


def augment(images_BCHW: torch.Tensor, draws: Draws, *, pad: int) -> torch.Tensor:
    """Each image under its own augmentation; the kinds are done one after another, their images together."""
    result_BCHW = images_BCHW.clone()
    rows = [(draws.kind_B == kind).nonzero().flatten() for kind in range(len(KINDS))]
    cropped = rows[CROP]
    result_BCHW[cropped] = crop_flip(
        images_BCHW[cropped],
        dy_B=draws.dy_B[cropped],
        dx_B=draws.dx_B[cropped],
        flip_B=torch.zeros_like(cropped, dtype=torch.bool),
        pad=pad,
    )
    result_BCHW[rows[HORIZONTAL]] = images_BCHW[rows[HORIZONTAL]].flip(3)
    result_BCHW[rows[VERTICAL]] = images_BCHW[rows[VERTICAL]].flip(2)
    if len(rows[ROTATION]):  # sampling a grid of no images is an error
        result_BCHW[rows[ROTATION]] = rotate(images_BCHW[rows[ROTATION]], draws.degrees_B[rows[ROTATION]])
    return result_BCHW


def rotate(images_BCHW: torch.Tensor, degrees_B: torch.Tensor) -> torch.Tensor:
    """Turned counter-clockwise about the centre, bilinear; what comes from outside is zero."""
    height, width = images_BCHW.shape[2:]
    # On the CPU, because angles want float64 and not every device has it.
    radians_B = degrees_B.cpu().double() * (math.pi / 180)
    cos_B, sin_B = radians_B.cos(), radians_B.sin()
    # Grids are in units of half a side, so the off-diagonal entries carry the image's proportions.
    theta_B23 = torch.zeros(len(images_BCHW), 2, 3, dtype=torch.float64)
    theta_B23[:, 0, 0], theta_B23[:, 0, 1] = cos_B, -sin_B * height / width
    theta_B23[:, 1, 0], theta_B23[:, 1, 1] = sin_B * width / height, cos_B
    grid_BHW2 = F.affine_grid(theta_B23, list(images_BCHW.shape), align_corners=False).to(images_BCHW)
    return F.grid_sample(images_BCHW, grid_BHW2, mode="bilinear", padding_mode="zeros", align_corners=False)
