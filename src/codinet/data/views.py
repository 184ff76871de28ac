"""Normalisation and random views (crops, mirrors and blank squares) of a whole batch.

Pure functions of tensors on any device: no Python loop over images and no synchronisation with the host, so they can be
captured in a CUDA graph. Random numbers come from the device's global torch generator. Arguments are checked where this
needs no synchronisation.

Memory: `normalise` keeps its input's memory format. Crops are channels_last (BCHW in shape, BHWC in memory), because
the gather writes the channels of a pixel next to each other.

Letters: B images in a batch, L images before their views, C channels, H height, W width.
"""

from typing import Any

import torch
import torch.nn.functional as F

from codinet.checks import MOST_VIEWS, require_flag, require_whole, shown
from codinet.errors import UserError

_MAX_PAD = 4  # times the longest side
_MAX_SIDE = 65_535  # of a blank square; images are smaller


def normalise(images_BCHW: torch.Tensor, mean_C: torch.Tensor, std_C: torch.Tensor) -> torch.Tensor:
    """Return the images as float32, with mean 0 and standard deviation 1 in each channel.

    Args:
        images_BCHW: Bytes or floats from 0 to 255.
        mean_C: The mean of each channel, from 0 to 255, on the device of the images.
        std_C: The standard deviation of each channel.
    """
    _require_images(images_BCHW, bytes_too=True)
    for name, values_C in (("mean", mean_C), ("std", std_C)):
        _require_vector(f"the {name}", values_C, images_BCHW.shape[1], "channels", images_BCHW.device)
    return (images_BCHW.float() - mean_C.float()[:, None, None]) / std_C.float()[:, None, None]


def crop_flip(
    images_BCHW: torch.Tensor,
    *,
    dy_B: torch.Tensor,
    dx_B: torch.Tensor,
    flip_B: torch.Tensor,
    pad: int,
) -> torch.Tensor:
    """Pad each image with zeros, crop it to its own size, and mirror it where `flip_B` is true.

    Args:
        images_BCHW: Normalised images; zero is the mean colour.
        dy_B: The first row of each crop in the padded image, from 0 to 2·pad. `pad` keeps the image in place.
        dx_B: The first column of each crop, likewise.
        flip_B: Which images to mirror.
        pad: Zeros on each side.
    """
    _require_images(images_BCHW)
    require_whole("pad", pad, 0, _MAX_PAD * max(images_BCHW.shape[2:]))
    for name, values_B in (("dy_B", dy_B), ("dx_B", dx_B), ("flip_B", flip_B)):
        _require_vector(name, values_B, len(images_BCHW), "images", images_BCHW.device)
    if flip_B.dtype != torch.bool or dy_B.dtype != torch.int64 or dx_B.dtype != torch.int64:
        raise UserError(
            f"dy_B and dx_B must be torch.int64 and flip_B torch.bool, got {dy_B.dtype}, {dx_B.dtype}, {flip_B.dtype}."
        )
    # On other devices this would synchronise with the host.
    if images_BCHW.device.type == "cpu" and len(images_BCHW):
        low, high = torch.stack([dy_B, dx_B]).aminmax()
        if low < 0 or high > 2 * pad:
            raise UserError(f"offsets must be from 0 to {2 * pad} (twice the pad), got {int(low)} to {int(high)}.")
    index_B = torch.arange(len(images_BCHW), device=images_BCHW.device)
    return _cut(images_BCHW, index_B, dy_B, dx_B, flip_B, pad)


def random_views(images_LCHW: torch.Tensor, views: int, *, pad: int, flip: bool, blank: int = 0) -> torch.Tensor:
    """Create `views` independent random views of each image.

    Args:
        images_LCHW: Normalised images; zero is the mean colour.
        views: Views per image.
        pad: Zeros on each side before a random crop.
        flip: Whether to mirror half of the views.
        blank: The side of a square around a random pixel that is set to zero in each view, clipped at the edges.

    Returns:
        The views, those of one image next to each other: rows i·views to i·views+views-1 show image i.
    """
    _require_images(images_LCHW)
    require_whole("views", views, 1, MOST_VIEWS)
    require_whole("pad", pad, 0, _MAX_PAD * max(images_LCHW.shape[2:]))
    require_whole("blank", blank, 0, _MAX_SIDE)
    require_flag("flip", flip)
    # One draw for all: a compiler may change the order of several draws, and with it the result of a seed.
    draws_DB = torch.rand(5 if blank else 3, len(images_LCHW) * views, device=images_LCHW.device)
    return padded_views(images_LCHW, draws_DB, pad=pad, flip=flip, blank=blank)


