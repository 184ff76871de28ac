"""BatchNorm coefficients from batch sums, and the end of a routed block.

BatchNorm is y·scale + shift per channel, and its gradient is a·dz + b·y + c. `batch_sums` and the convolution kernels
leave sums over the batch in parts; `norm_forward` and `norm_backward` add them in a fixed order and compute these
coefficients.

`mix_forward` computes v·relu(BN(y) + x) + (1 − v)·x, where x is the shortcut, and the mean over pixels that the next
router reads. A program processes WIDTH channels of one image, so their means need no second pass, and the gradient of
a decision is a sum over few parts.
"""

import triton
import triton.language as tl

CHANNELS = 16  # per program of the norm kernels


@triton.jit
def _total(sums_ptr, o, which: tl.constexpr, PARTS: tl.constexpr, C: tl.constexpr, PAIR: tl.constexpr):
    ROWS: tl.constexpr = min(1024, triton.next_power_of_2(PARTS))  # all parts at once, up to 1,024
    total = tl.zeros([ROWS, 16], tl.float32)
    for start in range(0, PARTS, ROWS):
        part = start + tl.arange(0, ROWS)[:, None]
        index = sums_ptr + (part * 2 + which) * (PAIR * C) + o[None, :]
        total += tl.load(index, mask=part < PARTS, other=0.0)
        if PAIR == 2:
            total += tl.load(index + C, mask=part < PARTS, other=0.0)
    return tl.sum(total, axis=0)


@triton.jit
def norm_forward(
    sums_ptr,  # y, y²
    gamma_ptr,
    beta_ptr,
    running_mean_ptr,
    running_var_ptr,
    batches_ptr,
    out_ptr,  # [4, C]: scale, shift, mean, 1/σ
    count,
    momentum,
    eps,
    PARTS: tl.constexpr,
    C: tl.constexpr,
    PAIR: tl.constexpr,
):
    o = tl.program_id(0) * 16 + tl.arange(0, 16)
    mean = _total(sums_ptr, o, 0, PARTS, C, PAIR) / count
    var = tl.maximum(_total(sums_ptr, o, 1, PARTS, C, PAIR) / count - mean * mean, 0.0)
    rstd = 1 / tl.sqrt(var + eps)
    scale = tl.load(gamma_ptr + o) * rstd
    tl.store(out_ptr + o, scale)
    tl.store(out_ptr + C + o, tl.load(beta_ptr + o) - mean * scale)
    tl.store(out_ptr + 2 * C + o, mean)
    tl.store(out_ptr + 3 * C + o, rstd)
    old_mean, old_var = tl.load(running_mean_ptr + o), tl.load(running_var_ptr + o)
    tl.store(running_mean_ptr + o, old_mean + momentum * (mean - old_mean))
    tl.store(running_var_ptr + o, old_var + momentum * (var * (count / (count - 1)) - old_var))
    if tl.program_id(0) == 0:
        tl.store(batches_ptr, tl.load(batches_ptr) + 1)


@triton.jit
def norm_backward(
    sums_ptr,  # dz, dz·y
    gamma_ptr,
    forward_ptr,  # the output of `norm_forward`
    out_ptr,  # [3, C]: a, b, c
    dgamma_ptr,
    dbeta_ptr,
    count,
    PARTS: tl.constexpr,
    C: tl.constexpr,
    PAIR: tl.constexpr,
):
    o = tl.program_id(0) * 16 + tl.arange(0, 16)
    mean, rstd = tl.load(forward_ptr + 2 * C + o), tl.load(forward_ptr + 3 * C + o)
    dbeta = _total(sums_ptr, o, 0, PARTS, C, PAIR)
    dgamma = (_total(sums_ptr, o, 1, PARTS, C, PAIR) - mean * dbeta) * rstd
    a = tl.load(gamma_ptr + o) * rstd
    b = -a * rstd * dgamma / count
    tl.store(out_ptr + o, a)
    tl.store(out_ptr + C + o, b)
    tl.store(out_ptr + 2 * C + o, -a * dbeta / count - b * mean)
    tl.store(dgamma_ptr + o, dgamma)
    tl.store(dbeta_ptr + o, dbeta)


