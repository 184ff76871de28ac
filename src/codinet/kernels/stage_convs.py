"""The convolutions of `stage`, as parts of its kernel: 3×3, over an image of pixels × channels (NHWC) in memory.

A convolution has one of three forms, each in a file of its own: taps, rows, pairs. No feature may be negative, which
holds after a ReLU. A program computes its share of an image, its `part` of SPLIT. Knows nothing of blocks or routers,
nor of waiting for other programs.
"""

import triton
import triton.language as tl

from codinet.kernels.stage_pairs import pairs
from codinet.kernels.stage_rows import rows
from codinet.kernels.stage_taps import taps

TAPS = tl.constexpr(0)
ROWS = tl.constexpr(1)
PAIRS = tl.constexpr(2)


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
        # fmt: off
        sums_C = pairs(
            source_ptr, target_ptr, weight_ptr, bias_ptr, part, H, W, C, BM, ACROSS, STAGES, SPLIT, ADDS, SUMS,
            CACHE,
        )
        # fmt: on
    elif FORM == ROWS:
        # fmt: off
        sums_C = rows(
            source_ptr, target_ptr, weight_ptr, bias_ptr, part, H, W, C, BM, ACROSS, STAGES, SPLIT, ADDS, SUMS,
            CACHE,
        )
        # fmt: on
    else:
        sums_C = taps(
            source_ptr, target_ptr, weight_ptr, bias_ptr, part, H, W, C, C, 1, BM, BN, STAGES, SPLIT, ADDS, SUMS, CACHE
        )
    return sums_C
