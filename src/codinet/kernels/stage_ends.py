"""What `stage` computes beside convolutions that keep the shape: the stem, and shortcuts to another shape."""

import triton
import triton.language as tl

from codinet.kernels.stage_taps import finish


@triton.jit
def shortcut(
    source_ptr,
    target_ptr,
    part,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    C_IN: tl.constexpr,
    STRIDE: tl.constexpr,
    BM: tl.constexpr,
    SPLIT: tl.constexpr,
    COPIES: tl.constexpr,
    CACHE: tl.constexpr,
):
    """Every STRIDE-th pixel among C channels, half of the new ones before the old; the sums of this program's share.

    With STRIDE 1 and C_IN = C it is the features themselves, and there is nothing to copy.
    """
    H_OUT: tl.constexpr = (H + STRIDE - 1) // STRIDE
    W_OUT: tl.constexpr = (W + STRIDE - 1) // STRIDE
    each: tl.constexpr = ((H_OUT * W_OUT + BM - 1) // BM + SPLIT - 1) // SPLIT
    before: tl.constexpr = (C - C_IN) // 2
    c = tl.arange(0, C)
    old = (c >= before) & (c < before + C_IN)
    total = tl.zeros([BM, C], tl.float32)
    for step in tl.range(each, num_stages=1):
        m = (step * SPLIT + part) * BM + tl.arange(0, BM)
        there = m < H_OUT * W_OUT
        at = ((m // W_OUT) * STRIDE * W + (m % W_OUT) * STRIDE) * C_IN - before
        mask = there[:, None] & old[None, :]
        x = tl.load(source_ptr + (at[:, None] + c[None, :]), mask=mask, other=0.0, cache_modifier=CACHE)
        if COPIES:
            tl.store(target_ptr + ((m * C)[:, None] + c[None, :]), x, mask=there[:, None])
        total += x.to(tl.float32)
    return tl.sum(total, axis=0)


@triton.jit
def stem(
    images_ptr,
    target_ptr,
    weight_ptr,
    bias_ptr,
    part,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    PLANES: tl.constexpr,
    TAPS_IN: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """relu(conv(image) + bias) into target, this program's share of it; the sums of that share.

    The image lies plane by plane, and may be negative. All its taps, 9·PLANES of TAPS_IN, are one product.
    """
    BM: tl.constexpr = 128
    each: tl.constexpr = ((H * W + BM - 1) // BM + SPLIT - 1) // SPLIT
    c = tl.arange(0, C)
    k = tl.arange(0, TAPS_IN)
    up = k // PLANES // 3 - 1
    left = k // PLANES % 3 - 1
    places = (k % PLANES) * (H * W) + up * W + left
    weight = tl.load(weight_ptr + (k[:, None] * C + c[None, :]))
    bias = tl.load(bias_ptr + c)
    total = tl.zeros([BM, C], tl.float32)
    for step in tl.range(each, num_stages=1):
        m = (step * SPLIT + part) * BM + tl.arange(0, BM)
        y = (m // W)[:, None] + up[None, :]
        x = (m % W)[:, None] + left[None, :]
        inside = (y >= 0) & (y < H) & (x >= 0) & (x < W) & (k < 9 * PLANES)[None, :]
        a = tl.load(images_ptr + (m[:, None] + places[None, :]), mask=inside, other=0.0)
        acc = tl.dot(a, weight, input_precision="ieee")
        out = target_ptr + ((m * C)[:, None] + c[None, :])
        total += finish(acc, bias, out, (m < H * W)[:, None], H * W % BM == 0, False, "")
    return tl.sum(total, axis=0)
