"""All blocks of a stage of a narrow residual network in one launch: a program takes an image through them.

Before each block the program asks the block's router, in its own registers, and really branches: a block that is
skipped costs its router and nothing else. Nobody waits for the host, and no launch stands between two blocks.

Features lie as pixels × channels (NHWC) in one buffer that a stage writes over; what lies between a block's two
convolutions is in a second one. A convolution reads neighbours, so programs meet before the next one begins: the
threads of a program at a barrier, and, where an image is split among several programs (SPLIT > 1), these programs
at a counter in memory, which needs all of them to be on the device at once. Sums are taken in a fixed order, so
that all programs of an image decide alike.

Knows tensors, not networks; what the arguments are made of is in `stage_weights`.
"""

import triton
import triton.language as tl

from codinet.kernels.stage_convs import PAIRS, TAPS, conv, shortcut, taps


@triton.jit
def _meet(ticket_ptr, met, SPLIT: tl.constexpr):
    """Wait until what every program of the image has written so far can be read; the number of meetings so far."""
    tl.debug_barrier()
    if SPLIT > 1:
        met += 1
        # Tickets only grow within a launch, so that nobody has to reset them between two meetings.
        seen = tl.atomic_add(ticket_ptr, 1, sem="acq_rel", scope="gpu") + 1
        while seen < met * SPLIT:
            seen = tl.atomic_add(ticket_ptr, 0, sem="acquire", scope="gpu")
        tl.debug_barrier()
    return met


@triton.jit
def _share(sums_C, partial_ptr, part, C: tl.constexpr, SPLIT: tl.constexpr):
    """Before a meeting: tell the other programs of the image one's own sums."""
    if SPLIT > 1:
        tl.store(partial_ptr + part * C + tl.arange(0, C), sums_C)


@triton.jit
def _gather(sums_C, partial_ptr, C: tl.constexpr, SPLIT: tl.constexpr):
    """After it: everyone's sums, added in the same order by all."""
    if SPLIT > 1:
        at = tl.arange(0, SPLIT)[:, None] * C + tl.arange(0, C)[None, :]
        sums_C = tl.sum(tl.load(partial_ptr + at, cache_modifier=".cg"), axis=0)
    return sums_C


@triton.jit
def _decide(
    pooled_C, router_ptr, limit_ptr, force_ptr, scores_ptr, path_ptr, part, C: tl.constexpr, ROUTED: tl.constexpr
):
    """Whether the block runs. A router is Linear(C, C), ReLU, Linear(C, 2), laid out by `stage_weights`."""
    forced = tl.load(force_ptr).to(tl.int32)
    runs = forced != 0
    skip = 0.0
    run = 0.0
    if ROUTED:
        c = tl.arange(0, C)
        hidden_CC = tl.load(router_ptr + c[:, None] * C + c[None, :])
        hidden_C = tl.sum(hidden_CC * pooled_C[:, None], axis=0) + tl.load(router_ptr + C * C + c)
        hidden_C = tl.maximum(hidden_C, 0.0)
        out_ptr = router_ptr + C * C + C
        skip = tl.sum(hidden_C * tl.load(out_ptr + c), axis=0) + tl.load(out_ptr + 2 * C)
        run = tl.sum(hidden_C * tl.load(out_ptr + C + c), axis=0) + tl.load(out_ptr + 2 * C + 1)
        runs = ((run - skip >= tl.load(limit_ptr)) & (forced == 2)) | (forced == 1)
    if part == 0:
        tl.store(scores_ptr, skip)
        tl.store(scores_ptr + 1, run)
        tl.store(path_ptr, runs.to(tl.float32))
    return runs


