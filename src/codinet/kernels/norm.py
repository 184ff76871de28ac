"""Between two convolutions: from sums over a batch to the numbers that reading the next one applies.

BatchNorm is y·scale + shift for each channel; its gradient is a·dz + b·y + c. Both need sums over the whole batch,
which the kernels before them leave in parts; here one small program adds them up, always in the same order.
"""

import triton
import triton.language as tl

CHANNELS = 16  # of a program


@triton.jit
def _total(sums_ptr, o, which: tl.constexpr, PARTS: tl.constexpr, C: tl.constexpr, PAIR: tl.constexpr):
    ROWS: tl.constexpr = min(1024, triton.next_power_of_2(PARTS))  # all at once where that is possible
    total = tl.zeros([ROWS, 16], tl.float32)
    for start in range(0, PARTS, ROWS):
        part = start + tl.arange(0, ROWS)[:, None]
        spot = sums_ptr + (part * 2 + which) * (PAIR * C) + o[None, :]
        total += tl.load(spot, mask=part < PARTS, other=0.0)
        if PAIR == 2:
            total += tl.load(spot + C, mask=part < PARTS, other=0.0)
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
    forward_ptr,  # what `norm_forward` left
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
