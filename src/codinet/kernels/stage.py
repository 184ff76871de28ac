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

from codinet.kernels.stage_convs import PAIRS, TAPS, conv
from codinet.kernels.stage_ends import shortcut, stem
from codinet.kernels.stage_taps import taps

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
def _own(pooled_ptr, image, C: tl.constexpr, SPLIT: tl.constexpr):
    """The image's part of what `_pool` and `_means` write."""
    return pooled_ptr + image * (C if SPLIT == 1 else 2 * SPLIT * C)


@triton.jit
def _pool(sums_C, pooled_ptr, part, ticket_ptr, met, PIXELS: tl.constexpr, C: tl.constexpr, SPLIT: tl.constexpr):
    """A meeting at which the image's means are left in memory, where every thread reads those that it wants.

    Where an image is split, each program leaves its part of them.
    """
    tl.store(pooled_ptr + part * C + tl.arange(0, C), sums_C * (1.0 / PIXELS))
    return _meet(ticket_ptr, met, SPLIT)


@triton.jit
def _means(pooled_ptr, part, C: tl.constexpr, SPLIT: tl.constexpr):
    """Where the means are, for this program: of a split image in its own copy, added up in the same order by all."""
    if SPLIT > 1:
        c = tl.arange(0, C)
        at = tl.arange(0, SPLIT)[:, None] * C + c[None, :]
        pooled_C = tl.sum(tl.load(pooled_ptr + at, cache_modifier=".cg"), axis=0)
        pooled_ptr += (SPLIT + part) * C
        tl.store(pooled_ptr + c, pooled_C)
        tl.debug_barrier()
    return pooled_ptr


@triton.jit
def _add_both(a, b, c, d):
    return a + c, b + d


