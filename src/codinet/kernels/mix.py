"""The end of a routed block: v·relu(BN(y) + x) + (1 − v)·x, with the mean over pixels the next router asks for.

A program takes one image, so what belongs to an image (its mean, the gradient of its decision) needs no second pass.
"""

import triton
import triton.language as tl


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
        spot = (image * PIXELS + start + tl.arange(0, BLOCK)[:, None]) * C + o
        x = tl.load(x_ptr + spot).to(tl.float32)
        out = tl.maximum(tl.load(y_ptr + spot).to(tl.float32) * scale + shift + x, 0.0)
        if ROUTED:
            out = run * out + (1 - run) * x  # exact at both ends
        out = out.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + spot, out)
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
        spot = (image * PIXELS + start + tl.arange(0, BLOCK)[:, None]) * C + o
        x = tl.load(x_ptr + spot).to(tl.float32)
        y = tl.load(y_ptr + spot).to(tl.float32)
        dout = tl.load(dout_ptr + spot).to(tl.float32)
        if POOLED:
            dout += dpool
        z = y * scale + shift + x
        if ROUTED:
            drun += dout * (tl.maximum(z, 0.0) - x)
            dout = run * dout
        dz = tl.where(z > 0, dout, 0.0).to(dz_ptr.dtype.element_ty)
        tl.store(dz_ptr + spot, dz)
        dz = dz.to(tl.float32)
        sum1 += dz
        sum2 += dz * y
    place = sums_ptr + image * (2 * C) + tl.arange(0, C)
    tl.store(place, tl.sum(sum1, axis=0))
    tl.store(place + C, tl.sum(sum2, axis=0))
    if ROUTED:
        tl.store(drun_ptr + image, tl.sum(drun))
