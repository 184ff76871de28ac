"""Pooling of the images that ran a block, the scores of the default router, and the list of images that run."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from codinet.kernels.launching import launch, prefetch, wait_for_chain
from codinet.kernels.rows import Listed

_SMALL_TILE = 4096  # values that two warps hold in registers


@triton.jit
def _pool(
    x_ptr,
    index_ptr,
    pooled_ptr,
    LISTED: tl.constexpr,
    P: tl.constexpr,
    C: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    image = (tl.load(index_ptr + tl.program_id(0)) if LISTED else tl.program_id(0)).to(tl.int64)
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


def pool_rows_(pooled_BC: torch.Tensor, x_BCHW: torch.Tensor, listed: Listed | None = None) -> None:
    """pooled[index] = the means of x[index] over positions.

    Args:
        pooled_BC: The means to change.
        x_BCHW: Features, channels_last.
        listed: The images to pool, without a count; None: all.
    """
    assert listed is None or listed.number is None
    number = len(x_BCHW) if listed is None else len(listed.index_R)
    _, channels, height, width = x_BCHW.shape
    few = number * channels < 64 * 256  # then more programs, which load more positions at once
    block_c = min(triton.next_power_of_2(channels), 16 if few else 64)
    block_p = min(triton.next_power_of_2(height * width), 256 if few else 128)
    grid = (number, triton.cdiv(channels, block_c))
    sizes = {"P": height * width, "C": channels, "BLOCK_P": block_p, "BLOCK_C": block_c}
    index_R = x_BCHW if listed is None else listed.index_R
    launch(_pool, grid, x_BCHW, index_R, pooled_BC, listed is not None, **sizes, num_warps=8 if few else 4)


@triton.jit
def _pool_parts(
    sums_ptr,
    index_ptr,
    count_ptr,
    pooled_ptr,
    positions,
    T,
    C,
    LISTED: tl.constexpr,
    COUNTED: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    row = tl.program_id(0)
    if row >= (tl.load(count_ptr) if COUNTED else tl.num_programs(0)):
        return
    image = (tl.load(index_ptr + row) if LISTED else row).to(tl.int64)
    t_T = tl.arange(0, BLOCK_T)
    c_C = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside_TC = (t_T[:, None] < T) & (c_C[None, :] < C)
    sums_TC = tl.load(sums_ptr + (row.to(tl.int64) * T + t_T[:, None]) * C + c_C[None, :], mask=inside_TC, other=0.0)
    mean_C = tl.sum(sums_TC, axis=0) / positions
    tl.store(pooled_ptr + image * C + c_C, mean_C.to(pooled_ptr.dtype.element_ty), mask=c_C < C)


def pool_parts_(pooled_BC: torch.Tensor, sums_RTC: torch.Tensor, positions: int, listed: Listed | None = None) -> None:
    """pooled[index] = the sums over T, divided by the number of positions.

    Args:
        pooled_BC: The means to change.
        sums_RTC: Sums over parts of the positions, float32.
        positions: How many positions all parts have.
        listed: The images that the sums belong to; None: all.
    """
    number, parts, channels = sums_RTC.shape
    index_R = sums_RTC if listed is None else listed.index_R
    count = None if listed is None else listed.number
    block_t, block_c = triton.next_power_of_2(parts), min(triton.next_power_of_2(channels), 64)
    launch(
        _pool_parts,
        (number, triton.cdiv(channels, block_c)),
        sums_RTC,
        index_R,
        sums_RTC if count is None else count,
        pooled_BC,
        positions,
        parts,
        channels,
        LISTED=listed is not None,
        COUNTED=count is not None,
        BLOCK_T=block_t,
        BLOCK_C=block_c,
        num_warps=2 if block_t * block_c <= _SMALL_TILE else 8,
    )


@triton.jit
def _scores(
    pooled_ptr,
    hidden_weight_ptr,
    hidden_bias_ptr,
    out_weight_ptr,
    out_bias_ptr,
    parts_ptr,
    batch,
    arrived_ptr,
    forced_ptr,
    limit_ptr,
    scores_ptr,
    path_ptr,
    index_ptr,
    count_ptr,
    blocks,
    block,
    C: tl.constexpr,
    EXACT: tl.constexpr,
    LIST: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr,
    LINES: tl.constexpr,
    CHAINED: tl.constexpr = False,
):
    """LIST: the last program to arrive adds the parts, decides, and lists the images that run."""
    b_B = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    h_H = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    k_K = tl.arange(0, BLOCK_K)
    if CHAINED:
        line_L = tl.minimum(tl.arange(0, LINES) * 64, C - 1)  # of 128 bytes in half precision
        prefetch(hidden_weight_ptr + tl.minimum(h_H, C - 1)[:, None] * C + line_L[None, :])
    wait_for_chain(CHAINED)
    sum_BH = tl.zeros((BLOCK_B, BLOCK_H), tl.float32)
    if BLOCK_B == 1:  # on tensor cores, each product would wait for the one before
        sum_HK = tl.zeros((BLOCK_H, BLOCK_K), tl.float32)
        for start in tl.static_range(0, C, BLOCK_K):
            inside_K = start + k_K < C
            z_K = tl.load(pooled_ptr + start + k_K, mask=inside_K, other=0.0)
            weight_HK = tl.load(
                hidden_weight_ptr + h_H[:, None] * C + start + k_K[None, :],
                mask=(h_H[:, None] < C) & inside_K[None, :],
                other=0.0,
            )
            sum_HK += weight_HK.to(tl.float32) * z_K.to(tl.float32)[None, :]
        sum_BH += tl.sum(sum_HK, axis=1)[None, :]
    else:
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
    if LIST:
        tl.debug_barrier()  # all threads have stored their values before one of them reports it
        if tl.atomic_add(arrived_ptr, 1, sem="acq_rel") != tl.num_programs(1) - 1:
            return
        tl.store(arrived_ptr, 0)  # for the next launch
        inside_B = b_B < batch
        p_P = tl.arange(0, PARTS)
        inside_PB = (p_P[:, None] < tl.num_programs(1)) & inside_B[None, :]
        part_PB = parts_ptr + (p_P[:, None] * batch + b_B[None, :]) * 2
        skip_B = tl.sum(tl.load(part_PB, mask=inside_PB, other=0.0, cache_modifier=".cg"), axis=0)
        run_B = tl.sum(tl.load(part_PB + 1, mask=inside_PB, other=0.0, cache_modifier=".cg"), axis=0)
        cell_B = b_B * blocks + block
        forced_B = tl.load(forced_ptr + cell_B, mask=inside_B, other=0)
        asked_B = run_B - skip_B >= tl.load(limit_ptr)
        runs_B = (inside_B & (((forced_B == 2) & asked_B) | (forced_B == 1))).to(tl.int32)
        tl.store(scores_ptr + 2 * cell_B, skip_B, mask=inside_B)
        tl.store(scores_ptr + 2 * cell_B + 1, run_B, mask=inside_B)
        tl.store(path_ptr + cell_B, runs_B.to(tl.float32), mask=inside_B)
        tl.store(index_ptr + tl.cumsum(runs_B, 0) - 1, b_B.to(tl.int64), mask=runs_B == 1)
        tl.store(count_ptr, tl.sum(runs_B))


class Listing(NamedTuple):
    """What decisions depend on besides the scores, and where they and the list of a block are written."""

    forced_BN: torch.Tensor  # int8: decisions to take, or 2 where the router decides
    limit: torch.Tensor  # the least margin of the scores with which a block runs
    scores_BN2: torch.Tensor
    path_BN: torch.Tensor
    listed: Listed  # with a count
    arrived: torch.Tensor  # counters, see `conv_rows.zero_counters`


def score_parts(
    pooled_BC: torch.Tensor,
    hidden: tuple[torch.Tensor, torch.Tensor],
    out: tuple[torch.Tensor, torch.Tensor],
    batch: int,
    listing: Listing | None = None,
    block: int = 0,
) -> torch.Tensor:
    """The scores of an `FCRouter` in parts, one for each group of hidden units.

    Args:
        pooled_BC: Pooled features.
        hidden: Weight and bias of the hidden layer.
        out: Weight and bias of the output layer.
        batch: How many rows of `pooled_BC` to score; at most 64 with a listing, which one program writes.
        listing: Also decide, and list the images that run.
        block: The block that the router belongs to.

    Returns:
        P×B×2 in float32; the scores are the sum over P.
    """
    channels = pooled_BC.shape[1]
    exact = pooled_BC.dtype == torch.float32
    block_b, block_h = (16, 16) if batch <= 16 else (64, 64)
    if batch == 1:
        block_b, block_h = 1, 8 if channels <= 1024 else 16
    parts = triton.cdiv(channels, block_h)
    parts_PB2 = torch.empty(parts, batch, 2, device=pooled_BC.device)
    targets: tuple[torch.Tensor | None, ...] = (parts_PB2,) * 7
    if listing is not None:
        assert batch <= block_b
        forced_BN, limit, scores_BN2, path_BN, listed, arrived = listing
        targets = arrived, forced_BN, limit, scores_BN2, path_BN, *listed
    launch(
        _scores,
        (triton.cdiv(batch, block_b), parts),
        pooled_BC,
        *hidden,
        *out,
        parts_PB2,
        batch,
        *targets,
        0 if listing is None else listing.path_BN.shape[1],
        block,
        C=channels,
        EXACT=exact,
        LIST=listing is not None,
        PARTS=triton.next_power_of_2(parts),
        BLOCK_B=block_b,
        BLOCK_H=block_h,
        BLOCK_K=32 if exact else 128 if listing is None else 256,
        LINES=triton.next_power_of_2(triton.cdiv(channels, 64)),
        num_warps=4,
        num_stages=3,
        chained=listing is not None,
    )
    return parts_PB2
