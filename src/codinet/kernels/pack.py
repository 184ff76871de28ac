"""A block's weights in the shape and type that the convolution kernels read: once a step, for all that use them."""

import torch
import triton
import triton.language as tl

from codinet.kernels.launching import launch


@triton.jit
def _pack(
    weight1_ptr,
    weight2_ptr,
    out_ptr,  # [2 convolutions, forward and back, rows of taps, WINDOW·C, PAIR·C]
    stride_out,
    stride_in,
    stride_tap,
    C: tl.constexpr,
    PAIR: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """One row of taps (PAIR 2) or one tap (PAIR 1) as [WINDOW·C, PAIR·C]: from the WINDOW input pixels that a group of
    PAIR output pixels reads. Backwards, taps are turned round and channels swapped: the transposed convolution."""
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
        dx = i // C  # one tap a program, and it is there
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
    """Both convolutions of a block (Cout×Cin×3×3, float32, one memory format), forward and back."""
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
