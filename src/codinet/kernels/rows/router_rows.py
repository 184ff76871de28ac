"""Pooling of the images that ran a block, and the scores of the default router, each as one kernel."""

import torch
import triton
import triton.language as tl

from codinet.kernels.launching import launch


@triton.jit
def _pool(
    x_ptr,
    index_ptr,
    pooled_ptr,
    P: tl.constexpr,
    C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    image = tl.load(index_ptr + tl.program_id(0)).to(tl.int64)
    c_C = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    p_P = tl.arange(0, BLOCK_P)
    inside_C = c_C < C
    sum_PC = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    x_PC = x_ptr + (image * P + p_P[:, None]) * C + c_C[None, :]
    for start in range(0, P, BLOCK_P):
        inside_PC = (p_P[:, None] < P - start) & inside_C[None, :]
        sum_PC += tl.load(x_PC, mask=inside_PC, other=0.0).to(tl.float32)
        x_PC += BLOCK_P * C
    mean_C = tl.sum(sum_PC, axis=0) / P
    tl.store(pooled_ptr + image * C + c_C, mean_C.to(pooled_ptr.dtype.element_ty), mask=inside_C)


def pool_rows_(pooled_BC: torch.Tensor, x_BCHW: torch.Tensor, index_R: torch.Tensor) -> None:
    """pooled[index] = the means of x[index] over positions.

    Args:
        pooled_BC: The means to change.
        x_BCHW: Features, channels_last.
        index_R: The images to pool.
    """
    _, channels, height, width = x_BCHW.shape
    few = len(index_R) * channels < 64 * 256  # then more programs, which load more positions at once
    block_c = min(triton.next_power_of_2(channels), 16 if few else 64)
    block_p = min(triton.next_power_of_2(height * width), 256 if few else 128)
    grid = (len(index_R), triton.cdiv(channels, block_c))
    sizes = {"P": height * width, "C": channels, "BLOCK_P": block_p, "BLOCK_C": block_c}
    launch(_pool, grid, x_BCHW, index_R, pooled_BC, **sizes, num_warps=8 if few else 4)


@triton.jit
def _scores(
    pooled_ptr,
    hidden_weight_ptr,
    hidden_bias_ptr,
    out_weight_ptr,
    out_bias_ptr,
    parts_ptr,
    batch,
    C: tl.constexpr,
    EXACT: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    b_B = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    h_H = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    k_K = tl.arange(0, BLOCK_K)
    sum_BH = tl.zeros((BLOCK_B, BLOCK_H), tl.float32)
    for start in range(0, C, BLOCK_K):
        inside_K = start + k_K < C
        z_BK = tl.load(
            pooled_ptr + b_B[:, None] * C + start + k_K[None, :],
            mask=(b_B[:, None] < batch) & inside_K[None, :],
            other=0.0,
        )
        weight_KH = tl.load(
            hidden_weight_ptr + h_H[None, :] * C + start + k_K[:, None],
            mask=(h_H[None, :] < C) & inside_K[:, None],
            other=0.0,
        )
        sum_BH = tl.dot(z_BK, weight_KH, sum_BH, input_precision="ieee" if EXACT else "tf32")
    inside_H = h_H < C
    hidden_BH = tl.maximum(sum_BH + tl.load(hidden_bias_ptr + h_H, mask=inside_H, other=0.0)[None, :], 0.0)
    for run in tl.static_range(2):
        out_H = tl.load(out_weight_ptr + run * C + h_H, mask=inside_H, other=0.0).to(tl.float32)
        score_B = tl.sum(hidden_BH * out_H[None, :], axis=1)
        if tl.program_id(1) == 0:
            score_B += tl.load(out_bias_ptr + run).to(tl.float32)
        tl.store(parts_ptr + (tl.program_id(1) * batch + b_B) * 2 + run, score_B, mask=b_B < batch)


def score_parts(
    pooled_BC: torch.Tensor,
    hidden: tuple[torch.Tensor, torch.Tensor],
    out: tuple[torch.Tensor, torch.Tensor],
    batch: int,
) -> torch.Tensor:
    """The scores of an `FCRouter` in parts, one for each group of hidden units.

    Args:
        pooled_BC: Pooled features.
        hidden: Weight and bias of the hidden layer.
        out: Weight and bias of the output layer.
        batch: How many rows of `pooled_BC` to score.

    Returns:
        P×B×2 in float32; the scores are the sum over P.
    """
    channels = pooled_BC.shape[1]
    block_b, block_h = (16, 32) if batch <= 16 else (64, 64)
    parts = triton.cdiv(channels, block_h)
    parts_PB2 = torch.empty(parts, batch, 2, device=pooled_BC.device)
    exact = pooled_BC.dtype == torch.float32
    sizes = {"C": channels, "EXACT": exact, "BLOCK_B": block_b, "BLOCK_H": block_h, "BLOCK_K": 32 if exact else 128}
    grid = (triton.cdiv(batch, block_b), parts)
    launch(_scores, grid, pooled_BC, *hidden, *out, parts_PB2, batch, **sizes, num_warps=4, num_stages=3)
    return parts_PB2
