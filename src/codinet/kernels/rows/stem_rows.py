"""Max pooling of a ResNet's stem (3×3, stride 2, padding 1), which pools for the first router as well."""

import torch
import triton
import triton.language as tl

from codinet.kernels.launching import launch
from codinet.kernels.rows.router_rows import pool_parts_


@triton.jit
def _max_pool(
    x_ptr,
    y_ptr,
    sums_ptr,
    tiles,
    positions,
    width,
    in_height,
    in_width,
    C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    tile = tl.program_id(0)
    image = (tile // tiles).to(tl.int64)
    p_P = (tile % tiles) * BLOCK_P + tl.arange(0, BLOCK_P)
    c_C = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside_PC = (p_P < positions)[:, None] & (c_C < C)[None, :]
    top_P, left_P = (p_P // width) * 2 - 1, (p_P % width) * 2 - 1
    most_PC = tl.full((BLOCK_P, BLOCK_C), float("-inf"), tl.float32)
    for tap in tl.static_range(9):
        y_P, x_P = top_P + tap // 3, left_P + tap % 3
        valid_P = (y_P >= 0) & (y_P < in_height) & (x_P >= 0) & (x_P < in_width)
        source_PC = ((image * in_height + y_P) * in_width + x_P)[:, None] * C + c_C[None, :]
        found_PC = tl.load(x_ptr + source_PC, mask=inside_PC & valid_P[:, None], other=float("-inf"))
        most_PC = tl.maximum(most_PC, found_PC.to(tl.float32))
    target_PC = (image * positions + p_P)[:, None] * C + c_C[None, :]
    tl.store(y_ptr + target_PC, most_PC.to(y_ptr.dtype.element_ty), mask=inside_PC)
    sum_C = tl.sum(tl.where(inside_PC, most_PC, 0.0), axis=0)
    tl.store(sums_ptr + tile.to(tl.int64) * C + c_C, sum_C, mask=c_C < C)


def max_pool(x_BCHW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Max pooling over 3×3 positions with stride 2 and padding 1.

    Args:
        x_BCHW: Features, channels_last.

    Returns:
        The result, channels_last, and its means over positions, B×C.
    """
    number, channels, in_height, in_width = x_BCHW.shape
    height, width = -(-in_height // 2), -(-in_width // 2)
    y_BCHW = x_BCHW.new_empty(number, height, width, channels).permute(0, 3, 1, 2)
    block_c = min(triton.next_power_of_2(channels), 64)
    block_p = 64 if number > 1 else 16
    tiles = triton.cdiv(height * width, block_p)
    sums_BTC = x_BCHW.new_empty(number, tiles, channels, dtype=torch.float32)
    launch(
        _max_pool,
        (number * tiles, triton.cdiv(channels, block_c)),
        x_BCHW,
        y_BCHW,
        sums_BTC,
        tiles,
        height * width,
        width,
        in_height,
        in_width,
        C=channels,
        BLOCK_P=block_p,
        BLOCK_C=block_c,
        num_warps=4,
    )
    pooled_BC = x_BCHW.new_empty(number, channels)
    pool_parts_(pooled_BC, sums_BTC, height * width)
    return y_BCHW, pooled_BC
