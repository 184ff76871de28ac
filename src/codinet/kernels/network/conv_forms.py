"""3×3 convolutions inside the network kernel, in three forms: taps, rows and pairs.

Each writes relu(conv(source) + bias) to the target; if ADDS, it adds the old target before the ReLU. Images are pixels
× channels (NHWC) in memory. Features must not be negative, which holds after a ReLU. A program computes its `part` of
SPLIT parts of an image and, if SUMS, returns the sums of its part over pixels. Callers synchronise programs.
"""

import triton
import triton.language as tl

TAPS = tl.constexpr(0)
ROWS = tl.constexpr(1)
PAIRS = tl.constexpr(2)


@triton.jit
def finish(acc, bias, out, there, WHOLE: tl.constexpr, ADDS: tl.constexpr, CACHE: tl.constexpr):
    """Adds the bias and, if ADDS, the shortcut stored in `out`; applies ReLU; writes and returns the result.

    The result is zero outside the image. WHOLE states that nothing is outside, so the result stays in the registers of
    the product.
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
    DEPTH: tl.constexpr,
    SPLIT: tl.constexpr,
    ADDS: tl.constexpr,
    SUMS: tl.constexpr,
    CACHE: tl.constexpr,
):
    """Nine products, one per tap, of BM pixels × C_IN channels with C_IN × BN channels.

    H, W and C_IN describe the source, which may be one pixel short of twice the target.
    """
    sums_C = tl.zeros([C], tl.float32)
    c = tl.arange(0, C_IN)
    across: tl.constexpr = C // BN
    H_OUT: tl.constexpr = (H + STRIDE - 1) // STRIDE
    W_OUT: tl.constexpr = (W + STRIDE - 1) // STRIDE
    tiles: tl.constexpr = (H_OUT * W_OUT + BM - 1) // BM * across
    # With several tiles per program, each thread first adds its own rows: every KEPT-th one, for four warps that write
    # 16 bytes each.
    LOCAL: tl.constexpr = SUMS and across == 1 and tiles > SPLIT
    KEPT: tl.constexpr = min(BM, max(1, 1024 // BN))
    if LOCAL:
        total = tl.zeros([KEPT, BN], tl.float32)
    tile = part
    while tile < tiles:
        m = (tile // across) * BM + tl.arange(0, BM)
        n = (tile % across) * BN + tl.arange(0, BN)
        y = m // W_OUT
        x = m % W_OUT
        there = m < H_OUT * W_OUT
        acc = tl.zeros([BM, BN], tl.float32)
        for tap in tl.range(9, num_stages=DEPTH):
            sy = y * STRIDE + (tap // 3 - 1)
            sx = x * STRIDE + (tap % 3 - 1)
            inside = there & (sy >= 0) & (sy < H) & (sx >= 0) & (sx < W)
            at = (sy * W + sx) * C_IN
            a = tl.load(source_ptr + (at[:, None] + c[None, :]), mask=inside[:, None], other=0.0, cache_modifier=CACHE)
            w = tl.load(weight_ptr + tap * C_IN * C + (c[:, None] * C + n[None, :]))
            acc = tl.dot(a, w, acc, input_precision="ieee")
        out = target_ptr + ((m * C)[:, None] + n[None, :])
        y_MN = finish(acc, tl.load(bias_ptr + n), out, there[:, None], H_OUT * W_OUT % BM == 0, ADDS, CACHE)
        if LOCAL:
            total += tl.sum(tl.reshape(y_MN, [BM // KEPT, KEPT, BN]), axis=0)
        elif SUMS:
            some = tl.sum(y_MN, axis=0)
            if across == 1:
                sums_C += some
            else:
                placed = tl.arange(0, C)[:, None] == n[None, :]
                sums_C += tl.sum(tl.where(placed, some[None, :], 0.0), axis=1)
        tile += SPLIT
    if LOCAL:
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
    """Processes row i of the source, counted from the row above each strip.

    It is the last of the three input rows of one output row, which is written, the second of the next output row and
    the first of the one after. Returns the accumulators of these two and the sums of the rows written so far.
    """
    y = top + (i - 1)
    inside = (x < W) & (y >= 0) & (y < H)
    row = sources + i * (W * C)
    left = tl.load(row, mask=(inside & (x >= 1))[:, None], other=0.0, cache_modifier=CACHE)
    here = tl.load(row + C, mask=inside[:, None], other=0.0, cache_modifier=CACHE)
    right = tl.load(row + 2 * C, mask=(inside & (x < W - 1))[:, None], other=0.0, cache_modifier=CACHE)
    # abs changes nothing, because features are never negative. It makes the product read its operand from registers.
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
    DEPTH: tl.constexpr,
    SPLIT: tl.constexpr,
    ADDS: tl.constexpr,
    SUMS: tl.constexpr,
    CACHE: tl.constexpr,
):
    """Slides a window down BM/ACROSS strips at a time, each ACROSS pixels wide.

    A program's part of the image height is divided into that many strips. A row is loaded once and contributes to three
    output rows. The weights stay in registers or shared memory.
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
        # Three rows per iteration, so that no accumulator moves to other registers while a product still adds to it:
        # the compiler would serialise all products.
        for three in tl.range(steps // 3, num_stages=DEPTH):
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
    """As `_rows_step`, for pairs of pixels."""
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
    DEPTH: tl.constexpr,
    SPLIT: tl.constexpr,
    ADDS: tl.constexpr,
    SUMS: tl.constexpr,
    CACHE: tl.constexpr,
):
    """As `rows`, for pairs of pixels: strips are ACROSS pairs wide.

    The four input pixels of two neighbouring outputs are adjacent in memory, so one product with a banded matrix maps
    4·C values to 2·C.
    """
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
        for three in tl.range(steps // 3, num_stages=DEPTH):
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
    DEPTH: tl.constexpr,
    SPLIT: tl.constexpr,
    ADDS: tl.constexpr,
    SUMS: tl.constexpr,
    CACHE: tl.constexpr,
):
    """Runs a convolution that keeps the shape, in the given form."""
    if FORM == PAIRS:
        # fmt: off
        sums_C = pairs(
            source_ptr, target_ptr, weight_ptr, bias_ptr, part, H, W, C, BM, ACROSS, DEPTH, SPLIT, ADDS, SUMS,
            CACHE,
        )
        # fmt: on
    elif FORM == ROWS:
        # fmt: off
        sums_C = rows(
            source_ptr, target_ptr, weight_ptr, bias_ptr, part, H, W, C, BM, ACROSS, DEPTH, SPLIT, ADDS, SUMS,
            CACHE,
        )
        # fmt: on
    else:
        sums_C = taps(
            source_ptr, target_ptr, weight_ptr, bias_ptr, part, H, W, C, C, 1, BM, BN, DEPTH, SPLIT, ADDS, SUMS, CACHE
        )
    return sums_C
