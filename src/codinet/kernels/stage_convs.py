"""The convolutions of `stage`, as parts of its kernel: 3×3, over an image of pixels × channels (NHWC) in memory.

A convolution has one of three forms. Taps: nine products of BM pixels × channels with channels × BN, BN of the output
channels at a time. Rows: weights stay at hand while a window slides down the rows, so that a row once loaded serves
the three rows of output around it. Pairs: the same for pairs of neighbouring pixels; the four pixels that two outputs
need lie side by side in memory, so one product takes 4·C values to 2·C with a banded matrix.

No feature may be negative, which holds after a ReLU. A program computes its share of an image, its `part` of SPLIT.
Knows nothing of blocks, routers or of waiting for other programs.
"""

import triton
import triton.language as tl

TAPS = tl.constexpr(0)
ROWS = tl.constexpr(1)
PAIRS = tl.constexpr(2)


@triton.jit
def _finish(acc, bias, out, there, WHOLE: tl.constexpr, ADDS: tl.constexpr, CACHE: tl.constexpr):
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
        y_MN = _finish(acc, tl.load(bias_ptr + n), out, there[:, None], H_OUT * W_OUT % BM == 0, ADDS, CACHE)
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
    y_MN = _finish(last, bias, targets + (i - 2) * (W * C), there, False, ADDS, CACHE)
    if SUMS:
        total += y_MN
    return begun, fresh, total


@triton.jit
def _rows(
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
    """The same with a sliding window: BM/ACROSS strips at a time, each ACROSS pixels wide.

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
            q, r, total = _rows_step(
                i,
                p,
                q,
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
                H,
                W,
                C,
                ADDS,
                SUMS,
                CACHE,
            )
            r, p, total = _rows_step(
                i + 1,
                q,
                r,
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
                H,
                W,
                C,
                ADDS,
                SUMS,
                CACHE,
            )
            p, q, total = _rows_step(
                i + 2,
                r,
                p,
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
                H,
                W,
                C,
                ADDS,
                SUMS,
                CACHE,
            )
        for i in tl.static_range(steps // 3 * 3, steps):
            p, q, total = _rows_step(
                i,
                p,
                q,
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
                H,
                W,
                C,
                ADDS,
                SUMS,
                CACHE,
            )
    sums_C = tl.zeros([C], tl.float32)
    if SUMS:
        sums_C = tl.sum(total, axis=0)
    return sums_C


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
    y_MN = _finish(last, bias, targets + (i - 2) * (W * C), there, False, ADDS, CACHE)
    if SUMS:
        total += y_MN
    return begun, fresh, total


@triton.jit
def _pairs(
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
    """The same in pairs: strips are ACROSS pairs wide."""
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
            q, r, total = _pairs_step(
                i,
                p,
                q,
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
                H,
                W,
                C,
                ADDS,
                SUMS,
                CACHE,
            )
            r, p, total = _pairs_step(
                i + 1,
                q,
                r,
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
                H,
                W,
                C,
                ADDS,
                SUMS,
                CACHE,
            )
            p, q, total = _pairs_step(
                i + 2,
                r,
                p,
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
                H,
                W,
                C,
                ADDS,
                SUMS,
                CACHE,
            )
        for i in tl.static_range(steps // 3 * 3, steps):
            p, q, total = _pairs_step(
                i,
                p,
                q,
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
                H,
                W,
                C,
                ADDS,
                SUMS,
                CACHE,
            )
    sums_C = tl.zeros([C], tl.float32)
    if SUMS:
        sums_C = tl.sum(tl.reshape(tl.sum(total, axis=0), [2, C]), axis=0)
    return sums_C


@triton.jit
def conv(
    source_ptr,
    target_ptr,
    weight_ptr,
    bias_ptr,
    part,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    FORM: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    ACROSS: tl.constexpr,
    STAGES: tl.constexpr,
    SPLIT: tl.constexpr,
    ADDS: tl.constexpr,
    SUMS: tl.constexpr,
    CACHE: tl.constexpr,
):
    """A convolution that keeps the shape, in any form."""
    if FORM == PAIRS:
        sums_C = _pairs(
            source_ptr,
            target_ptr,
            weight_ptr,
            bias_ptr,
            part,
            H,
            W,
            C,
            BM,
            ACROSS,
            STAGES,
            SPLIT,
            ADDS,
            SUMS,
            CACHE,
        )
    elif FORM == ROWS:
        sums_C = _rows(
            source_ptr,
            target_ptr,
            weight_ptr,
            bias_ptr,
            part,
            H,
            W,
            C,
            BM,
            ACROSS,
            STAGES,
            SPLIT,
            ADDS,
            SUMS,
            CACHE,
        )
    else:
        sums_C = taps(
            source_ptr, target_ptr, weight_ptr, bias_ptr, part, H, W, C, C, 1, BM, BN, STAGES, SPLIT, ADDS, SUMS, CACHE
        )
    return sums_C


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
        total += _finish(acc, bias, out, (m < H * W)[:, None], H * W % BM == 0, False, "")
    return tl.sum(total, axis=0)
