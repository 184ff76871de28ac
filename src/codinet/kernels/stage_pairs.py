"""A 3×3 convolution of `stage` by rows of pairs of pixels.

The four pixels that two neighbouring outputs need lie side by side in memory, so one product takes 4·C values to 2·C
with a banded matrix. See `stage_convs` for what holds for all forms.
"""

import triton
import triton.language as tl

from codinet.kernels.stage_taps import finish


@triton.jit
def _pairs_step(
    i,
    last,
    begun,
    sources,
    targets,
    inside,
    wide,
    top,
    above,
    level,
    below,
    bias,
    total,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    ADDS: tl.constexpr,
    SUMS: tl.constexpr,
    CACHE: tl.constexpr,
):
    """As `_rows_step`, for pairs."""
    y = top + (i - 1)
    inside = inside & ((y >= 0) & (y < H))[:, None]
    a = tl.load(sources + i * (W * C), mask=inside, other=0.0, cache_modifier=CACHE)
    a = tl.abs(a)
    last = tl.dot(a, below, last, input_precision="ieee")
    begun = tl.dot(a, level, begun, input_precision="ieee")
    fresh = tl.dot(a, above, tl.zeros_like(begun), input_precision="ieee")
    there = wide & ((i >= 2) & (y <= H))[:, None]
    y_MN = finish(last, bias, targets + (i - 2) * (W * C), there, False, ADDS, CACHE)
    if SUMS:
        total += y_MN
    return begun, fresh, total


@triton.jit
def pairs(
    source_ptr,
    target_ptr,
    weight_ptr,
    bias_ptr,
    part,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    BM: tl.constexpr,
    ACROSS: tl.constexpr,
    STAGES: tl.constexpr,
    SPLIT: tl.constexpr,
    ADDS: tl.constexpr,
    SUMS: tl.constexpr,
    CACHE: tl.constexpr,
):
    """As `rows`, for pairs: strips are ACROSS pairs wide."""
    strips: tl.constexpr = BM // ACROSS
    columns: tl.constexpr = ((W + 1) // 2 + ACROSS - 1) // ACROSS
    high: tl.constexpr = (H + strips * SPLIT - 1) // (strips * SPLIT)
    steps: tl.constexpr = high + 2
    k = tl.arange(0, 4 * C)
    n = tl.arange(0, 2 * C)
    at_w = k[:, None] * (2 * C) + n[None, :]
    above = tl.load(weight_ptr + at_w)
    level = tl.load(weight_ptr + 8 * C * C + at_w)
    below = tl.load(weight_ptr + 16 * C * C + at_w)
    bias = tl.load(bias_ptr + n % C)
    total = tl.zeros([BM, 2 * C], tl.float32)
    m = tl.arange(0, BM)
    for column in tl.range(columns, num_stages=1):
        pair = column * ACROSS + m % ACROSS
        top = (part * strips + m // ACROSS) * high
        pixel = 2 * pair[:, None] - 1 + (k // C)[None, :]
        inside = (pixel >= 0) & (pixel < W)
        start = (top * W + 2 * pair) * C
        sources = source_ptr + ((start - (W + 1) * C)[:, None] + k[None, :])
        targets = target_ptr + (start[:, None] + n[None, :])
        wide = 2 * pair[:, None] + (n // C)[None, :] < W
        p = tl.zeros([BM, 2 * C], tl.float32)
        q = tl.zeros([BM, 2 * C], tl.float32)
        for three in tl.range(steps // 3, num_stages=STAGES):
            i = 3 * three
            # fmt: off
            q, r, total = _pairs_step(
                i, p, q, sources, targets, inside, wide, top, above, level, below, bias, total, H, W, C, ADDS, SUMS,
                CACHE,
            )
            r, p, total = _pairs_step(
                i + 1, q, r, sources, targets, inside, wide, top, above, level, below, bias, total, H, W, C, ADDS,
                SUMS, CACHE,
            )
            p, q, total = _pairs_step(
                i + 2, r, p, sources, targets, inside, wide, top, above, level, below, bias, total, H, W, C, ADDS,
                SUMS, CACHE,
            )
            # fmt: on
        for i in tl.static_range(steps // 3 * 3, steps):
            # fmt: off
            p, q, total = _pairs_step(
                i, p, q, sources, targets, inside, wide, top, above, level, below, bias, total, H, W, C, ADDS, SUMS,
                CACHE,
            )
            # fmt: on
    sums_C = tl.zeros([C], tl.float32)
    if SUMS:
        sums_C = tl.sum(tl.reshape(tl.sum(total, axis=0), [2, C]), axis=0)
    return sums_C
