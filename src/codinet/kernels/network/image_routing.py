"""Routing inside the network kernel: synchronisation of an image's programs, pooled means, router evaluation.

Programs of a split image (SPLIT > 1) wait for each other at a counter in memory, so all of them must be on the device
at once. Sums are added in a fixed order, so all programs of an image reach the same decisions.
"""

import triton
import triton.language as tl


@triton.jit
def synchronize(counter_ptr, barriers, SPLIT: tl.constexpr):
    """Waits until the writes of all programs of the image are visible. Returns the number of barriers so far."""
    tl.debug_barrier()
    if SPLIT > 1:
        barriers += 1
        # The counter only grows within a launch, so it needs no reset between two barriers.
        seen = tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu") + 1
        while seen < barriers * SPLIT:
            seen = tl.atomic_add(counter_ptr, 0, sem="acquire", scope="gpu")
        tl.debug_barrier()
    return barriers


@triton.jit
def reset_counters(counter_ptr, SPLIT: tl.constexpr):
    """Makes the last program of an image reset the counters for the next launch."""
    if SPLIT > 1:
        left = tl.atomic_add(counter_ptr + 1, 1, sem="acq_rel", scope="gpu") + 1
        if left == SPLIT:
            tl.store(counter_ptr, 0)
            tl.store(counter_ptr + 1, 0)


@triton.jit
def means_address(pooled_ptr, image, C: tl.constexpr, SPLIT: tl.constexpr):
    """Returns the address of the image's means."""
    return pooled_ptr + image * (C if SPLIT == 1 else 2 * SPLIT * C)


@triton.jit
def write_means(
    sums_C, pooled_ptr, part, counter_ptr, barriers, PIXELS: tl.constexpr, C: tl.constexpr, SPLIT: tl.constexpr
):
    """Writes this program's part of the image's means to memory, then synchronises. Returns the barriers so far."""
    tl.store(pooled_ptr + part * C + tl.arange(0, C), sums_C * (1.0 / PIXELS))
    return synchronize(counter_ptr, barriers, SPLIT)


@triton.jit
def read_means(pooled_ptr, part, C: tl.constexpr, SPLIT: tl.constexpr):
    """Returns the address of the means for this program.

    Each program of a split image adds up the parts itself, in the same order, and reads its own copy.
    """
    if SPLIT > 1:
        c = tl.arange(0, C)
        at = tl.arange(0, SPLIT)[:, None] * C + c[None, :]
        pooled_C = tl.sum(tl.load(pooled_ptr + at, cache_modifier=".cg"), axis=0)
        pooled_ptr += (SPLIT + part) * C
        tl.store(pooled_ptr + c, pooled_C)
        tl.debug_barrier()
    return pooled_ptr


@triton.jit
def _add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
def evaluate_routers(
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
    LOOKAHEAD: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Evaluates the routers of LOOKAHEAD blocks from k on; only `left` of them exist.

    A router is Linear(C, C), ReLU, Linear(C, 2), packed by `network_weights`. Writes scores and path up to the first
    block that runs; later routers have to be evaluated again. Returns how many blocks are skipped before it, or
    LOOKAHEAD if none runs.
    """
    # Zero, but unknown to the compiler, which would otherwise keep addresses in registers between calls.
    zero = (k >> 20) * 16
    g = tl.arange(0, LOOKAHEAD) + zero
    forced_G = tl.load(force_ptr + g, mask=g < left, other=0).to(tl.int32)
    # These shapes make the compiler assign outputs (16 bytes each) and some inputs to the lanes of a warp, blocks to
    # warps and the other inputs to registers. Sums stay within a warp, and mostly within a thread. If LOOKAHEAD is less
    # than the number of warps, the warps also divide the inputs among themselves and have to synchronise.
    WARP: tl.constexpr = 32 * 128 // hidden_ptr.dtype.element_ty.primitive_bitwidth
    LANES: tl.constexpr = min(C, WARP // C if C < WARP else 1)
    ROUNDS: tl.constexpr = C // LANES
    REST: tl.constexpr = 3 * C + 4
    c = tl.arange(0, C) + zero
    inputs_LR = tl.arange(0, LANES)[:, None] * ROUNDS + tl.arange(0, ROUNDS)[None, :] + zero
    inputs = inputs_LR[:, None, :, None]
    hidden_LGRC = tl.load(hidden_ptr + (inputs * C + (g[:, None] * (C * C) + c[None, :])[None, :, None, :]))
    rest_ptr = router_ptr + (g[:, None] * REST + c[None, :])
    bias_GC = tl.load(rest_ptr)
    to_skip_GC = tl.load(rest_ptr + C)
    to_run_GC = tl.load(rest_ptr + 2 * C)
    skip_bias_G = tl.load(router_ptr + 3 * C + g * REST)
    run_bias_G = tl.load(router_ptr + 3 * C + 1 + g * REST)
    # Read after the loads of the weights have been issued.
    pooled = tl.load(read_means(pooled_ptr, part, C, SPLIT) + inputs)
    hidden_GC = tl.sum(tl.sum(hidden_LGRC.to(tl.float32) * pooled, axis=2), axis=0) + bias_GC
    hidden_GC = tl.maximum(hidden_GC, 0.0)
    skip_G, run_G = tl.reduce((hidden_GC * to_skip_GC, hidden_GC * to_run_GC), 1, _add_pairs)
    skip_G += skip_bias_G
    run_G += run_bias_G
    runs_G = ((run_G - skip_G >= limit) & (forced_G == 2)) | (forced_G == 1)
    # A reduction over warps synchronises them twice. So every warp gathers all decisions and finds the first itself.
    gathered_G = tl.gather(tl.where(runs_G, g, LOOKAHEAD), tl.arange(0, LOOKAHEAD), axis=0)
    first = tl.min(gathered_G, axis=0)
    decided_G = (g <= first) & (g < left) & (part == 0)
    # As wide as a warp, so that each block's scores are written by the warp that computed them.
    lane = tl.arange(0, 32)[None, :]
    scores = tl.where(lane == 0, skip_G[:, None], run_G[:, None])
    tl.store(scores_ptr + (2 * g[:, None] + lane), scores, mask=decided_G[:, None] & (lane < 2))
    tl.store(path_ptr + g, (g == first).to(tl.float32), mask=decided_G)
    return first


@triton.jit
def forced_decision(force_ptr, scores_ptr, path_ptr, part):
    """As `evaluate_routers` for one block without a router, which runs unless it is forced to skip."""
    runs = tl.load(force_ptr).to(tl.int32) != 0
    if part == 0:
        tl.store(scores_ptr, 0.0)
        tl.store(scores_ptr + 1, 0.0)
        tl.store(path_ptr, runs.to(tl.float32))
    return 1 - runs.to(tl.int32)
