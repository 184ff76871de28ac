"""3×3 convolutions fused with BatchNorm and ReLU: forward, data gradient, weight gradient.

Reading applies the BatchNorm and ReLU before the convolution (in the backward pass, the gradient of the BatchNorm after
it). Writing accumulates the sums that the next BatchNorm or its gradient needs. So each convolution reads and writes
its features once. A program walks down the rows of a few images with three rows of accumulators: each input row is
loaded once and contributes to three output rows. `pack` prepares the weights of a block once per step.
"""

import torch
import triton
import triton.language as tl

from codinet.kernels.launching import launch

# How a row is read and how it is written.
PLAIN, ACTIVATED, GRADIENT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
FEATURES, MASKED, RESIDUAL = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def activated(x, mask, scale, shift, ACT: tl.constexpr):
    """Applies BatchNorm and ReLU to features if ACT. The result is zero outside the map."""
    if ACT:
        return tl.where(mask, tl.maximum(x.to(tl.float32) * scale + shift, 0.0), 0.0).to(x.dtype)
    return x


@triton.jit
def normalised_gradient(dz, y, mask, a, b, c):
    """Gradient of a BatchNorm's input from that of its output: a·dz + b·y + c, and zero outside the map."""
    return tl.where(mask, a * dz.to(tl.float32) + (b * y.to(tl.float32) + c), 0.0).to(dz.dtype)


@triton.jit
def _fetch(in_ptr, y_ptr, offset, mask, READ: tl.constexpr):
    x = tl.load(in_ptr + offset, mask=mask, other=0.0)
    y = x
    if READ == GRADIENT:
        y = tl.load(y_ptr + offset, mask=mask, other=0.0)
    return x, y


@triton.jit
def _read(x, y, mask, c0, c1, c2, READ: tl.constexpr):
    if READ == GRADIENT:
        return normalised_gradient(x, y, mask, c0, c1, c2)
    return activated(x, mask, c0, c1, READ == ACTIVATED)


