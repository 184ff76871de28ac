"""Random resized crops: a random part of an image, scaled to the size of the network's input.

Randomness is a hash of seed, epoch, image and view instead of a stateful generator. So a view is the same whichever
thread, process or device makes it, and wherever a run is resumed. The boxes follow the rule of Szegedy et al. 2015
(arXiv 1409.4842) as torchvision implements it: an area uniform between `min_area` and 1, a ratio of the sides
log-uniform between 3/4 and 4/3, ten tries, then the largest central box.

`crop_box` is for a thread that decodes one image, `crop_boxes` and `cut` are for a batch of tensors on any device. Both
give the same boxes. Nothing here waits for the device.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

TRIES = 10
DRAWS = 2 * TRIES + 5  # area and ratio of each try, position of the box (2), mirroring, place of a blank square (2)
_DOWN, _ACROSS, _MIRROR, _BLANK = 2 * TRIES, 2 * TRIES + 1, 2 * TRIES + 2, 2 * TRIES + 3
_MIN_RATIO, _MAX_RATIO = 3 / 4, 4 / 3
_LOG_RATIO, _LOG_SPAN = math.log(_MIN_RATIO), math.log(_MAX_RATIO) - math.log(_MIN_RATIO)
_MASK = 2**32 - 1


class Box(NamedTuple):
    """A part of an image in whole pixels."""

    top: int
    left: int
    height: int
    width: int


def hashed_draws(seed: int, epoch: int | torch.Tensor, index_L: torch.Tensor, views: int) -> torch.Tensor:
    """Return random numbers that depend on the arguments alone.

    Args:
        seed: The seed of the run.
        epoch: The epoch, a number or an int64 tensor on the device of the indices: a scalar, or one for each image.
        index_L: The position of each image in the training split, int64.
        views: Views per image, M.

    Returns:
        B×DRAWS numbers in [0, 1), float32, with B = L·M; the views of an image are next to each other. They are the
        same on every device.
    """
    # One product per line stays below 2^63, because the hash keeps 32 bits and multiplies by less than 2^31.
    key_L = _hash(_hash(_hash(torch.full_like(index_L, seed & _MASK)) ^ (epoch & _MASK)) ^ (index_L & _MASK))
    number_D = torch.arange(views * DRAWS, device=index_L.device)
    bits_LD = _hash(key_L[:, None] ^ _hash(number_D + 1))
    return (bits_LD >> 8).float().mul_(2**-24).view(-1, DRAWS)


def _hash(x: torch.Tensor) -> torch.Tensor:
    """A 32-bit mixing function in int64; the constants are from C. Wellons' search for ones with little bias (2018)."""
    x = x & _MASK
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & _MASK
    x = ((x ^ (x >> 15)) * 0x735A2D97) & _MASK
    return x ^ (x >> 15)