def padded_views(
    images_LCHW: torch.Tensor, draws_DB: torch.Tensor, *, pad: int, flip: bool, blank: int = 0
) -> torch.Tensor:
    """Create the views that are given by numbers in [0, 1).

    Args:
        images_LCHW: Normalised images; zero is the mean colour.
        draws_DB: For each view: the row and the column of the crop, whether it is mirrored, and, with `blank`, the row
            and the column of the square. B is a multiple of L, and the views of an image are next to each other.
        pad: Zeros on each side before the crop.
        flip: Whether to mirror half of the views.
        blank: The side of the square; 0 is off.
    """
    views = draws_DB.shape[1] // max(1, len(images_LCHW))
    index_B = torch.arange(draws_DB.shape[1], device=images_LCHW.device).div(max(1, views), rounding_mode="floor")
    down_B, across_B, side_B = draws_DB[:3]
    dy_B, dx_B = _choice(down_B, 2 * pad + 1), _choice(across_B, 2 * pad + 1)
    flip_B = side_B < (0.5 if flip else 0.0)
    views_BCHW = _cut(images_LCHW, index_B, dy_B, dx_B, flip_B, pad)
    return blank_squares(views_BCHW, draws_DB[3], draws_DB[4], side=blank) if blank else views_BCHW


def blank_squares(
    images_BCHW: torch.Tensor, down_B: torch.Tensor, across_B: torch.Tensor, *, side: int
) -> torch.Tensor:
    """Set a square around a pixel of each image to zero; the pixel is given by fractions of height and width."""
    places = zip((down_B, across_B), images_BCHW.shape[2:], strict=True)
    top_B, left_B = (_choice(at_B, size) - side // 2 for at_B, size in places)
    return blank_square(images_BCHW, top_B=top_B, left_B=left_B, side=side)


def _choice(chance_B: torch.Tensor, number: int) -> torch.Tensor:
    """Return an integer from 0 to number - 1 for each random number in [0, 1)."""
    return (chance_B * number).long().clamp(max=number - 1)  # a product may be rounded up to `number`


def blank_square(images_BCHW: torch.Tensor, *, top_B: torch.Tensor, left_B: torch.Tensor, side: int) -> torch.Tensor:
    """Set a square in each image to zero, the mean colour. Its first row is `top_B`, its first column `left_B`."""
    _require_images(images_BCHW)
    require_whole("side", side, 0, _MAX_SIDE)
    for name, values_B in (("top_B", top_B), ("left_B", left_B)):
        _require_vector(name, values_B, len(images_BCHW), "images", images_BCHW.device)
    height, width = images_BCHW.shape[2:]
    rows_BH = torch.arange(height, device=images_BCHW.device) - top_B[:, None]
    columns_BW = torch.arange(width, device=images_BCHW.device) - left_B[:, None]
    down_BH, across_BW = ((at >= 0) & (at < side) for at in (rows_BH, columns_BW))
    # A product, because `masked_fill` would change the memory format.
    return images_BCHW * ~(down_BH[:, None, :, None] & across_BW[:, None, None, :])


def _cut(
    images_LCHW: torch.Tensor,
    index_B: torch.Tensor,
    dy_B: torch.Tensor,
    dx_B: torch.Tensor,
    flip_B: torch.Tensor,
    pad: int,
) -> torch.Tensor:
    """Crop row b of the result from image index_B[b]; the views of an image use one padded copy."""
    height, width = images_LCHW.shape[2:]
    across_W = torch.arange(width, device=images_LCHW.device)
    down_H = torch.arange(height, device=images_LCHW.device)
    rows_BH = dy_B[:, None] + down_H
    columns_BW = dx_B[:, None] + torch.where(flip_B[:, None], width - 1 - across_W, across_W)
    padded_LCHW = F.pad(images_LCHW, (pad, pad, pad, pad))
    # Index tensors on both sides of a slice put the axis of the slice, the channels, last.
    cut_BHWC = padded_LCHW[index_B[:, None, None], :, rows_BH[:, :, None], columns_BW[:, None, :]]
    return cut_BHWC.permute(0, 3, 1, 2)


def _require_images(images_BCHW: Any, *, bytes_too: bool = False) -> None:
    if not isinstance(images_BCHW, torch.Tensor):
        raise UserError(f"images must be a tensor, got {shown(images_BCHW)}.")
    kind_fits = images_BCHW.is_floating_point() or (bytes_too and images_BCHW.dtype == torch.uint8)
    if images_BCHW.dim() != 4 or 0 in images_BCHW.shape[1:] or not kind_fits:
        kind = "bytes or floats" if bytes_too else "normalised floats"
        raise UserError(
            f"images must be {kind} of shape (B, C, H, W), got {images_BCHW.dtype} of shape {tuple(images_BCHW.shape)}."
        )


def _require_vector(name: str, values: Any, length: int, of: str, device: torch.device) -> None:
    if not isinstance(values, torch.Tensor):
        raise UserError(f"{name} must be a tensor, got {shown(values)}.")
    if values.shape != (length,):
        raise UserError(
            f"{name} must have shape ({length},), one value for each of the {of}, got {tuple(values.shape)}."
        )
    if values.device != device:
        raise UserError(f"{name} is on {values.device} and the images on {device}; move them to the same device.")
