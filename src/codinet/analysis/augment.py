"""The paper's four test-time augmentations: random crop, horizontal flip, vertical flip and rotation.

Random parameters are drawn first, on the CPU and for a whole set of images, and applied later in batches. So the
result depends on the seed alone, not on batch size or device. Images are normalised, so crops and rotations fill with
zeros, the mean colour.

The paper does not give the strength of its augmentations. Crops use the padding of training, rotations are uniform in
±15°.
"""

import math
from typing import NamedTuple

import torch
from torch.nn import functional as F

from codinet.data.views import crop_flip

KINDS = ("crop", "horizontal flip", "vertical flip", "rotation")
CROP, HORIZONTAL, VERTICAL, ROTATION = range(4)


class Augmentations(NamedTuple):
    """One augmentation per image. Each kind uses only the parameters it needs."""

    kind_B: torch.Tensor  # uint8, an index into KINDS
    dy_B: torch.Tensor  # int64 in 0..2·pad
    dx_B: torch.Tensor
    degrees_B: torch.Tensor  # float32, counter-clockwise

    def at(self, rows: slice, device: torch.device) -> "Augmentations":
        """Those of some images, on a device."""
        return Augmentations(*(column[rows].to(device) for column in self))


def random_augmentations(number: int, *, pad: int, seed: int, degrees: float = 15.0) -> Augmentations:
    """Draw an augmentation for each of `number` images: each kind equally often, in random order.

    Args:
        number: Number of images.
        pad: Crops shift by up to this many pixels.
        seed: Seed of the draw.
        degrees: Rotations turn by up to this angle in both directions.
    """
    generator = torch.Generator().manual_seed(seed)
    return Augmentations(
        kind_B=(torch.randperm(number, generator=generator) % len(KINDS)).to(torch.uint8),
        dy_B=torch.randint(0, 2 * pad + 1, (number,), generator=generator),
        dx_B=torch.randint(0, 2 * pad + 1, (number,), generator=generator),
        degrees_B=(2 * torch.rand(number, generator=generator) - 1) * degrees,
    )


def augment(images_BCHW: torch.Tensor, augmentations: Augmentations, *, pad: int) -> torch.Tensor:
    """Apply its own augmentation to each image."""
    result_BCHW = images_BCHW.clone()
    rows = [(augmentations.kind_B == kind).nonzero().flatten() for kind in range(len(KINDS))]
    cropped = rows[CROP]
    result_BCHW[cropped] = crop_flip(
        images_BCHW[cropped],
        dy_B=augmentations.dy_B[cropped],
        dx_B=augmentations.dx_B[cropped],
        flip_B=torch.zeros_like(cropped, dtype=torch.bool),
        pad=pad,
    )
    result_BCHW[rows[HORIZONTAL]] = images_BCHW[rows[HORIZONTAL]].flip(3)
    result_BCHW[rows[VERTICAL]] = images_BCHW[rows[VERTICAL]].flip(2)
    if len(rows[ROTATION]):  # grid_sample rejects an empty batch
        result_BCHW[rows[ROTATION]] = rotate(images_BCHW[rows[ROTATION]], augmentations.degrees_B[rows[ROTATION]])
    return result_BCHW


def rotate(images_BCHW: torch.Tensor, degrees_B: torch.Tensor) -> torch.Tensor:
    """Rotate each image counter-clockwise about its centre, with bilinear interpolation and zero padding."""
    height, width = images_BCHW.shape[2:]
    radians_B = degrees_B.cpu().double() * (math.pi / 180)  # on the CPU: not every device has float64
    cos_B, sin_B = radians_B.cos(), radians_B.sin()
    # Grid coordinates are in units of half a side, so the off-diagonal entries need the aspect ratio.
    theta_B23 = torch.zeros(len(images_BCHW), 2, 3, dtype=torch.float64)
    theta_B23[:, 0, 0], theta_B23[:, 0, 1] = cos_B, -sin_B * height / width
    theta_B23[:, 1, 0], theta_B23[:, 1, 1] = sin_B * width / height, cos_B
    grid_BHW2 = F.affine_grid(theta_B23, list(images_BCHW.shape), align_corners=False).to(images_BCHW)
    return F.grid_sample(images_BCHW, grid_BHW2, mode="bilinear", padding_mode="zeros", align_corners=False)
