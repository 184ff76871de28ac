"""A narrow residual network in one launch: a program takes an image from its pixels to its logits.

The program asks routers in its own registers and really branches: a block that is skipped costs its router and
nothing else. What routers look at changes only when a block runs, so the next few are asked at once, and the program
goes straight to the first that wants to run. Nobody waits for the host, no launch stands between two blocks, and what
an image saves in one stage makes up for what it spends in another before anyone has to wait for the slowest.

Features lie as pixels × channels (NHWC) in one buffer for each stage, which its blocks write over; what lies between
a block's two convolutions is in a second one. A convolution reads neighbours, so programs meet before the next one
begins: the threads of a program at a barrier, and, where an image is split among several programs (SPLIT > 1), these
programs at a counter in memory, which needs all of them to be on the device at once. Sums are taken in a fixed order,
so that all programs of an image decide alike.

Knows tensors, not networks; what the arguments are made of is in `stage_weights`.
"""

import triton
import triton.language as tl

from codinet.kernels.stage_convs import PAIRS, TAPS, conv, shortcut, stem, taps

CLASSES = tl.constexpr(32)  # of a product of the head


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
def _leave(ticket_ptr, SPLIT: tl.constexpr):
    """The last program of an image leaves the tickets as the next launch needs them."""
    if SPLIT > 1:
        left = tl.atomic_add(ticket_ptr + 1, 1, sem="acq_rel", scope="gpu") + 1
        if left == SPLIT:
            tl.store(ticket_ptr, 0)
            tl.store(ticket_ptr + 1, 0)


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
def _add_both(a, b, c, d):
    return a + c, b + d


@triton.jit
def _ask(
    pooled_C,
    router_ptr,
    limit,
    force_ptr,
    scores_ptr,
    path_ptr,
    part,
    left,
    C: tl.constexpr,
    GROUP: tl.constexpr,
    ROUTED: tl.constexpr,
):
    """How many of the next GROUP blocks, of which `left` exist, are skipped before one runs: GROUP if none does.

    Writes scores and path up to that block; what comes after it has to be asked again. A router is Linear(C, C), ReLU,
    Linear(C, 2), laid out by `stage_weights`.
    """
    g = tl.arange(0, GROUP)
    forced_G = tl.load(force_ptr + g, mask=g < left, other=0).to(tl.int32)
    skip_G = tl.zeros([GROUP], tl.float32)
    run_G = tl.zeros([GROUP], tl.float32)
    runs_G = forced_G != 0
    if ROUTED:
        # By shape alone the compiler gives outputs (four each) and IN_LANES of the inputs to the lanes of a warp, blocks
        # to warps, and the other inputs to registers: sums stay within a warp, almost all of them within a thread.
        IN_LANES: tl.constexpr = 128 // C if C < 128 else 1
        ROUNDS: tl.constexpr = C // IN_LANES
        PER: tl.constexpr = C * C + 3 * C + 4
        c = tl.arange(0, C)
        inputs = tl.arange(0, ROUNDS)[:, None] * IN_LANES + tl.arange(0, IN_LANES)[None, :]
        at = inputs[:, None, :, None] * C + (g[:, None] * PER + c[None, :])[None, :, None, :]
        hidden_RGLC = tl.load(router_ptr + at)
        rest_ptr = router_ptr + C * C + (g[:, None] * PER + c[None, :])
        bias_GC = tl.load(rest_ptr)
        to_skip_GC = tl.load(rest_ptr + C)
        to_run_GC = tl.load(rest_ptr + 2 * C)
        end_ptr = router_ptr + C * C + 3 * C + g * PER
        skip_bias_G = tl.load(end_ptr)
        run_bias_G = tl.load(end_ptr + 1)
        seen_RGLC = tl.reshape(pooled_C, [ROUNDS, 1, IN_LANES, 1])
        hidden_GC = tl.sum(tl.sum(hidden_RGLC * seen_RGLC, axis=0), axis=1) + bias_GC
        hidden_GC = tl.maximum(hidden_GC, 0.0)
        skip_G, run_G = tl.reduce((hidden_GC * to_skip_GC, hidden_GC * to_run_GC), 1, _add_both)
        skip_G += skip_bias_G
        run_G += run_bias_G
        runs_G = ((run_G - skip_G >= limit) & (forced_G == 2)) | (forced_G == 1)
    first = tl.min(tl.where(runs_G, g, GROUP), axis=0)
    decided_G = (g <= first) & (g < left) & (part == 0)
    tl.store(scores_ptr + 2 * g, skip_G, mask=decided_G)
    tl.store(scores_ptr + 2 * g + 1, run_G, mask=decided_G)
    tl.store(path_ptr + g, (g == first).to(tl.float32), mask=decided_G)
    return first