@triton.jit
def stage_kernel(
    enter_ptr,  # B×H_IN×W_IN×C_IN, the stage before; where the stage does not begin with a stride, x itself
    x_ptr,  # B×H×W×C
    between_ptr,  # B×H×W×C
    enter_weight_ptr,  # 9×C_IN×C: the first convolution, where it strides
    weight_ptr,  # blocks×2×(9×C×C or 3×4C×2C)
    bias_ptr,  # blocks×2×C, float32
    enter_router_ptr,  # the first block's, where it strides
    router_ptr,  # blocks×(C·C + 3·C + 4), float32
    enter_pooled_ptr,  # B×C_IN, float32: means of the features that enter, where the stage strides
    pooled_ptr,  # B×C, float32: means of the features that leave
    limit_ptr,  # 1, float32: the least margin that runs a block
    force_ptr,  # B×N, int8: 0 skip, 1 run, 2 ask the router
    scores_ptr,  # B×N×2, float32
    path_ptr,  # B×N, float32
    ticket_ptr,  # B, int32, zero
    partial_ptr,  # B×SPLIT×C, float32
    blocks,
    offset,  # of the stage's first block
    N,
    H_IN: tl.constexpr,
    W_IN: tl.constexpr,
    C_IN: tl.constexpr,
    C: tl.constexpr,
    STRIDE: tl.constexpr,  # 2: the first block strides and widens
    ROUTED: tl.constexpr,
    POOLS: tl.constexpr,  # whether the means that leave are wanted
    FORM: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    ACROSS: tl.constexpr,
    STAGES: tl.constexpr,
    SPLIT: tl.constexpr,
):
    H: tl.constexpr = (H_IN + STRIDE - 1) // STRIDE
    W: tl.constexpr = (W_IN + STRIDE - 1) // STRIDE
    # Other multiprocessors write what this one reads where an image is split, so that only L2 may be believed.
    CACHE: tl.constexpr = ".cg" if SPLIT > 1 else ""
    per_conv: tl.constexpr = (24 if FORM == PAIRS else 9) * C * C
    per_router: tl.constexpr = C * C + 3 * C + 4
    scale: tl.constexpr = 1.0 / (H * W)

    image = tl.program_id(0) // SPLIT
    part = tl.program_id(0) % SPLIT
    wide = image.to(tl.int64)
    enter_ptr += wide * (H_IN * W_IN * C_IN)
    x_ptr += wide * (H * W * C)
    between_ptr += wide * (H * W * C)
    ticket_ptr += image
    partial_ptr += image * (SPLIT * C)
    row = image * N + offset
    met = 0
    k = 0

    if STRIDE > 1:
        entered_C = tl.load(enter_pooled_ptr + image * C_IN + tl.arange(0, C_IN))
        at = row
        runs = _decide(
            entered_C,
            enter_router_ptr,
            limit_ptr,
            force_ptr + at,
            scores_ptr + 2 * at,
            path_ptr + at,
            part,
            C_IN,
            ROUTED,
        )
        sums_C = shortcut(enter_ptr, x_ptr, part, H_IN, W_IN, C, C_IN, STRIDE, BM, SPLIT, True, CACHE)
        if runs:
            taps(
                enter_ptr,
                between_ptr,
                enter_weight_ptr,
                bias_ptr,
                part,
                H_IN,
                W_IN,
                C,
                C_IN,
                STRIDE,
                BM,
                BN,
                STAGES,
                SPLIT,
                False,
                False,
                CACHE,
            )
            met = _meet(ticket_ptr, met, SPLIT)
            sums_C = conv(
                between_ptr,
                x_ptr,
                weight_ptr + per_conv,
                bias_ptr + C,
                part,
                H,
                W,
                C,
                FORM,
                BM,
                BN,
                ACROSS,
                STAGES,
                SPLIT,
                True,
                ROUTED,
                CACHE,
            )
        k = 1
    else:
        sums_C = tl.zeros([C], tl.float32)
        if ROUTED:
            sums_C = shortcut(x_ptr, x_ptr, part, H, W, C, C, 1, BM, SPLIT, False, CACHE)
    _share(sums_C, partial_ptr, part, C, SPLIT)
    met = _meet(ticket_ptr, met, SPLIT)
    pooled_C = _gather(sums_C, partial_ptr, C, SPLIT) * scale

    while k < blocks:
        at = row + k
        runs = _decide(
            pooled_C,
            router_ptr + k * per_router,
            limit_ptr,
            force_ptr + at,
            scores_ptr + 2 * at,
            path_ptr + at,
            part,
            C,
            ROUTED,
        )
        if runs:
            own = part
            if FORM == TAPS:
                # Still `part`, but the compiler cannot know: else it keeps every address of both convolutions in
                # registers from block to block, a hundred of them. The other forms need fewer, and lose by it.
                own = part + (k >> 20)
            block_weight_ptr = weight_ptr + k * (2 * per_conv)
            block_bias_ptr = bias_ptr + k * (2 * C)
            conv(
                x_ptr,
                between_ptr,
                block_weight_ptr,
                block_bias_ptr,
                own,
                H,
                W,
                C,
                FORM,
                BM,
                BN,
                ACROSS,
                STAGES,
                SPLIT,
                False,
                False,
                CACHE,
            )
            met = _meet(ticket_ptr, met, SPLIT)
            sums_C = conv(
                between_ptr,
                x_ptr,
                block_weight_ptr + per_conv,
                block_bias_ptr + C,
                own,
                H,
                W,
                C,
                FORM,
                BM,
                BN,
                ACROSS,
                STAGES,
                SPLIT,
                True,
                ROUTED,
                CACHE,
            )
            _share(sums_C, partial_ptr, part, C, SPLIT)
            met = _meet(ticket_ptr, met, SPLIT)
            pooled_C = _gather(sums_C, partial_ptr, C, SPLIT) * scale
        k += 1

    if POOLS:
        if not ROUTED:
            sums_C = shortcut(x_ptr, x_ptr, part, H, W, C, C, 1, BM, SPLIT, False, CACHE)
            _share(sums_C, partial_ptr, part, C, SPLIT)
            met = _meet(ticket_ptr, met, SPLIT)
            pooled_C = _gather(sums_C, partial_ptr, C, SPLIT) * scale
        if part == 0:
            tl.store(pooled_ptr + image * C + tl.arange(0, C), pooled_C)