def crop_box(draws_D: Sequence[float], height: int, width: int, *, min_area: float) -> Box:
    """Return the box of one view.

    Args:
        draws_D: A row of `hashed_draws`.
        height: Of the image.
        width: Of the image.
        min_area: The smallest area of a box, as a fraction of the image's.
    """
    for k in range(TRIES):
        area = height * width * (min_area + (1 - min_area) * draws_D[2 * k])
        ratio = math.exp(_LOG_RATIO + _LOG_SPAN * draws_D[2 * k + 1])
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return Box(int(draws_D[_DOWN] * (height - h + 1)), int(draws_D[_ACROSS] * (width - w + 1)), h, w)
    w, h = min(width, round(height * _MAX_RATIO)), min(height, round(width / _MIN_RATIO))
    return Box((height - h) // 2, (width - w) // 2, h, w)


def smallest_box(height: int, width: int, *, min_area: float) -> Box:
    """Return a box with sides that no box of `crop_box` is below, but for rounding."""
    side = max(1, int(math.sqrt(height * width * min_area * _MIN_RATIO)))
    return Box(0, 0, min(side, height), min(side, width))


def is_mirrored(draws_D: Sequence[float], *, flip: bool) -> bool:
    """Return whether a view is mirrored: half of them, if `flip`."""
    return flip and draws_D[_MIRROR] < 0.5


def crop_boxes(draws_BD: torch.Tensor, height: int, width: int, *, min_area: float) -> torch.Tensor:
    """Return top, left, height and width of the box of every view, B×4 int64, of images of one size.

    The arguments are those of `crop_box`.
    """
    draws_BD = draws_BD if draws_BD.device.type == "mps" else draws_BD.double()
    area_BT = height * width * (min_area + (1 - min_area) * draws_BD[:, 0 : 2 * TRIES : 2])
    ratio_BT = torch.exp(_LOG_RATIO + _LOG_SPAN * draws_BD[:, 1 : 2 * TRIES : 2])
    w_BT, h_BT = (area_BT * ratio_BT).sqrt().round().long(), (area_BT / ratio_BT).sqrt().round().long()
    valid_BT = (w_BT > 0) & (w_BT <= width) & (h_BT > 0) & (h_BT <= height)
    first_B1 = valid_BT.int().argmax(dim=1, keepdim=True)
    w_B, h_B = w_BT.gather(1, first_B1)[:, 0], h_BT.gather(1, first_B1)[:, 0]
    top_B, left_B = (draws_BD[:, _DOWN] * (height - h_B + 1)).long(), (draws_BD[:, _ACROSS] * (width - w_B + 1)).long()
    w, h = min(width, round(height * _MAX_RATIO)), min(height, round(width / _MIN_RATIO))
    whole_4 = torch.stack([torch.full_like(top_B[0], x) for x in ((height - h) // 2, (width - w) // 2, h, w)])
    return torch.where(valid_BT.any(dim=1)[:, None], torch.stack([top_B, left_B, h_B, w_B], dim=1), whole_4)


def mirrored(draws_BD: torch.Tensor, *, flip: bool) -> torch.Tensor:
    """Return which views are mirrored, B bools."""
    return (draws_BD[:, _MIRROR] < 0.5) & flip


def blank_places(draws_BD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the blank square of every view is, as fractions of height and width."""
    return draws_BD[:, _BLANK], draws_BD[:, _BLANK + 1]


def placing_draws(draws_BD: torch.Tensor) -> torch.Tensor:
    """Return the numbers that place views of a fixed size, 5×B, as `padded_views` takes them."""
    return draws_BD[:, _DOWN:].T


def cut(
    images_LCHW: torch.Tensor, boxes_B4: torch.Tensor, mirror_B: torch.Tensor, size: tuple[int, int]
) -> torch.Tensor:
    """Cut the views out of a batch of images and scale them bilinearly.

    There is no antialiasing, so the images should not be much larger than the views.

    Args:
        images_LCHW: Normalised images.
        boxes_B4: The boxes of `crop_boxes`; B is a multiple of L, and the views of an image are next to each other.
        mirror_B: Which views to mirror.
        size: Height and width of a view.

    Returns:
        The views, B×C×height×width, in the memory format of the images.
    """
    number, _, height, width = images_LCHW.shape
    views = len(boxes_B4) // number
    top_B1, left_B1, h_B1, w_B1 = boxes_B4.to(images_LCHW.dtype).unsqueeze(-1).unbind(1)
    down_H, across_W = (
        (torch.arange(side, device=images_LCHW.device, dtype=images_LCHW.dtype) + 0.5) / side for side in size
    )
    across_BW = torch.where(mirror_B[:, None], 1 - across_W, across_W)
    # grid_sample counts from -1 at the left edge of the first pixel to 1 at the right edge of the last.
    y_BH, x_BW = 2 * (top_B1 + h_B1 * down_H) / height - 1, 2 * (left_B1 + w_B1 * across_BW) / width - 1
    grid_BHW2 = torch.stack(
        [x_BW[:, None, :].expand(-1, size[0], -1), y_BH[:, :, None].expand(-1, -1, size[1])], dim=-1
    )
    # The views of an image are below each other in one grid, so that the image is not copied for each.
    grid_L = grid_BHW2.view(number, views * size[0], size[1], 2)
    cut_L = F.grid_sample(images_LCHW, grid_L, padding_mode="border", align_corners=False)
    return cut_L.unflatten(2, (views, size[0])).movedim(2, 1).flatten(0, 1)