@triton.jit
def conv3x3(
    in_ptr,  # features, or the gradient of the BatchNorm's output
    in_y_ptr,  # GRADIENT: the input of that BatchNorm
    in_coefficients_ptr,  # [3, C]: scale, shift (ACTIVATED) or a, b, c (GRADIENT)
    weights_ptr,  # packed by `pack`
    out_ptr,
    sums_ptr,  # [programs, 2, PAIR·C]; FEATURES: y, y²; MASKED: dz, dz·y
    y_ptr,  # MASKED: the input of the BatchNorm before the ReLU
    y_coefficients_ptr,  # MASKED: its scale and shift
    dz_ptr,  # RESIDUAL: the gradient of the shortcut inside F
    dout_ptr,  # RESIDUAL: the gradient of the routed block's output
    dpool_ptr,  # RESIDUAL: the gradient of its mean over pixels
    run_ptr,  # RESIDUAL: the decisions; a skipped block passes its gradient through
    number,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    IMAGES: tl.constexpr,
    ROWS: tl.constexpr,
    PAIR: tl.constexpr,
    READ: tl.constexpr,
    WRITE: tl.constexpr,
    ROUTED: tl.constexpr,
    POOLED: tl.constexpr,
):
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    COLUMNS: tl.constexpr = W // PAIR
    WINDOW: tl.constexpr = 4 if PAIR == 2 else 1
    program = tl.program_id(0)
    top = (program % (H // ROWS)) * ROWS
    m = tl.arange(0, IMAGES * COLUMNS)
    image = (program // (H // ROWS)) * IMAGES + m // COLUMNS
    column = (m % COLUMNS) * PAIR
    valid = image < number
    base = (image * (H * W) + column) * C
    k = tl.arange(0, WINDOW * C)
    o = tl.arange(0, PAIR * C)

    c0 = tl.zeros([WINDOW * C], tl.float32)[None, :]
    c1, c2 = c0, c0
    if READ != PLAIN:
        c0 = tl.load(in_coefficients_ptr + k % C)[None, :]
        c1 = tl.load(in_coefficients_ptr + C + k % C)[None, :]
    if READ == GRADIENT:
        c2 = tl.load(in_coefficients_ptr + 2 * C + k % C)[None, :]
    if WRITE == MASKED:
        scale = tl.load(y_coefficients_ptr + o % C)[None, :]
        shift = tl.load(y_coefficients_ptr + C + o % C)[None, :]
    if WRITE == RESIDUAL and ROUTED:
        skipped = 1 - tl.load(run_ptr + image, mask=valid, other=1.0)[:, None]
        dpool = 0.0
        if POOLED:
            dpool = tl.load(dpool_ptr + image[:, None] * C + (o % C)[None, :], mask=valid[:, None], other=0.0) / (H * W)

    TILE: tl.constexpr = WINDOW * C * PAIR * C
    weights = weights_ptr + k[:, None] * (PAIR * C) + o[None, :]
    if PAIR == 2:
        w0, w1, w2 = tl.load(weights), tl.load(weights + TILE), tl.load(weights + 2 * TILE)
    else:
        w0, w0b, w0c = tl.load(weights), tl.load(weights + TILE), tl.load(weights + 2 * TILE)
        w1, w1b, w1c = tl.load(weights + 3 * TILE), tl.load(weights + 4 * TILE), tl.load(weights + 5 * TILE)
        w2, w2b, w2c = tl.load(weights + 6 * TILE), tl.load(weights + 7 * TILE), tl.load(weights + 8 * TILE)

    offset = base[:, None] - C + k[None, :]
    own = base[:, None] + o[None, :]
    at = column[:, None] - 1 + (k // C)[None, :]
    valid = valid[:, None]
    left = valid & (at >= 0) & (at < W)
    right = valid & (column[:, None] + 1 < W)

    above = tl.zeros([IMAGES * COLUMNS, PAIR * C], tl.float32)
    here = tl.zeros([IMAGES * COLUMNS, PAIR * C], tl.float32)
    sum1 = tl.zeros([IMAGES * COLUMNS, PAIR * C], tl.float32)
    sum2 = tl.zeros([IMAGES * COLUMNS, PAIR * C], tl.float32)
    # The row above the image is zero, so a program that computes all rows starts with the first.
    first = top - (0 if ROWS == H else 1)
    begin = offset + first * (W * C)
    x0, y0 = _fetch(in_ptr, in_y_ptr, begin, left & (first >= 0), READ)
    if PAIR == 1:
        x1, y1 = _fetch(in_ptr, in_y_ptr, begin + C, valid & (first >= 0), READ)
        x2, y2 = _fetch(in_ptr, in_y_ptr, begin + 2 * C, right & (first >= 0), READ)
    for step in range(ROWS + (1 if ROWS == H else 2)):
        row = first + step
        inside = (row >= 0) & (row < H)
        line = row * (W * C)
        index = own + (line - W * C)
        full = valid & (row > top) & (row <= top + ROWS)
        # Loads for this step's output and for the next step's input are issued before the products.
        if WRITE == MASKED:
            y = tl.load(y_ptr + index, mask=full, other=0.0)
        if WRITE == RESIDUAL:
            dz = tl.load(dz_ptr + index, mask=full, other=0.0)
            if ROUTED:
                dout = tl.load(dout_ptr + index, mask=full, other=0.0)
        more = (row + 1 < H) & (row < top + ROWS)
        x = _read(x0, y0, left & inside, c0, c1, c2, READ)
        x0, y0 = _fetch(in_ptr, in_y_ptr, offset + (line + W * C), left & more, READ)
        above = tl.dot(x, w2, above, input_precision="ieee")
        here = tl.dot(x, w1, here, input_precision="ieee")
        below = tl.dot(x, w0, input_precision="ieee")
        if PAIR == 1:
            x = _read(x1, y1, valid & inside, c0, c1, c2, READ)
            x1, y1 = _fetch(in_ptr, in_y_ptr, offset + (line + W * C + C), valid & more, READ)
            above = tl.dot(x, w2b, above, input_precision="ieee")
            here = tl.dot(x, w1b, here, input_precision="ieee")
            below = tl.dot(x, w0b, below, input_precision="ieee")
            x = _read(x2, y2, right & inside, c0, c1, c2, READ)
            x2, y2 = _fetch(in_ptr, in_y_ptr, offset + (line + W * C + 2 * C), right & more, READ)
            above = tl.dot(x, w2c, above, input_precision="ieee")
            here = tl.dot(x, w1c, here, input_precision="ieee")
            below = tl.dot(x, w0c, below, input_precision="ieee")
        # The output row above is now complete.
        if WRITE == FEATURES:
            out = above.to(dtype)
            tl.store(out_ptr + index, out, mask=full)
            f = tl.where(full, out.to(tl.float32), 0.0)
            sum1 += f
            sum2 += f * f
        elif WRITE == MASKED:
            f = y.to(tl.float32)
            out = tl.where(full & (f * scale + shift > 0), above, 0.0).to(dtype)
            tl.store(out_ptr + index, out, mask=full)
            sum1 += out.to(tl.float32)
            sum2 += out.to(tl.float32) * f
        else:
            dx = above + dz.to(tl.float32)
            if ROUTED:
                dx += skipped * (dout.to(tl.float32) + dpool)
            tl.store(out_ptr + index, dx.to(dtype), mask=full)
        above = here
        here = below
    if WRITE != RESIDUAL:
        place = sums_ptr + program * (2 * PAIR * C) + o
        tl.store(place, tl.sum(sum1, axis=0))
        tl.store(place + PAIR * C, tl.sum(sum2, axis=0))


@triton.jit
def conv3x3_weight(
    in_ptr,
    in_coefficients_ptr,
    dz_ptr,
    y_ptr,
    dz_coefficients_ptr,
    out_ptr,  # [programs, 9, C, C] (PAIR 1) or [programs, 3, 4C, 2C]; `add_weights` sums over programs
    number,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    IMAGES: tl.constexpr,
    PAIR: tl.constexpr,
    READ: tl.constexpr,
):
    dtype: tl.constexpr = in_ptr.dtype.element_ty
    COLUMNS: tl.constexpr = W // PAIR
    WINDOW: tl.constexpr = 4 if PAIR == 2 else 1
    m = tl.arange(0, IMAGES * COLUMNS)
    column = (m % COLUMNS) * PAIR
    k = tl.arange(0, WINDOW * C)
    o = tl.arange(0, PAIR * C)
    c0 = tl.zeros([WINDOW * C], tl.float32)[None, :]
    c1 = c0
    if READ == ACTIVATED:
        c0 = tl.load(in_coefficients_ptr + k % C)[None, :]
        c1 = tl.load(in_coefficients_ptr + C + k % C)[None, :]
    a = tl.load(dz_coefficients_ptr + o % C)[None, :]
    b = tl.load(dz_coefficients_ptr + C + o % C)[None, :]
    c = tl.load(dz_coefficients_ptr + 2 * C + o % C)[None, :]
    at = column[:, None] - 1 + (k // C)[None, :]
    left = (at >= 0) & (at < W)

    g0 = tl.zeros([WINDOW * C, PAIR * C], tl.float32)
    g1 = tl.zeros([WINDOW * C, PAIR * C], tl.float32)
    g2 = tl.zeros([WINDOW * C, PAIR * C], tl.float32)
    if PAIR == 1:
        g0b = tl.zeros([C, C], tl.float32)
        g1b = tl.zeros([C, C], tl.float32)
        g2b = tl.zeros([C, C], tl.float32)
        g0c = tl.zeros([C, C], tl.float32)
        g1c = tl.zeros([C, C], tl.float32)
        g2c = tl.zeros([C, C], tl.float32)
    image = tl.program_id(0) * IMAGES + m // COLUMNS
    valid = image < number
    base = (image * (H * W) + column) * C
    offset = base[:, None] - C + k[None, :]
    own = base[:, None] + o[None, :]
    valid_rows = valid[:, None]
    d_above = tl.zeros([IMAGES * COLUMNS, PAIR * C], dtype)
    dz, y = _fetch(dz_ptr, y_ptr, own, valid_rows, GRADIENT)
    d_here = normalised_gradient(dz, y, valid_rows, a, b, c)
    dz, y = _fetch(dz_ptr, y_ptr, own + W * C, valid_rows, GRADIENT)
    border = left & valid_rows
    edge = valid_rows & (column[:, None] + 1 < W)
    x0 = tl.load(in_ptr + offset, mask=border, other=0.0)
    if PAIR == 1:
        x1 = tl.load(in_ptr + offset + C, mask=valid_rows, other=0.0)
        x2 = tl.load(in_ptr + offset + 2 * C, mask=edge, other=0.0)
    for row in range(H):
        line = (row + 1) * (W * C)
        more = row + 1 < H
        d_below = normalised_gradient(dz, y, valid_rows & more, a, b, c)
        dz, y = _fetch(dz_ptr, y_ptr, own + (line + W * C), valid_rows & (row + 2 < H), GRADIENT)
        x = tl.trans(activated(x0, border, c0, c1, READ == ACTIVATED))
        x0 = tl.load(in_ptr + offset + line, mask=border & more, other=0.0)
        g0 = tl.dot(x, d_below, g0, input_precision="ieee")
        g1 = tl.dot(x, d_here, g1, input_precision="ieee")
        g2 = tl.dot(x, d_above, g2, input_precision="ieee")
        if PAIR == 1:
            x = tl.trans(activated(x1, valid_rows, c0, c1, READ == ACTIVATED))
            x1 = tl.load(in_ptr + offset + (line + C), mask=valid_rows & more, other=0.0)
            g0b = tl.dot(x, d_below, g0b, input_precision="ieee")
            g1b = tl.dot(x, d_here, g1b, input_precision="ieee")
            g2b = tl.dot(x, d_above, g2b, input_precision="ieee")
            x = tl.trans(activated(x2, edge, c0, c1, READ == ACTIVATED))
            x2 = tl.load(in_ptr + offset + (line + 2 * C), mask=edge & more, other=0.0)
            g0c = tl.dot(x, d_below, g0c, input_precision="ieee")
            g1c = tl.dot(x, d_here, g1c, input_precision="ieee")
            g2c = tl.dot(x, d_above, g2c, input_precision="ieee")
        d_above = d_here
        d_here = d_below
    TILE: tl.constexpr = WINDOW * C * PAIR * C
    index = k[:, None] * (PAIR * C) + o[None, :]
    out = out_ptr + tl.program_id(0) * ((9 if PAIR == 1 else 3) * TILE)
    if PAIR == 2:
        tl.store(out + index, g0)
        tl.store(out + TILE + index, g1)
        tl.store(out + 2 * TILE + index, g2)
    else:
        tl.store(out + index, g0)
        tl.store(out + TILE + index, g0b)
        tl.store(out + 2 * TILE + index, g0c)
        tl.store(out + 3 * TILE + index, g1)
        tl.store(out + 4 * TILE + index, g1b)
        tl.store(out + 5 * TILE + index, g1c)
        tl.store(out + 6 * TILE + index, g2)
        tl.store(out + 7 * TILE + index, g2b)
        tl.store(out + 8 * TILE + index, g2c)


@triton.jit
def add_weights(
    parts_ptr,
    out_ptr,  # Cout×Cin×3×3, float32
    stride_out,
    stride_in,
    stride_tap,
    PARTS: tl.constexpr,
    C: tl.constexpr,
    PAIR: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Sums the partial weight gradients of `conv3x3_weight` in a fixed order."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # tap, Cin, Cout; Cout varies fastest, as in the parts
    tap, cin, cout = i // (C * C), (i // C) % C, i % C
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, PARTS, ROWS):
        part = start + tl.arange(0, ROWS)
        here = (part < PARTS)[:, None]
        if PAIR == 1:
            index = part[:, None] * (9 * C * C) + i[None, :]
            total += tl.sum(tl.load(parts_ptr + index, mask=here, other=0.0), axis=0)
        else:
            dy, dx = tap // 3, tap % 3
            first = dy * (8 * C * C) + (dx * C + cin) * (2 * C) + cout
            second = first + C * (2 * C) + C
            index = part[:, None] * (24 * C * C)
            total += tl.sum(tl.load(parts_ptr + index + first[None, :], mask=here, other=0.0), axis=0)
            total += tl.sum(tl.load(parts_ptr + index + second[None, :], mask=here, other=0.0), axis=0)
    tl.store(out_ptr + cout * stride_out + cin * stride_in + tap * stride_tap, total)


@triton.jit
def _pack(
    weight1_ptr,
    weight2_ptr,
    out_ptr,  # [2 convolutions, forward and backward, rows of taps, WINDOW·C, PAIR·C]
    stride_out,
    stride_in,
    stride_tap,
    C: tl.constexpr,
    PAIR: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Packs one row of taps (PAIR 2) or one tap (PAIR 1) as [WINDOW·C, PAIR·C].

    The rows are the WINDOW input pixels that PAIR output pixels read. The backward pass is the transposed convolution:
    its taps are reversed and its channels swapped.
    """
    TAPS: tl.constexpr = 3 if PAIR == 2 else 9
    which = tl.program_id(0) // (2 * TAPS)
    back = (tl.program_id(0) // TAPS) % 2
    line = tl.program_id(0) % TAPS
    i = tl.arange(0, WINDOW * C)[:, None]
    o = tl.arange(0, PAIR * C)[None, :]
    if PAIR == 2:
        dx = i // C - o // C
        tap = line * 3 + dx
    else:
        dx = i // C  # one tap per program, which always exists
        tap = line + dx
    valid = (dx >= 0) & (dx < 3)
    stride_i = tl.where(back == 1, stride_out, stride_in)
    stride_o = tl.where(back == 1, stride_in, stride_out)
    tap = tl.where(back == 1, 8 - tap, tap)
    source = tl.where(which == 1, weight2_ptr.to(tl.int64), weight1_ptr.to(tl.int64)).to(tl.pointer_type(tl.float32))
    values = tl.load(source + (i % C) * stride_i + (o % C) * stride_o + tap * stride_tap, mask=valid, other=0.0)
    place = out_ptr + tl.program_id(0) * (WINDOW * C * PAIR * C) + i * (PAIR * C) + o
    tl.store(place, values.to(out_ptr.dtype.element_ty))


def pack(weight1: torch.Tensor, weight2: torch.Tensor, pair: int, dtype: torch.dtype) -> torch.Tensor:
    """Packs the weights of a block's convolutions for the forward and the backward pass.

    Args:
        weight1: First convolution, C×C×3×3, float32.
        weight2: Second convolution, with the same memory format.
        pair: Output pixels computed together, see `tile_sizes`.
        dtype: The dtype of the packed weights.

    Returns:
        2 convolutions × (forward, backward) × rows of taps × (window · C) × (pair · C).
    """
    assert weight1.stride() == weight2.stride()
    channels, window, taps = len(weight1), 4 if pair == 2 else 1, 3 if pair == 2 else 9
    out = torch.empty(2, 2, taps, window * channels, pair * channels, dtype=dtype, device=weight1.device)
    stride_out, stride_in, _, stride_tap = weight1.stride()
    launch(
        _pack,
        (4 * taps,),
        *(weight1, weight2, out, stride_out, stride_in, stride_tap),
        C=channels,
        PAIR=pair,
        WINDOW=window,
        num_warps=4,
    )
    return out