@triton.jit
def _stage(
    enter_ptr,  # B×H_IN×W_IN×C_IN, the stage before; where the stage does not begin with a stride, x itself
    x_ptr,  # B×H×W×C
    between_ptr,  # B×H×W×C
    enter_weight_ptr,  # 9×C_IN×C: the first convolution, where it strides
    weight_ptr,  # blocks×2×(9×C×C or 3×4C×2C)
    bias_ptr,  # blocks×2×C, float32
    router_ptr,  # (blocks + 1)×(C·C + 3·C + 4), float32; the last is that of the next stage's first block
    partial_ptr,  # B×SPLIT×C, float32
    image,
    part,
    pooled_C,  # means of the features that enter
    limit,
    force_ptr,
    scores_ptr,
    path_ptr,
    ticket_ptr,
    met,
    blocks,
    enters,  # whether the first block runs, where it strides: the stage before has asked
    H_IN: tl.constexpr,
    W_IN: tl.constexpr,
    C_IN: tl.constexpr,
    C: tl.constexpr,
    STRIDE: tl.constexpr,  # 2: the first block strides and widens
    FORM: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    ACROSS: tl.constexpr,
    STAGES: tl.constexpr,
    GROUP: tl.constexpr,
    LAST: tl.constexpr,
    ROUTED: tl.constexpr,
    SPLIT: tl.constexpr,
    CACHE: tl.constexpr,
):
    """All blocks of one width.

    Gives the means of the features that leave (where routed), the meetings so far, and whether the next stage's first
    block runs: it is asked here, with the others that look at this width.
    """
    H: tl.constexpr = (H_IN + STRIDE - 1) // STRIDE
    W: tl.constexpr = (W_IN + STRIDE - 1) // STRIDE
    per_conv: tl.constexpr = (24 if FORM == PAIRS else 9) * C * C
    per_router: tl.constexpr = C * C + 3 * C + 4
    scale: tl.constexpr = 1.0 / (H * W)
    wide = image.to(tl.int64)
    enter_ptr += wide * (H_IN * W_IN * C_IN)
    x_ptr += wide * (H * W * C)
    between_ptr += wide * (H * W * C)
    partial_ptr += image * (SPLIT * C)
    k = 0
    if STRIDE > 1:
        sums_C = shortcut(enter_ptr, x_ptr, part, H_IN, W_IN, C, C_IN, STRIDE, BM, SPLIT, True, CACHE)
        # fmt: off
        if enters != 0:
            taps(
                enter_ptr, between_ptr, enter_weight_ptr, bias_ptr, part,
                H_IN, W_IN, C, C_IN, STRIDE, BM, BN, STAGES, SPLIT, False, False, CACHE,
            )
            met = _meet(ticket_ptr, met, SPLIT)
            sums_C = conv(
                between_ptr, x_ptr, weight_ptr + per_conv, bias_ptr + C, part,
                H, W, C, FORM, BM, BN, ACROSS, STAGES, SPLIT, True, ROUTED, CACHE,
            )
        # fmt: on
        _share(sums_C, partial_ptr, part, C, SPLIT)
        met = _meet(ticket_ptr, met, SPLIT)
        pooled_C = _gather(sums_C, partial_ptr, C, SPLIT) * scale
        k = 1

    enters = 0
    asked = blocks if LAST else blocks + 1
    while k < asked:
        # fmt: off
        first = _ask(
            pooled_C, router_ptr + k * per_router, limit, force_ptr + k, scores_ptr + 2 * k, path_ptr + k, part,
            asked - k, C, GROUP, ROUTED,
        )
        # fmt: on
        k += first
        if (first < GROUP) & (k < blocks):
            own = part
            if FORM == TAPS:
                # Still `part`, but the compiler cannot know: else it keeps every address of both convolutions in
                # registers from block to block, a hundred of them. The other forms need fewer, and lose by it.
                own = part + (k >> 20)
            block_weight_ptr = weight_ptr + k * (2 * per_conv)
            block_bias_ptr = bias_ptr + k * (2 * C)
            # fmt: off
            conv(
                x_ptr, between_ptr, block_weight_ptr, block_bias_ptr, own,
                H, W, C, FORM, BM, BN, ACROSS, STAGES, SPLIT, False, False, CACHE,
            )
            met = _meet(ticket_ptr, met, SPLIT)
            sums_C = conv(
                between_ptr, x_ptr, block_weight_ptr + per_conv, block_bias_ptr + C, own,
                H, W, C, FORM, BM, BN, ACROSS, STAGES, SPLIT, True, ROUTED, CACHE,
            )
            # fmt: on
            if ROUTED:
                _share(sums_C, partial_ptr, part, C, SPLIT)
            met = _meet(ticket_ptr, met, SPLIT)
            if ROUTED:
                pooled_C = _gather(sums_C, partial_ptr, C, SPLIT) * scale
        elif first < GROUP:
            enters = 1
        if first < GROUP:
            k += 1
    return pooled_C, met, enters


@triton.jit
def _head(pooled_C, weight_ptr, bias_ptr, logits_ptr, part, K, C: tl.constexpr, SPLIT: tl.constexpr):
    """Linear(C, K), some classes at a time."""
    c = tl.arange(0, C)
    first = part * CLASSES
    while first < K:
        k = first + tl.arange(0, CLASSES)
        weight_KC = tl.load(weight_ptr + k[:, None] * C + c[None, :], mask=(k < K)[:, None], other=0.0)
        logits_K = tl.sum(weight_KC * pooled_C[None, :], axis=1) + tl.load(bias_ptr + k, mask=k < K, other=0.0)
        tl.store(logits_ptr + k, logits_K, mask=k < K)
        first += SPLIT * CLASSES


