"""A 3×3 convolution of `stage` by rows: a window slides down, and a row once loaded serves the three rows around it.

Weights stay at hand all the while. See `stage_convs` for what holds for all forms.
"""

import triton
import triton.language as tl

from codinet.kernels.stage_taps import finish


@triton.jit
def _rows_step(
    i,
    last,
    begun,
    sources,
    targets,
    x,
    top,
    w00,
    w01,
    w02,
    w10,
    w11,
    w12,
    w20,
    w21,
    w22,
    bias,
    total,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    ADDS: tl.constexpr,
    SUMS: tl.constexpr,
    CACHE: tl.constexpr,
):
    """Row i of the source, counted from the one above each strip.

    It is the last of three for one row of output, which is written; the second for the next; and the first for the
    one after. These two and the sums of what was written are given back.
    """
    y = top + (i - 1)
    inside = (x < W) & (y >= 0) & (y < H)
    row = sources + i * (W * C)
    left = tl.load(row, mask=(inside & (x >= 1))[:, None], other=0.0, cache_modifier=CACHE)
    here = tl.load(row + C, mask=inside[:, None], other=0.0, cache_modifier=CACHE)
    right = tl.load(row + 2 * C, mask=(inside & (x < W - 1))[:, None], other=0.0, cache_modifier=CACHE)
    # Changes nothing, features are never negative, but a product takes what is computed from registers, not memory.
    left = tl.abs(left)
    here = tl.abs(here)
    right = tl.abs(right)
    last = tl.dot(left, w20, last, input_precision="ieee")
    last = tl.dot(here, w21, last, input_precision="ieee")
    last = tl.dot(right, w22, last, input_precision="ieee")
    begun = tl.dot(left, w10, begun, input_precision="ieee")
    begun = tl.dot(here, w11, begun, input_precision="ieee")
    begun = tl.dot(right, w12, begun, input_precision="ieee")
    fresh = tl.dot(left, w00, tl.zeros_like(begun), input_precision="ieee")
    fresh = tl.dot(here, w01, fresh, input_precision="ieee")
    fresh = tl.dot(right, w02, fresh, input_precision="ieee")
    there = ((x < W) & (i >= 2) & (y <= H))[:, None]
    y_MN = finish(last, bias, targets + (i - 2) * (W * C), there, False, ADDS, CACHE)
    if SUMS:
        total += y_MN
    return begun, fresh, total


@triton.jit
def rows(
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
    """relu(conv(source) + bias (+ target)) into target: BM/ACROSS strips at a time, each ACROSS pixels wide.

    A program's share of the image's height is cut into as many strips as there are at a time.
    """
    strips: tl.constexpr = BM // ACROSS
    columns: tl.constexpr = (W + ACROSS - 1) // ACROSS
    high: tl.constexpr = (H + strips * SPLIT - 1) // (strips * SPLIT)
    steps: tl.constexpr = high + 2
    c = tl.arange(0, C)
    weights = weight_ptr + (c[:, None] * C + c[None, :])
    w00 = tl.load(weights)
    w01 = tl.load(weights + C * C)
    w02 = tl.load(weights + 2 * C * C)
    w10 = tl.load(weights + 3 * C * C)
    w11 = tl.load(weights + 4 * C * C)
    w12 = tl.load(weights + 5 * C * C)
    w20 = tl.load(weights + 6 * C * C)
    w21 = tl.load(weights + 7 * C * C)
    w22 = tl.load(weights + 8 * C * C)
    bias = tl.load(bias_ptr + c)
    total = tl.zeros([BM, C], tl.float32)
    m = tl.arange(0, BM)
    for column in tl.range(columns, num_stages=1):
        x = column * ACROSS + m % ACROSS
        top = (part * strips + m // ACROSS) * high
        start = (top * W + x) * C
        sources = source_ptr + ((start - (W + 1) * C)[:, None] + c[None, :])
        targets = target_ptr + (start[:, None] + c[None, :])
        p = tl.zeros([BM, C], tl.float32)
        q = tl.zeros([BM, C], tl.float32)
        # By threes, so that no sum moves to other registers while a product still adds to it: the compiler would make
        # all products wait for each other.
        for three in tl.range(steps // 3, num_stages=STAGES):
            i = 3 * three
            # fmt: off
            q, r, total = _rows_step(
                i, p, q, sources, targets, x, top, w00, w01, w02, w10, w11, w12, w20, w21, w22, bias, total, H, W, C,
                ADDS, SUMS, CACHE,
            )
            r, p, total = _rows_step(
                i + 1, q, r, sources, targets, x, top, w00, w01, w02, w10, w11, w12, w20, w21, w22, bias, total, H,
                W, C, ADDS, SUMS, CACHE,
            )
            p, q, total = _rows_step(
                i + 2, r, p, sources, targets, x, top, w00, w01, w02, w10, w11, w12, w20, w21, w22, bias, total, H,
                W, C, ADDS, SUMS, CACHE,
            )
            # fmt: on
        for i in tl.static_range(steps // 3 * 3, steps):
            # fmt: off
            p, q, total = _rows_step(
                i, p, q, sources, targets, x, top, w00, w01, w02, w10, w11, w12, w20, w21, w22, bias, total, H, W, C,
                ADDS, SUMS, CACHE,
            )
            # fmt: on
    sums_C = tl.zeros([C], tl.float32)
    if SUMS:
        sums_C = tl.sum(total, axis=0)
    return sums_C