@triton.jit
def _ask(
    pooled_ptr,
    hidden_ptr,
    router_ptr,
    limit,
    force_ptr,
    scores_ptr,
    path_ptr,
    part,
    k,
    left,
    C: tl.constexpr,
    GROUP: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """How many of GROUP blocks from k on, of which `left` exist, are skipped before one runs: GROUP if none does.

    Writes scores and path up to that block; what comes after it has to be asked again. A router is Linear(C, C), ReLU,
    Linear(C, 2), laid out by `stage_weights`.
    """
    # Zero, but the compiler cannot know: else it keeps addresses in registers from one group to the next.
    nothing = (k >> 20) * 16
    g = tl.arange(0, GROUP) + nothing
    forced_G = tl.load(force_ptr + g, mask=g < left, other=0).to(tl.int32)
    # By shape alone the compiler gives outputs (16 bytes each) and some of the inputs to the lanes of a warp,
    # blocks to warps, and the other inputs to registers: sums stay within a warp, nearly all within a thread.
    # Where GROUP is less than the warps, these share inputs too, and meet.
    WARP: tl.constexpr = 32 * 128 // hidden_ptr.dtype.element_ty.primitive_bitwidth
    LANES: tl.constexpr = min(C, WARP // C if C < WARP else 1)
    ROUNDS: tl.constexpr = C // LANES
    REST: tl.constexpr = 3 * C + 4
    c = tl.arange(0, C) + nothing
    inputs_LR = tl.arange(0, LANES)[:, None] * ROUNDS + tl.arange(0, ROUNDS)[None, :] + nothing
    inputs = inputs_LR[:, None, :, None]
    hidden_LGRC = tl.load(hidden_ptr + (inputs * C + (g[:, None] * (C * C) + c[None, :])[None, :, None, :]))
    rest_ptr = router_ptr + (g[:, None] * REST + c[None, :])
    bias_GC = tl.load(rest_ptr)
    to_skip_GC = tl.load(rest_ptr + C)
    to_run_GC = tl.load(rest_ptr + 2 * C)
    skip_bias_G = tl.load(router_ptr + 3 * C + g * REST)
    run_bias_G = tl.load(router_ptr + 3 * C + 1 + g * REST)
    # Only now, when the weights are on their way.
    pooled = tl.load(_means(pooled_ptr, part, C, SPLIT) + inputs)
    hidden_GC = tl.sum(tl.sum(hidden_LGRC.to(tl.float32) * pooled, axis=2), axis=0) + bias_GC
    hidden_GC = tl.maximum(hidden_GC, 0.0)
    skip_G, run_G = tl.reduce((hidden_GC * to_skip_GC, hidden_GC * to_run_GC), 1, _add_both)
    skip_G += skip_bias_G
    run_G += run_bias_G
    runs_G = ((run_G - skip_G >= limit) & (forced_G == 2)) | (forced_G == 1)
    # A sum or minimum over warps has them meet twice. So every warp is told all decisions, and finds the first alone.
    told_G = tl.gather(tl.where(runs_G, g, GROUP), tl.arange(0, GROUP), axis=0)
    first = tl.min(told_G, axis=0)
    decided_G = (g <= first) & (g < left) & (part == 0)
    # As wide as a warp, so that each block's scores are written by the warp that has them.
    lane = tl.arange(0, 32)[None, :]
    scores = tl.where(lane == 0, skip_G[:, None], run_G[:, None])
    tl.store(scores_ptr + (2 * g[:, None] + lane), scores, mask=decided_G[:, None] & (lane < 2))
    tl.store(path_ptr + g, (g == first).to(tl.float32), mask=decided_G)
    return first


@triton.jit
def _follow(force_ptr, scores_ptr, path_ptr, part):
    """As `_ask` for one block without a router, which runs unless it is forced not to."""
    runs = tl.load(force_ptr).to(tl.int32) != 0
    if part == 0:
        tl.store(scores_ptr, 0.0)
        tl.store(scores_ptr + 1, 0.0)
        tl.store(path_ptr, runs.to(tl.float32))
    return 1 - runs.to(tl.int32)


@triton.jit
def _stage(
    enter_ptr,  # B×H_IN×W_IN×C_IN, the stage before; where the stage does not begin with a stride, x itself
    x_ptr,  # B×H×W×C
    between_ptr,  # B×H×W×C
    enter_weight_ptr,  # 9×C_IN×C: the first convolution, where it strides
    weight_ptr,  # blocks×2×(9×C×C or 3×4C×2C)
    bias_ptr,  # blocks×2×C, float32
    hidden_ptr,  # (blocks + 1)×C×C; of routers, the last is that of the next stage's first block
    router_ptr,  # (blocks + 1)×(3·C + 4), float32: the rest of them
    pooled_ptr,  # B×(1 or 2·SPLIT)×C, float32
    image,
    part,
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

    Leaves the means of the features (where routed); gives the meetings so far, and whether the next stage's first block
    runs: it is asked here, with the others that look at this width.
    """
    H: tl.constexpr = (H_IN + STRIDE - 1) // STRIDE
    W: tl.constexpr = (W_IN + STRIDE - 1) // STRIDE
    per_conv: tl.constexpr = (24 if FORM == PAIRS else 9) * C * C
    wide = image.to(tl.int64)
    enter_ptr += wide * (H_IN * W_IN * C_IN)
    x_ptr += wide * (H * W * C)
    between_ptr += wide * (H * W * C)
    pooled_ptr = _own(pooled_ptr, image, C, SPLIT)
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
        if ROUTED:
            met = _pool(sums_C, pooled_ptr, part, ticket_ptr, met, H * W, C, SPLIT)
        else:
            met = _meet(ticket_ptr, met, SPLIT)
        k = 1

    enters = 0
    asked = blocks if LAST else blocks + 1
    while k < asked:
        # fmt: off
        if ROUTED:
            first = _ask(
                pooled_ptr, hidden_ptr + k * (C * C), router_ptr + k * (3 * C + 4), limit, force_ptr + k,
                scores_ptr + 2 * k, path_ptr + k, part, k, asked - k, C, GROUP, SPLIT,
            )
        else:
            first = _follow(force_ptr + k, scores_ptr + 2 * k, path_ptr + k, part)
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
                met = _pool(sums_C, pooled_ptr, part, ticket_ptr, met, H * W, C, SPLIT)
            else:
                met = _meet(ticket_ptr, met, SPLIT)
        elif first < GROUP:
            enters = 1
        if first < GROUP:
            k += 1
    return met, enters


@triton.jit
def _head(pooled_ptr, weight_ptr, bias_ptr, logits_ptr, part, K, C: tl.constexpr, SPLIT: tl.constexpr):
    """Linear(C, K), some classes at a time."""
    c = tl.arange(0, C)
    pooled_C = tl.load(pooled_ptr + c)
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
    hidden_ptrs,
    router_ptrs,
    pooled_ptrs,
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
    sums_C = stem(
        pixels_ptr, first_ptr, stem_weight_ptr, stem_bias_ptr, part, HEIGHT, WIDTH, C_FIRST, PLANES, TAPS_IN, SPLIT
    )
    met = 0
    if ROUTED:
        pooled_ptr = _own(pooled_ptrs[0], image, C_FIRST, SPLIT)
        met = _pool(sums_C, pooled_ptr, part, ticket_ptr, met, HEIGHT * WIDTH, C_FIRST, SPLIT)
    else:
        met = _meet(ticket_ptr, met, SPLIT)

    enters = 0
    for s in tl.static_range(len(CUTS)):
        # fmt: off
        met, enters = _stage(
            enter_ptr, x_ptrs[s], between_ptrs[s], enter_weight_ptrs[s], weight_ptrs[s], bias_ptrs[s],
            hidden_ptrs[s], router_ptrs[s], pooled_ptrs[s], image, part, limit,
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
    pooled_ptr = _own(pooled_ptrs[LAST], image, C, SPLIT)
    if not ROUTED:
        H: tl.constexpr = (CUTS[LAST][0] + CUTS[LAST][4] - 1) // CUTS[LAST][4]
        W: tl.constexpr = (CUTS[LAST][1] + CUTS[LAST][4] - 1) // CUTS[LAST][4]
        last_ptr = enter_ptr + wide * (H * W * C)
        sums_C = shortcut(last_ptr, last_ptr, part, H, W, C, C, 1, 64, SPLIT, False, CACHE)
        met = _pool(sums_C, pooled_ptr, part, ticket_ptr, met, H * W, C, SPLIT)
    seen_ptr = _means(pooled_ptr, part, C, SPLIT)
    _head(seen_ptr, head_weight_ptr, head_bias_ptr, logits_ptr + wide * K, part, K, C, SPLIT)
    _leave(ticket_ptr, SPLIT)