@triton.jit
def batch_sums(
    y_ptr,
    sums_ptr,  # [parts, 2, C]: y, y²
    rows,  # pixels of all images
    ROWS: tl.constexpr,  # of a part
    C: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    part = tl.program_id(0)
    o = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    sum1 = tl.zeros([BLOCK, WIDTH], tl.float32)
    sum2 = tl.zeros([BLOCK, WIDTH], tl.float32)
    for start in range(0, ROWS, BLOCK):
        row = part * ROWS + start + tl.arange(0, BLOCK)[:, None]
        y = tl.load(y_ptr + row * C + o[None, :], mask=row < rows, other=0.0).to(tl.float32)
        sum1 += y
        sum2 += y * y
    place = sums_ptr + part * (2 * C) + o
    tl.store(place, tl.sum(sum1, axis=0))
    tl.store(place + C, tl.sum(sum2, axis=0))


@triton.jit
def _load(ptr, index, valid, EXACT: tl.constexpr):
    value = tl.load(ptr + index) if EXACT else tl.load(ptr + index, mask=valid, other=0.0)
    return value.to(tl.float32)


@triton.jit
def _store(ptr, index, value, valid, EXACT: tl.constexpr):
    if EXACT:
        tl.store(ptr + index, value)
    else:
        tl.store(ptr + index, value, mask=valid)


@triton.jit
def mix_forward(
    y_ptr,
    x_ptr,
    coefficients_ptr,  # scale, shift
    run_ptr,
    out_ptr,
    pool_ptr,
    PIXELS: tl.constexpr,
    C: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROUTED: tl.constexpr,
):
    image = tl.program_id(0)
    EXACT: tl.constexpr = PIXELS % BLOCK == 0
    channels = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    o = channels[None, :]
    scale, shift = tl.load(coefficients_ptr + o), tl.load(coefficients_ptr + C + o)
    if ROUTED:
        run = tl.load(run_ptr + image)
    total = tl.zeros([BLOCK, WIDTH], tl.float32)
    for start in range(0, PIXELS, BLOCK):
        pixel = start + tl.arange(0, BLOCK)[:, None]
        index, valid = (image * PIXELS + pixel) * C + o, pixel < PIXELS
        x = _load(x_ptr, index, valid, EXACT)
        out = tl.maximum(_load(y_ptr, index, valid, EXACT) * scale + shift + x, 0.0)
        if ROUTED:
            out = run * out + (1 - run) * x  # exact for run = 0 and run = 1
        out = out.to(out_ptr.dtype.element_ty)
        _store(out_ptr, index, out, valid, EXACT)
        out = out.to(tl.float32)
        if not EXACT:
            out = tl.where(valid, out, 0.0)
        total += out
    tl.store(pool_ptr + image * C + channels, tl.sum(total, axis=0) / PIXELS)


@triton.jit
def mix_backward(
    dout_ptr,
    dpool_ptr,
    y_ptr,
    x_ptr,
    coefficients_ptr,
    run_ptr,
    dz_ptr,  # None: not stored
    sums_ptr,  # [images, 2, C]: dz, dz·y
    drun_ptr,  # [images, C / WIDTH]
    PIXELS: tl.constexpr,
    C: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROUTED: tl.constexpr,
    POOLED: tl.constexpr,
    STORED: tl.constexpr,
):
    image = tl.program_id(0)
    EXACT: tl.constexpr = PIXELS % BLOCK == 0
    channels = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    o = channels[None, :]
    scale, shift = tl.load(coefficients_ptr + o), tl.load(coefficients_ptr + C + o)
    if POOLED:
        dpool = tl.load(dpool_ptr + image * C + o) / PIXELS
    if ROUTED:
        run = tl.load(run_ptr + image)
    sum1 = tl.zeros([BLOCK, WIDTH], tl.float32)
    sum2 = tl.zeros([BLOCK, WIDTH], tl.float32)
    drun = tl.zeros([BLOCK, WIDTH], tl.float32)
    for start in range(0, PIXELS, BLOCK):
        pixel = start + tl.arange(0, BLOCK)[:, None]
        index, valid = (image * PIXELS + pixel) * C + o, pixel < PIXELS
        x = _load(x_ptr, index, valid, EXACT)
        y = _load(y_ptr, index, valid, EXACT)
        dout = _load(dout_ptr, index, valid, EXACT)
        if POOLED:
            dout += dpool
        if not EXACT:
            dout = tl.where(valid, dout, 0.0)
        z = y * scale + shift + x
        if ROUTED:
            drun += dout * (tl.maximum(z, 0.0) - x)
            dout = run * dout
        dz = tl.where(z > 0, dout, 0.0)
        if STORED:
            dz = dz.to(dz_ptr.dtype.element_ty)
            _store(dz_ptr, index, dz, valid, EXACT)
            dz = dz.to(tl.float32)
        sum1 += dz
        sum2 += dz * y
    place = sums_ptr + image * (2 * C) + channels
    tl.store(place, tl.sum(sum1, axis=0))
    tl.store(place + C, tl.sum(sum2, axis=0))
    if ROUTED:
        tl.store(drun_ptr + image * (C // WIDTH) + tl.program_id(1), tl.sum(drun))


@triton.jit
def mix_inputs(
    dout_ptr,
    dpool_ptr,
    y_ptr,
    x_ptr,
    coefficients_ptr,
    gradient_ptr,  # a, b, c of `norm_backward`
    run_ptr,
    dy_ptr,
    dx_ptr,
    PIXELS: tl.constexpr,
    C: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROUTED: tl.constexpr,
    POOLED: tl.constexpr,
):
    image = tl.program_id(0)
    EXACT: tl.constexpr = PIXELS % BLOCK == 0
    o = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    scale, shift = tl.load(coefficients_ptr + o), tl.load(coefficients_ptr + C + o)
    a, b, c = tl.load(gradient_ptr + o), tl.load(gradient_ptr + C + o), tl.load(gradient_ptr + 2 * C + o)
    if POOLED:
        dpool = tl.load(dpool_ptr + image * C + o) / PIXELS
    if ROUTED:
        run = tl.load(run_ptr + image)
    for start in range(0, PIXELS, BLOCK):
        pixel = start + tl.arange(0, BLOCK)[:, None]
        index, valid = (image * PIXELS + pixel) * C + o, pixel < PIXELS
        x = _load(x_ptr, index, valid, EXACT)
        y = _load(y_ptr, index, valid, EXACT)
        dout = _load(dout_ptr, index, valid, EXACT)
        if POOLED:
            dout += dpool
        passed = y * scale + shift + x > 0
        if ROUTED:
            dz = tl.where(passed, run * dout, 0.0)
            dx = dz + (1 - run) * dout
        else:
            dz = tl.where(passed, dout, 0.0)
            dx = dz
        _store(dy_ptr, index, (a * dz + b * y + c).to(dy_ptr.dtype.element_ty), valid, EXACT)
        _store(dx_ptr, index, dx.to(dx_ptr.dtype.element_ty), valid, EXACT)