@triton.jit
def network_kernel(
    images_ptr,  # B×PLANES×HEIGHT×WIDTH
    stem_weight_ptr,  # TAPS_IN×C of the first stage: 9·PLANES rows, then zeros
    stem_bias_ptr,  # C, float32
    x_ptrs,  # here and below, what `_stage` wants: one for each stage
    between_ptrs,
    enter_weight_ptrs,
    weight_ptrs,
    bias_ptrs,
    router_ptrs,
    partial_ptrs,
    numbers_ptr,  # of blocks: stages, int32; from memory, for the compiler fails over a loop that it knows to be empty
    head_weight_ptr,  # K×C of the last stage, float32
    head_bias_ptr,  # K, float32
    logits_ptr,  # B×K, float32
    limit_ptr,  # 1, float32: the least margin that runs a block
    force_ptr,  # B×N, int8: 0 skip, 1 run, 2 ask the router
    scores_ptr,  # B×N×2, float32
    path_ptr,  # B×N, float32
    ticket_ptr,  # B×2, int32, zero before and after
    N,
    K,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    PLANES: tl.constexpr,
    TAPS_IN: tl.constexpr,
    CUTS: tl.constexpr,  # of each stage: H_IN, W_IN, C_IN, C, STRIDE, FORM, BM, BN, ACROSS, STAGES, GROUP
    ROUTED: tl.constexpr,
    SPLIT: tl.constexpr,
):
    # Other multiprocessors write what this one reads where an image is split, so that only L2 may be believed.
    CACHE: tl.constexpr = ".cg" if SPLIT > 1 else ""
    C_FIRST: tl.constexpr = CUTS[0][3]
    image = tl.program_id(0) // SPLIT
    part = tl.program_id(0) % SPLIT
    wide = image.to(tl.int64)
    ticket_ptr += 2 * image
    row = image * N
    limit = tl.load(limit_ptr)
    blocks = tl.load(numbers_ptr)

    enter_ptr = x_ptrs[0]
    pixels_ptr = images_ptr + wide * (PLANES * HEIGHT * WIDTH)
    first_ptr = enter_ptr + wide * (HEIGHT * WIDTH * C_FIRST)
    partial_ptr = partial_ptrs[0] + image * (SPLIT * C_FIRST)
    sums_C = stem(
        pixels_ptr, first_ptr, stem_weight_ptr, stem_bias_ptr, part, HEIGHT, WIDTH, C_FIRST, PLANES, TAPS_IN, SPLIT
    )
    _share(sums_C, partial_ptr, part, C_FIRST, SPLIT)
    met = _meet(ticket_ptr, 0, SPLIT)
    pooled_C = _gather(sums_C, partial_ptr, C_FIRST, SPLIT) * (1.0 / (HEIGHT * WIDTH))

    enters = 0
    for s in tl.static_range(len(CUTS)):
        # fmt: off
        pooled_C, met, enters = _stage(
            enter_ptr, x_ptrs[s], between_ptrs[s], enter_weight_ptrs[s], weight_ptrs[s], bias_ptrs[s],
            router_ptrs[s], partial_ptrs[s], image, part, pooled_C, limit,
            force_ptr + row, scores_ptr + 2 * row, path_ptr + row, ticket_ptr, met, blocks, enters,
            CUTS[s][0], CUTS[s][1], CUTS[s][2], CUTS[s][3], CUTS[s][4], CUTS[s][5], CUTS[s][6], CUTS[s][7],
            CUTS[s][8], CUTS[s][9], CUTS[s][10], s + 1 == len(CUTS), ROUTED, SPLIT, CACHE,
        )
        # fmt: on
        enter_ptr = x_ptrs[s]
        row += blocks
        if s + 1 < len(CUTS):
            blocks = tl.load(numbers_ptr + s + 1)

    LAST: tl.constexpr = len(CUTS) - 1
    C: tl.constexpr = CUTS[LAST][3]
    if not ROUTED:
        H: tl.constexpr = (CUTS[LAST][0] + CUTS[LAST][4] - 1) // CUTS[LAST][4]
        W: tl.constexpr = (CUTS[LAST][1] + CUTS[LAST][4] - 1) // CUTS[LAST][4]
        last_ptr = enter_ptr + wide * (H * W * C)
        last_partial_ptr = partial_ptrs[LAST] + image * (SPLIT * C)
        sums_C = shortcut(last_ptr, last_ptr, part, H, W, C, C, 1, 64, SPLIT, False, CACHE)
        _share(sums_C, last_partial_ptr, part, C, SPLIT)
        met = _meet(ticket_ptr, met, SPLIT)
        pooled_C = _gather(sums_C, last_partial_ptr, C, SPLIT) * (1.0 / (H * W))
    _head(pooled_C, head_weight_ptr, head_bias_ptr, logits_ptr + wide * K, part, K, C, SPLIT)
    _leave(ticket_ptr, SPLIT)
