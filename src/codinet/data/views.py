"""Normalised images and their random crops, mirrors and blanks, a whole batch at a time.

Pure functions of tensors on any device: no Python loop over images and nothing the host has to wait for, so
they can be recorded in a CUDA graph. Randomness comes from the device's global torch generator. Knows
nothing of data sets: the caller passes mean, std, pad, flip and the side of blanks.

Memory: `normalise` keeps its input's memory format. Crops come out channels_last (BCHW in shape, BHWC in
memory), because the gather writes a pixel's channels side by side; `.contiguous()` gives the other order.

Letters: B images in a batch, L images before their views, C channels, H height, W width.
"""

import torch
import torch.nn.functional as F


def normalise(images_BCHW: torch.Tensor, mean_C: torch.Tensor, std_C: torch.Tensor) -> torch.Tensor:
    """Bytes to float32 with, per channel, mean 0 and spread 1."""
    return (images_BCHW.float() - mean_C.float()[:, None, None]) / std_C.float()[:, None, None]


def crop_flip(
    images_BCHW: torch.Tensor,
    *,
    dy_B: torch.Tensor,
    dx_B: torch.Tensor,
    flip_B: torch.Tensor,
    pad: int,
) -> torch.Tensor:
    """Each image padded by `pad` zeros a side, cut to its old size at row dy, column dx, mirrored where flip.

    Offsets are integers in 0..2·pad, and `pad` in both is the image itself. Zero is the mean colour once
    the images are normalised.
    """
    index_B = torch.arange(len(images_BCHW), device=images_BCHW.device)
    return _cut(images_BCHW, index_B, dy_B, dx_B, flip_B, pad)


def random_views(images_LCHW: torch.Tensor, views: int, *, pad: int, flip: bool, blank: int = 0) -> torch.Tensor:
    """`views` independent crops (and mirrors) of each image: rows i·views to i·views+views-1 show image i.

    In each, a square of `blank` pixels a side is blanked around a random pixel; at the edge less of it is seen.
    """
    device, number = images_LCHW.device, len(images_LCHW) * views
    height, width = images_LCHW.shape[2:]
    index_B = torch.arange(number, device=device).div(views, rounding_mode="floor")
    # All chances in one draw: a compiler may change the order of several, and with it what a seed gives.
    down_B, across_B, side_B, *places = torch.rand(5 if blank else 3, number, device=device)
    dy_B, dx_B = _choice(down_B, 2 * pad + 1), _choice(across_B, 2 * pad + 1)
    flip_B = side_B < (0.5 if flip else 0.0)
    views_BCHW = _cut(images_LCHW, index_B, dy_B, dx_B, flip_B, pad)
    if not blank:
        return views_BCHW
    top_B, left_B = (_choice(at_B, size) - blank // 2 for at_B, size in zip(places, (height, width), strict=True))
    return blank_square(views_BCHW, top_B=top_B, left_B=left_B, side=blank)


def _choice(chance_B: torch.Tensor, number: int) -> torch.Tensor:
    """A whole number from 0 to number - 1 for each chance in [0, 1)."""
    return (chance_B * number).long().clamp(max=number - 1)  # a product may be rounded up to `number`


def blank_square(images_BCHW: torch.Tensor, *, top_B: torch.Tensor, left_B: torch.Tensor, side: int) -> torch.Tensor:
    """Each image with the mean colour, zero, in a square whose first row is top and first column is left."""
    height, width = images_BCHW.shape[2:]
    rows_BH = torch.arange(height, device=images_BCHW.device) - top_B[:, None]
    columns_BW = torch.arange(width, device=images_BCHW.device) - left_B[:, None]
    down_BH, across_BW = ((at >= 0) & (at < side) for at in (rows_BH, columns_BW))
    # A product, for `masked_fill` would put the result in the other order of memory.
    return images_BCHW * ~(down_BH[:, None, :, None] & across_BW[:, None, None, :])


def _cut(
    images_LCHW: torch.Tensor,
    index_B: torch.Tensor,
    dy_B: torch.Tensor,
    dx_B: torch.Tensor,
    flip_B: torch.Tensor,
    pad: int,
) -> torch.Tensor:
    """Row b of the result is cut from image index_B[b], so views share one padded copy of their image."""
    height, width = images_LCHW.shape[2:]
    across_W = torch.arange(width, device=images_LCHW.device)
    down_H = torch.arange(height, device=images_LCHW.device)
    rows_BH = dy_B[:, None] + down_H
    columns_BW = dx_B[:, None] + torch.where(flip_B[:, None], width - 1 - across_W, across_W)
    padded_LCHW = F.pad(images_LCHW, (pad, pad, pad, pad))
    # Index tensors on both sides of a slice put the slice's axis, the channels, last.
    cut_BHWC = padded_LCHW[index_B[:, None, None], :, rows_BH[:, :, None], columns_BW[:, None, :]]
    return cut_BHWC.permute(0, 3, 1, 2)
