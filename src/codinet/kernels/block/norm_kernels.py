"""BatchNorm coefficients from batch sums, and the end of a routed block.

BatchNorm is y·scale + shift per channel, and its gradient is a·dz + b·y + c. The convolution kernels leave sums over
the batch in parts; `norm_forward` and `norm_backward` add them in a fixed order and compute these coefficients.

`mix_forward` computes v·relu(BN(y) + x) + (1 − v)·x and the mean over pixels that the next router reads. A program
processes one image, so its mean and the gradient of its decision need no second pass.
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
def mix_forward(
    y_ptr,
    x_ptr,
    coefficients_ptr,  # scale, shift
    run_ptr,
    out_ptr,
    pool_ptr,
    PIXELS: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    ROUTED: tl.constexpr,
):
    image = tl.program_id(0)
    o = tl.arange(0, C)[None, :]
    scale, shift = tl.load(coefficients_ptr + o), tl.load(coefficients_ptr + C + o)
    if ROUTED:
        run = tl.load(run_ptr + image)
    total = tl.zeros([BLOCK, C], tl.float32)
    for start in range(0, PIXELS, BLOCK):
        index = (image * PIXELS + start + tl.arange(0, BLOCK)[:, None]) * C + o
        x = tl.load(x_ptr + index).to(tl.float32)
        out = tl.maximum(tl.load(y_ptr + index).to(tl.float32) * scale + shift + x, 0.0)
        if ROUTED:
            out = run * out + (1 - run) * x  # exact for run = 0 and run = 1
        out = out.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + index, out)
        total += out.to(tl.float32)
    tl.store(pool_ptr + image * C + tl.arange(0, C), tl.sum(total, axis=0) / PIXELS)


@triton.jit
def mix_backward(
    dout_ptr,
    dpool_ptr,
    y_ptr,
    x_ptr,
    coefficients_ptr,
    run_ptr,
    dz_ptr,
    sums_ptr,  # [images, 2, C]: dz, dz·y
    drun_ptr,
    PIXELS: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    ROUTED: tl.constexpr,
    POOLED: tl.constexpr,
):
    image = tl.program_id(0)
    o = tl.arange(0, C)[None, :]
    scale, shift = tl.load(coefficients_ptr + o), tl.load(coefficients_ptr + C + o)
    if POOLED:
        dpool = tl.load(dpool_ptr + image * C + o) / PIXELS
    if ROUTED:
        run = tl.load(run_ptr + image)
    sum1 = tl.zeros([BLOCK, C], tl.float32)
    sum2 = tl.zeros([BLOCK, C], tl.float32)
    drun = tl.zeros([BLOCK, C], tl.float32)
    for start in range(0, PIXELS, BLOCK):
        index = (image * PIXELS + start + tl.arange(0, BLOCK)[:, None]) * C + o
        x = tl.load(x_ptr + index).to(tl.float32)
        y = tl.load(y_ptr + index).to(tl.float32)
        dout = tl.load(dout_ptr + index).to(tl.float32)
        if POOLED:
            dout += dpool
        z = y * scale + shift + x
        if ROUTED:
            drun += dout * (tl.maximum(z, 0.0) - x)
            dout = run * dout
        dz = tl.where(z > 0, dout, 0.0).to(dz_ptr.dtype.element_ty)
        tl.store(dz_ptr + index, dz)
        dz = dz.to(tl.float32)
        sum1 += dz
        sum2 += dz * y
    place = sums_ptr + image * (2 * C) + tl.arange(0, C)
    tl.store(place, tl.sum(sum1, axis=0))
    tl.store(place + C, tl.sum(sum2, axis=0))
    if ROUTED:
        tl.store(drun_ptr + image, tl.sum(drun))
