"""Writes the outputs of a block to the images that they belong to, and pools them on the way."""

import torch
import triton
import triton.language as tl

from codinet.kernels.launching import launch
from codinet.kernels.rows import Listed
from codinet.kernels.rows.router_rows import pool_parts_

_BLOCK_P = 64


@triton.jit
def _put(
    x_ptr,
    index_ptr,
    y_ptr,
    sums_ptr,
    P,
    C,
    POOL: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    image = tl.load(index_ptr + row)
    p_P = tile * BLOCK_P + tl.arange(0, BLOCK_P)
    c_C = tl.program_id(2) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside_PC = (p_P < P)[:, None] & (c_C < C)[None, :]
    at_PC = p_P[:, None] * C + c_C[None, :]
    found_PC = tl.load(x_ptr + row * P * C + at_PC, mask=inside_PC, other=0.0)
    tl.store(y_ptr + image * P * C + at_PC, found_PC, mask=inside_PC)
    if POOL:
        sum_C = tl.sum(found_PC.to(tl.float32), axis=0)
        tl.store(sums_ptr + (row * tl.num_programs(1) + tile) * C + c_C, sum_C, mask=c_C < C)


def put_rows_(
    y_BCHW: torch.Tensor, listed: Listed, x_RCHW: torch.Tensor, *, pooled_BC: torch.Tensor | None = None
) -> None:
    """y[index] = x, in place.

    Args:
        y_BCHW: Features to change, channels_last.
        listed: The images that x belongs to, without a number.
        x_RCHW: Features of these images, channels_last.
        pooled_BC: Its rows for the listed images get the means of x over positions, if given.
    """
    assert listed.number is None
    rows, channels, height, width = x_RCHW.shape
    tiles = triton.cdiv(height * width, _BLOCK_P)
    sums = x_RCHW if pooled_BC is None else x_RCHW.new_empty(rows, tiles, channels, dtype=torch.float32)
    block_c = min(triton.next_power_of_2(channels), 128)
    launch(
        _put,
        (rows, tiles, triton.cdiv(channels, block_c)),
        x_RCHW,
        listed.index_R,
        y_BCHW,
        sums,
        height * width,
        channels,
        POOL=pooled_BC is not None,
        BLOCK_P=_BLOCK_P,
        BLOCK_C=block_c,
        num_warps=4,
    )
    if pooled_BC is not None:
        pool_parts_(pooled_BC, sums, height * width, listed)
