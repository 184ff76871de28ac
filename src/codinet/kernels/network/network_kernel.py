"""A whole routed network in one launch: each program takes an image from pixels to logits.

A program evaluates routers in registers and branches, so a skipped block costs only its router. A router's input
changes only when a block runs, so the program evaluates the next few routers at once and jumps to the first block that
runs. No decision goes through the host, and no launch separates two blocks. Images differ less in their total cost than
in the cost of one group, so a single launch also waits less for its slowest images.

Features are pixels × channels (NHWC) in one buffer per group, which its blocks overwrite. A second buffer holds the
features between the two convolutions of a block. A convolution reads neighbouring pixels, so the threads of a program,
and the programs of a split image, synchronise before the next one starts (`image_routing`).

The kernel works on tensors packed by `network_weights`.
"""

import triton
import triton.language as tl

from codinet.kernels.network.conv_forms import PAIRS, TAPS, conv, finish, taps
from codinet.kernels.network.image_routing import (
    evaluate_routers,
    forced_decision,
    means_address,
    read_means,
    reset_counters,
    synchronize,
    write_means,
)

CLASSES = tl.constexpr(32)  # logits per step of the head


@triton.jit
def _shortcut(
    source_ptr,
    target_ptr,
    part,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    C_IN: tl.constexpr,
    STRIDE: tl.constexpr,
    BM: tl.constexpr,
    SPLIT: tl.constexpr,
    COPIES: tl.constexpr,
    CACHE: tl.constexpr,
):
    """Takes every STRIDE-th pixel and pads C_IN to C channels, half of the new ones before the old.

    Writes the result if COPIES and returns the sums of this program's part over pixels. With STRIDE 1 and C_IN = C the
    result is the source itself, and only the sums are of use.
    """
    H_OUT: tl.constexpr = (H + STRIDE - 1) // STRIDE
    W_OUT: tl.constexpr = (W + STRIDE - 1) // STRIDE
    each: tl.constexpr = ((H_OUT * W_OUT + BM - 1) // BM + SPLIT - 1) // SPLIT
    before: tl.constexpr = (C - C_IN) // 2
    c = tl.arange(0, C)
    old = (c >= before) & (c < before + C_IN)
    total = tl.zeros([BM, C], tl.float32)
    for step in tl.range(each, num_stages=1):
        m = (step * SPLIT + part) * BM + tl.arange(0, BM)
        there = m < H_OUT * W_OUT
        at = ((m // W_OUT) * STRIDE * W + (m % W_OUT) * STRIDE) * C_IN - before
        mask = there[:, None] & old[None, :]
        x = tl.load(source_ptr + (at[:, None] + c[None, :]), mask=mask, other=0.0, cache_modifier=CACHE)
        if COPIES:
            tl.store(target_ptr + ((m * C)[:, None] + c[None, :]), x, mask=there[:, None])
        total += x.to(tl.float32)
    return tl.sum(total, axis=0)


@triton.jit
def _stem(
    images_ptr,
    target_ptr,
    weight_ptr,
    bias_ptr,
    part,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    PLANES: tl.constexpr,
    TAPS_IN: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Computes relu(conv(image) + bias) for this program's part of an image; returns its sums over pixels.

    The image is stored plane by plane and may be negative. All 9·PLANES taps, padded to TAPS_IN, are one product.
    """
    BM: tl.constexpr = 128
    each: tl.constexpr = ((H * W + BM - 1) // BM + SPLIT - 1) // SPLIT
    c = tl.arange(0, C)
    k = tl.arange(0, TAPS_IN)
    up = k // PLANES // 3 - 1
    left = k // PLANES % 3 - 1
    places = (k % PLANES) * (H * W) + up * W + left
    weight = tl.load(weight_ptr + (k[:, None] * C + c[None, :]))
    bias = tl.load(bias_ptr + c)
    total = tl.zeros([BM, C], tl.float32)
    for step in tl.range(each, num_stages=1):
        m = (step * SPLIT + part) * BM + tl.arange(0, BM)
        y = (m // W)[:, None] + up[None, :]
        x = (m % W)[:, None] + left[None, :]
        inside = (y >= 0) & (y < H) & (x >= 0) & (x < W) & (k < 9 * PLANES)[None, :]
        a = tl.load(images_ptr + (m[:, None] + places[None, :]), mask=inside, other=0.0)
        acc = tl.dot(a, weight, input_precision="ieee")
        out = target_ptr + ((m * C)[:, None] + c[None, :])
        total += finish(acc, bias, out, (m < H * W)[:, None], H * W % BM == 0, False, "")
    return tl.sum(total, axis=0)


@triton.jit
def _run_group(
    enter_ptr,  # B×H_IN×W_IN×C_IN: the previous group's features, or x if this group has no stride
    x_ptr,  # B×H×W×C
    between_ptr,  # B×H×W×C
    enter_weight_ptr,  # 9×C_IN×C: the first convolution, if it has a stride
    weight_ptr,  # blocks×2×(9×C×C or 3×4C×2C)
    bias_ptr,  # blocks×2×C, float32
    hidden_ptr,  # (blocks + 1)×C×C: hidden layers of routers; the last is for the next group's first block
    router_ptr,  # (blocks + 1)×(3·C + 4), float32: the other router parameters
    pooled_ptr,  # B×(1 or 2·SPLIT)×C, float32
    image,
    part,
    limit,
    force_ptr,
    scores_ptr,
    path_ptr,
    counter_ptr,
    barriers,
    blocks,
    enters,  # whether the first block runs if it has a stride; decided in the previous group
    H_IN: tl.constexpr,
    W_IN: tl.constexpr,
    C_IN: tl.constexpr,
    C: tl.constexpr,
    STRIDE: tl.constexpr,  # 2: the first block has a stride and more channels
    FORM: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    ACROSS: tl.constexpr,
    DEPTH: tl.constexpr,
    LOOKAHEAD: tl.constexpr,
    LAST: tl.constexpr,
    ROUTED: tl.constexpr,
    SPLIT: tl.constexpr,
    CACHE: tl.constexpr,
):
    """Runs all blocks of one width.

    Leaves the means of the features in memory if ROUTED. Returns the barriers so far, and whether the next group's
    first block runs: its router reads features of this width, so it is evaluated here.
    """
    H: tl.constexpr = (H_IN + STRIDE - 1) // STRIDE
    W: tl.constexpr = (W_IN + STRIDE - 1) // STRIDE
    per_conv: tl.constexpr = (24 if FORM == PAIRS else 9) * C * C
    image64 = image.to(tl.int64)
    enter_ptr += image64 * (H_IN * W_IN * C_IN)
    x_ptr += image64 * (H * W * C)
    between_ptr += image64 * (H * W * C)
    pooled_ptr = means_address(pooled_ptr, image, C, SPLIT)
    k = 0
    if STRIDE > 1:
        sums_C = _shortcut(enter_ptr, x_ptr, part, H_IN, W_IN, C, C_IN, STRIDE, BM, SPLIT, True, CACHE)
        # fmt: off
        if enters != 0:
            taps(
                enter_ptr, between_ptr, enter_weight_ptr, bias_ptr, part,
                H_IN, W_IN, C, C_IN, STRIDE, BM, BN, DEPTH, SPLIT, False, False, CACHE,
            )
            barriers = synchronize(counter_ptr, barriers, SPLIT)
            sums_C = conv(
                between_ptr, x_ptr, weight_ptr + per_conv, bias_ptr + C, part,
                H, W, C, FORM, BM, BN, ACROSS, DEPTH, SPLIT, True, ROUTED, CACHE,
            )
        # fmt: on
        if ROUTED:
            barriers = write_means(sums_C, pooled_ptr, part, counter_ptr, barriers, H * W, C, SPLIT)
        else:
            barriers = synchronize(counter_ptr, barriers, SPLIT)
        k = 1

    enters = 0
    routers = blocks if LAST else blocks + 1
    while k < routers:
        # fmt: off
        if ROUTED:
            first = evaluate_routers(
                pooled_ptr, hidden_ptr + k * (C * C), router_ptr + k * (3 * C + 4), limit, force_ptr + k,
                scores_ptr + 2 * k, path_ptr + k, part, k, routers - k, C, LOOKAHEAD, SPLIT,
            )
        else:
            first = forced_decision(force_ptr + k, scores_ptr + 2 * k, path_ptr + k, part)
        # fmt: on
        k += first
        if (first < LOOKAHEAD) & (k < blocks):
            own = part
            if FORM == TAPS:
                # Equal to `part`, but unknown to the compiler, which would otherwise keep about a hundred addresses of
                # both convolutions in registers from block to block. The other forms need fewer and are faster as is.
                own = part + (k >> 20)
            block_weight_ptr = weight_ptr + k * (2 * per_conv)
            block_bias_ptr = bias_ptr + k * (2 * C)
            # fmt: off
            conv(
                x_ptr, between_ptr, block_weight_ptr, block_bias_ptr, own,
                H, W, C, FORM, BM, BN, ACROSS, DEPTH, SPLIT, False, False, CACHE,
            )
            barriers = synchronize(counter_ptr, barriers, SPLIT)
            sums_C = conv(
                between_ptr, x_ptr, block_weight_ptr + per_conv, block_bias_ptr + C, own,
                H, W, C, FORM, BM, BN, ACROSS, DEPTH, SPLIT, True, ROUTED, CACHE,
            )
            # fmt: on
            if ROUTED:
                barriers = write_means(sums_C, pooled_ptr, part, counter_ptr, barriers, H * W, C, SPLIT)
            else:
                barriers = synchronize(counter_ptr, barriers, SPLIT)
        elif first < LOOKAHEAD:
            enters = 1
        if first < LOOKAHEAD:
            k += 1
    return barriers, enters


@triton.jit
def _head(pooled_ptr, weight_ptr, bias_ptr, logits_ptr, part, K, C: tl.constexpr, SPLIT: tl.constexpr):
    """Linear(C, K), CLASSES at a time."""
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
    stem_weight_ptr,  # TAPS_IN×C of the first group: 9·PLANES rows, then zeros
    stem_bias_ptr,  # C, float32
    x_ptrs,  # this and the next seven: arguments of `_run_group`, one per group
    between_ptrs,
    enter_weight_ptrs,
    weight_ptrs,
    bias_ptrs,
    hidden_ptrs,
    router_ptrs,
    pooled_ptrs,
    blocks_ptr,  # blocks of each group, int32; in memory, because the compiler fails on loops that it knows to be empty
    head_weight_ptr,  # K×C of the last group, float32
    head_bias_ptr,  # K, float32
    logits_ptr,  # B×K, float32
    limit_ptr,  # 1, float32: the smallest margin that runs a block
    force_ptr,  # B×N, int8: 0 skip, 1 run, 2 evaluate the router
    scores_ptr,  # B×N×2, float32
    path_ptr,  # B×N, float32
    counter_ptr,  # B×2, int32, zero before and after
    N,
    K,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    PLANES: tl.constexpr,
    TAPS_IN: tl.constexpr,
    CUTS: tl.constexpr,  # of each group: H_IN, W_IN, C_IN, C, STRIDE, FORM, BM, BN, ACROSS, DEPTH, LOOKAHEAD
    ROUTED: tl.constexpr,
    SPLIT: tl.constexpr,
):
    # Programs of a split image read what other multiprocessors write, so they must read from L2.
    CACHE: tl.constexpr = ".cg" if SPLIT > 1 else ""
    C_FIRST: tl.constexpr = CUTS[0][3]
    image = tl.program_id(0) // SPLIT
    part = tl.program_id(0) % SPLIT
    image64 = image.to(tl.int64)
    counter_ptr += 2 * image
    row = image * N
    limit = tl.load(limit_ptr)
    blocks = tl.load(blocks_ptr)

    enter_ptr = x_ptrs[0]
    pixels_ptr = images_ptr + image64 * (PLANES * HEIGHT * WIDTH)
    first_ptr = enter_ptr + image64 * (HEIGHT * WIDTH * C_FIRST)
    sums_C = _stem(
        pixels_ptr, first_ptr, stem_weight_ptr, stem_bias_ptr, part, HEIGHT, WIDTH, C_FIRST, PLANES, TAPS_IN, SPLIT
    )
    barriers = 0
    if ROUTED:
        pooled_ptr = means_address(pooled_ptrs[0], image, C_FIRST, SPLIT)
        barriers = write_means(sums_C, pooled_ptr, part, counter_ptr, barriers, HEIGHT * WIDTH, C_FIRST, SPLIT)
    else:
        barriers = synchronize(counter_ptr, barriers, SPLIT)

    enters = 0
    for g in tl.static_range(len(CUTS)):
        # fmt: off
        barriers, enters = _run_group(
            enter_ptr, x_ptrs[g], between_ptrs[g], enter_weight_ptrs[g], weight_ptrs[g], bias_ptrs[g],
            hidden_ptrs[g], router_ptrs[g], pooled_ptrs[g], image, part, limit,
            force_ptr + row, scores_ptr + 2 * row, path_ptr + row, counter_ptr, barriers, blocks, enters,
            CUTS[g][0], CUTS[g][1], CUTS[g][2], CUTS[g][3], CUTS[g][4], CUTS[g][5], CUTS[g][6], CUTS[g][7],
            CUTS[g][8], CUTS[g][9], CUTS[g][10], g + 1 == len(CUTS), ROUTED, SPLIT, CACHE,
        )
        # fmt: on
        enter_ptr = x_ptrs[g]
        row += blocks
        if g + 1 < len(CUTS):
            blocks = tl.load(blocks_ptr + g + 1)

    LAST: tl.constexpr = len(CUTS) - 1
    C: tl.constexpr = CUTS[LAST][3]
    pooled_ptr = means_address(pooled_ptrs[LAST], image, C, SPLIT)
    if not ROUTED:
        H: tl.constexpr = (CUTS[LAST][0] + CUTS[LAST][4] - 1) // CUTS[LAST][4]
        W: tl.constexpr = (CUTS[LAST][1] + CUTS[LAST][4] - 1) // CUTS[LAST][4]
        last_ptr = enter_ptr + image64 * (H * W * C)
        sums_C = _shortcut(last_ptr, last_ptr, part, H, W, C, C, 1, 64, SPLIT, False, CACHE)
        barriers = write_means(sums_C, pooled_ptr, part, counter_ptr, barriers, H * W, C, SPLIT)
    seen_ptr = read_means(pooled_ptr, part, C, SPLIT)
    _head(seen_ptr, head_weight_ptr, head_bias_ptr, logits_ptr + image64 * K, part, K, C, SPLIT)
    reset_counters(counter_ptr, SPLIT)
