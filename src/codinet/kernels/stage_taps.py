"""A 3×3 convolution of `stage` by taps: nine products of BM pixels × channels with channels × BN.

BN of the output channels are done at a time. See `stage_convs` for what holds for all forms.
"""

import triton
import triton.language as tl


@triton.jit
def finish(acc, bias, out, there, WHOLE: tl.constexpr, ADDS: tl.constexpr, CACHE: tl.constexpr):
    """Bias, shortcut and ReLU; writes the result and gives it back, zero outside of the image.

    WHOLE: nothing is outside. Then the result stays in the registers that the product left it in.
    """
    acc += bias[None, :]
    if ADDS:
        acc += tl.load(out, mask=there, other=0.0, cache_modifier=CACHE).to(tl.float32)
    acc = tl.maximum(acc, 0.0)
    tl.store(out, acc.to(out.dtype.element_ty), mask=there)
    if not WHOLE:
        acc = tl.where(there, acc, 0.0)
    return acc


@triton.jit
def taps(
    source_ptr,
    target_ptr,
    weight_ptr,
    bias_ptr,
    part,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    C_IN: tl.constexpr,
    STRIDE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    STAGES: tl.constexpr,
    SPLIT: tl.constexpr,
    ADDS: tl.constexpr,
    SUMS: tl.constexpr,
    CACHE: tl.constexpr,
):
    """relu(conv(source) + bias (+ target)) into target, this program's share of it; the sums of that share.

    H, W and C_IN are the source's: it may be one pixel short of twice the target.
    """
    sums_C = tl.zeros([C], tl.float32)
    c = tl.arange(0, C_IN)
    across: tl.constexpr = C // BN
    H_OUT: tl.constexpr = (H + STRIDE - 1) // STRIDE
    W_OUT: tl.constexpr = (W + STRIDE - 1) // STRIDE
    tiles: tl.constexpr = (H_OUT * W_OUT + BM - 1) // BM * across
    # Of several tiles a thread first adds what it has itself, every KEPT-th row where four warps write 16 bytes each.
    ALONE: tl.constexpr = SUMS and across == 1 and tiles > SPLIT
    KEPT: tl.constexpr = min(BM, max(1, 1024 // BN))
    if ALONE:
        total = tl.zeros([KEPT, BN], tl.float32)
    tile = part
    while tile < tiles:
        m = (tile // across) * BM + tl.arange(0, BM)
        n = (tile % across) * BN + tl.arange(0, BN)
        y = m // W_OUT
        x = m % W_OUT
        there = m < H_OUT * W_OUT
        acc = tl.zeros([BM, BN], tl.float32)
        for tap in tl.range(9, num_stages=STAGES):
            sy = y * STRIDE + (tap // 3 - 1)
            sx = x * STRIDE + (tap % 3 - 1)
            inside = there & (sy >= 0) & (sy < H) & (sx >= 0) & (sx < W)
            at = (sy * W + sx) * C_IN
            a = tl.load(source_ptr + (at[:, None] + c[None, :]), mask=inside[:, None], other=0.0, cache_modifier=CACHE)
            w = tl.load(weight_ptr + tap * C_IN * C + (c[:, None] * C + n[None, :]))
            acc = tl.dot(a, w, acc, input_precision="ieee")
        out = target_ptr + ((m * C)[:, None] + n[None, :])
        y_MN = finish(acc, tl.load(bias_ptr + n), out, there[:, None], H_OUT * W_OUT % BM == 0, ADDS, CACHE)
        if ALONE:
            total += tl.sum(tl.reshape(y_MN, [BM // KEPT, KEPT, BN]), axis=0)
        elif SUMS:
            some = tl.sum(y_MN, axis=0)
            if across == 1:
                sums_C += some
            else:
                placed = tl.arange(0, C)[:, None] == n[None, :]
                sums_C += tl.sum(tl.where(placed, some[None, :], 0.0), axis=1)
        tile += SPLIT
    if ALONE:
        sums_C = tl.sum(total, axis=0)
    return sums_C
