"""Convolutions of a bottleneck for listed images: 1×1 and 3×3, with bias, shortcut, ReLU and pooling.

The images that run a block are never copied next to each other: the first convolution reads them where they are, and
the last one adds its result to them.

Small batches have `Counters`. Where a launch has too few programs for the device, several programs divide the sum over
the input channels, and the last one to arrive adds their parts, always in the same order. The last program of an image
pools it in the same way. The kernels are chained.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import nn
from torch.nn import functional as F

from codinet.kernels.launching import launch, prefetch, wait_for_chain
from codinet.kernels.rows import Listed
from codinet.kernels.rows.router_rows import pool_parts_, pool_rows_

_PROGRAMS = 192  # a launch should have; an H200 has 132 multiprocessors
_WIDTHS = 128, 64, 32  # of tiles, in channels
_LARGEST_SPLIT = 8
_MIN_STEPS = 4  # of the sum, for a program that shares it
_WASTE = 1.07  # positions computed per position, up to which tiles may end with an image
_POOLS = 1024  # images × tiles along the channels that the counters suffice for
_LARGEST_POOL = 64  # tiles of an image that are added up at once


@triton.jit
def _conv(
    x_ptr,
    index_ptr,
    count_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    sums_ptr,
    parts_ptr,
    arrived_ptr,
    pooled_ptr,
    pool_arrived_ptr,
    images,
    positions,  # of an output image
    width,  # of an output image
    in_height,
    in_width,
    K: tl.constexpr,
    N: tl.constexpr,
    SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    GATHER: tl.constexpr,
    COUNTED: tl.constexpr,
    ADD: tl.constexpr,
    RELU: tl.constexpr,
    POOL: tl.constexpr,
    FINISH: tl.constexpr,
    PER_IMAGE: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK_T: tl.constexpr,
    CHAINED: tl.constexpr = False,
):
    """y = relu(x W + b): GATHER reads images of x by index, ADD adds to images of y by index.

    PER_IMAGE: a tile has positions of one image only, which has TILES of them. POOL: the sums of its channels are
    stored, too. FINISH: the last program of an image adds them up and writes the means.
    """
    tiles_n: tl.constexpr = N // BLOCK_N
    steps_of_tap: tl.constexpr = K // BLOCK_K
    steps: tl.constexpr = SIDE * SIDE * steps_of_tap // SPLIT
    first = tl.program_id(1) * steps
    tile = tl.program_id(0)
    tile_m = tile // tiles_n
    n_N = (tile % tiles_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    m_M = tl.arange(0, BLOCK_M)
    if CHAINED:  # noqa: SIM102 (the compiler decides this one)
        if tile_m == 0:  # programs for other positions use the same weights
            for step in range(steps):
                prefetch(weight_ptr + n_N * (SIDE * SIDE * K) + (first + step) * BLOCK_K)
    wait_for_chain(CHAINED)
    if COUNTED:
        images = tl.load(count_ptr)
    if PER_IMAGE:
        row = tile_m // TILES
        image = tl.load(index_ptr + row).to(tl.int64) if GATHER or ADD else row.to(tl.int64)
        if row >= images:
            return
        position_M = (tile_m % TILES) * BLOCK_M + m_M
        inside_M = position_M < positions
    else:
        if tile_m * BLOCK_M >= images * positions:
            return
        row_M = tile_m * BLOCK_M + m_M
        inside_M = row_M < images * positions
        position_M = row_M % positions
        row = row_M // positions
        image = tl.load(index_ptr + row, mask=inside_M, other=0).to(tl.int64) if GATHER or ADD else row.to(tl.int64)
    source = (image if GATHER else row.to(tl.int64)) * in_height * in_width
    target = image if ADD else row.to(tl.int64)
    k_K = tl.arange(0, BLOCK_K)
    y_MN = y_ptr + (target * positions + position_M)[:, None] * N + n_N[None, :]
    if ADD and SPLIT == 1:  # before the products, so that they hide its latency
        old_MN = tl.load(y_MN, mask=inside_M[:, None], other=0.0)
    top_M = (position_M // width) * STRIDE - SIDE // 2
    left_M = (position_M % width) * STRIDE - SIDE // 2
    x_MK = x_ptr + (source + top_M * in_width + left_M)[:, None] * K + k_K[None, :]
    weight_KN = weight_ptr + n_N[None, :] * (SIDE * SIDE * K) + k_K[:, None]
    sum_MN = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for i in range(steps):
        step = first + i
        if SIDE == 1:
            a_MK = tl.load(x_MK + step * BLOCK_K, mask=inside_M[:, None], other=0.0)
        else:
            tap = step // steps_of_tap
            down, right = tap // SIDE, tap % SIDE
            y_M, x_M = top_M + down, left_M + right
            valid_M = inside_M & (y_M >= 0) & (y_M < in_height) & (x_M >= 0) & (x_M < in_width)
            offset = (down * in_width + right) * K + (step % steps_of_tap) * BLOCK_K
            a_MK = tl.load(x_MK + offset, mask=valid_M[:, None], other=0.0)
        sum_MN = tl.dot(a_MK, tl.load(weight_KN + step * BLOCK_K), sum_MN)
    if SPLIT > 1:
        part_MN = parts_ptr + m_M[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        part_MN += tile.to(tl.int64) * (SPLIT * BLOCK_M * BLOCK_N)
        tl.store(part_MN + tl.program_id(1) * (BLOCK_M * BLOCK_N), sum_MN)
        tl.debug_barrier()  # all threads have stored their values before one of them reports it
        if tl.atomic_add(arrived_ptr + tile, 1, sem="acq_rel") != SPLIT - 1:
            return
        tl.store(arrived_ptr + tile, 0)  # for the next launch
        sum_MN = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for part in tl.static_range(SPLIT):
            sum_MN += tl.load(part_MN + part * (BLOCK_M * BLOCK_N), cache_modifier=".cg")
        if ADD:
            old_MN = tl.load(y_MN, mask=inside_M[:, None], other=0.0)
    sum_MN += tl.load(bias_ptr + n_N)[None, :].to(tl.float32)
    if ADD:
        sum_MN += old_MN.to(tl.float32)
    if RELU:
        sum_MN = tl.maximum(sum_MN, 0.0)
    rounded_MN = sum_MN.to(y_ptr.dtype.element_ty)
    tl.store(y_MN, rounded_MN, mask=inside_M[:, None])
    if POOL:
        sums_N = tl.sum(tl.where(inside_M[:, None], rounded_MN.to(tl.float32), 0.0), axis=0)
        tl.store(sums_ptr + tile_m.to(tl.int64) * N + n_N, sums_N)
    if FINISH:
        arrived = pool_arrived_ptr + row * tiles_n + tile % tiles_n
        tl.debug_barrier()  # as above
        if tl.atomic_add(arrived, 1, sem="acq_rel") != TILES - 1:
            return
        tl.store(arrived, 0)
        t_T = tl.arange(0, BLOCK_T)
        sums_TN = sums_ptr + (row.to(tl.int64) * TILES + t_T)[:, None] * N + n_N[None, :]
        total_TN = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
        for start in range(0, TILES, BLOCK_T):
            inside_TN = (t_T < TILES - start)[:, None]
            total_TN += tl.load(sums_TN + start * N, mask=inside_TN, other=0.0, cache_modifier=".cg")
        mean_N = tl.sum(total_TN, axis=0) / positions
        tl.store(pooled_ptr + target * N + n_N, mean_N.to(pooled_ptr.dtype.element_ty))


class Weights(NamedTuple):
    """A convolution with a square kernel of side 1 or 3, padded so that stride 1 keeps the size."""

    weight_NK: torch.Tensor  # output channels × (positions of the kernel × input channels)
    bias_N: torch.Tensor
    side: int
    stride: int

    @classmethod
    def of(cls, weight: torch.Tensor, bias: torch.Tensor, stride: int) -> "Weights":
        """From a weight of output channels × input channels × side × side."""
        return cls(weight.permute(0, 2, 3, 1).flatten(1).contiguous(), bias, weight.shape[2], stride)

    @classmethod
    def of_linear(cls, layer: nn.Linear) -> "Weights":
        """From a linear layer, for features of one position. Zeros fill the outputs up to whole tiles."""
        more = -layer.out_features % _WIDTHS[-1]
        weight, bias = F.pad(layer.weight, (0, 0, 0, more)), F.pad(layer.bias, (0, more))
        return cls.of(weight[:, :, None, None], bias, 1)


def conv_rows(
    x_BCHW: torch.Tensor,
    conv: Weights,
    *,
    listed: Listed | None = None,
    gather: bool = False,
    relu: bool = True,
    pooled_BC: torch.Tensor | None = None,
    arrived: torch.Tensor | None = None,
) -> torch.Tensor:
    """relu(conv(x)), of all images or of listed ones.

    Args:
        x_BCHW: Features, channels_last.
        conv: The convolution.
        listed: The images; None: all.
        gather: Whether to read the listed images from a batch. Otherwise x has only these, in the order of the list.
        relu: Whether to apply ReLU.
        pooled_BC: Gets the means of the result, if given. Not for listed images.
        arrived: For small batches: zeros from `zero_counters`, with which programs wait for each other.

    Returns:
        R×N×H′×W′, channels_last.
    """
    number = len(x_BCHW) if listed is None else len(listed.index_R)
    height, width = (-(-side // conv.stride) for side in x_BCHW.shape[2:])
    y_RNHW = x_BCHW.new_empty(number, height, width, len(conv.bias_N)).permute(0, 3, 1, 2)
    _launch(x_BCHW, conv, y_RNHW, number, listed, pooled_BC, arrived, gather=gather, add=False, relu=relu)
    return y_RNHW


def add_conv_rows_(
    y_BNHW: torch.Tensor,
    listed: Listed,
    x_RCHW: torch.Tensor,
    conv: Weights,
    *,
    pooled_BC: torch.Tensor | None = None,
    arrived: torch.Tensor | None = None,
) -> None:
    """y[index] = relu(y[index] + conv(x)), in place.

    Args:
        y_BNHW: Features to change, channels_last.
        listed: The images of y that x belongs to. Only the spare one may occur more than once.
        x_RCHW: The input of the convolution, channels_last.
        conv: The convolution.
        pooled_BC: Its rows for the listed images get the means of the result, if given.
        arrived: As for `conv_rows`.
    """
    _launch(x_RCHW, conv, y_BNHW, len(x_RCHW), listed, pooled_BC, arrived, gather=False, add=True, relu=True)


class _Tiles(NamedTuple):
    """How a convolution is divided among programs."""

    per_image: bool
    number: int  # of tiles along the positions
    block_m: int
    block_n: int
    block_k: int
    split: int


def _tiles(images: int, positions: int, conv: Weights, *, few: bool, per_image: bool = True) -> _Tiles:
    """Measured on an H200: tiles of 64 positions, as wide as leaves enough programs. Few images share sums.

    per_image: whether tiles have to be of one image if these are few.
    """
    channels, inputs = len(conv.bias_N), conv.weight_NK.shape[1] // conv.side**2
    block_m, block_k = 64, min(inputs, 64)
    per_image = (few and per_image) or -(-positions // block_m) * block_m <= _WASTE * positions
    number = images * triton.cdiv(positions, block_m) if per_image else triton.cdiv(images * positions, block_m)
    widths = [width for width in _WIDTHS if channels % width == 0] or [channels]
    block_n = next((width for width in widths if number * (channels // width) >= _PROGRAMS), widths[-1])
    split, steps = 1, conv.side**2 * inputs // block_k
    while few and split < _LARGEST_SPLIT and steps % (2 * split) == 0 and steps // (2 * split) >= _MIN_STEPS:
        if number * (channels // block_n) * split >= _PROGRAMS // 2:
            break
        split *= 2
    return _Tiles(per_image, number, block_m, block_n, block_k, split)


def zero_counters(images_BCHW: torch.Tensor) -> torch.Tensor:
    """Counters for the launches of one stream, with which programs wait for each other. Each launch leaves zeros."""
    return torch.zeros(_PROGRAMS + _POOLS, dtype=torch.int32, device=images_BCHW.device)


def _launch(
    x_BCHW: torch.Tensor,
    conv: Weights,
    y_BNHW: torch.Tensor,
    number: int,
    listed: Listed | None,
    pooled_BC: torch.Tensor | None,
    arrived: torch.Tensor | None,
    *,
    gather: bool,
    add: bool,
    relu: bool,
) -> None:
    channels = len(conv.bias_N)
    positions = y_BNHW.shape[2] * y_BNHW.shape[3]
    counted, few = listed is not None and listed.number is not None, arrived is not None
    assert few or not counted
    tiles = _tiles(number, positions, conv, few=few, per_image=listed is not None or pooled_BC is not None)
    tiles_n = channels // tiles.block_n
    fused = pooled_BC is not None and tiles.per_image
    finish = fused and few and number * tiles_n <= _POOLS
    tiles_of_image = triton.cdiv(positions, tiles.block_m) if tiles.per_image else 1
    sums = x_BCHW.new_empty(tiles.number, channels, dtype=torch.float32) if fused else x_BCHW
    shared = tiles.number * tiles_n * tiles.split * tiles.block_m * tiles.block_n
    parts = x_BCHW.new_empty(shared, dtype=torch.float32) if tiles.split > 1 else x_BCHW
    launch(
        _conv,
        (tiles.number * tiles_n, tiles.split),
        x_BCHW,
        x_BCHW if listed is None else listed.index_R,
        listed.number if listed is not None and counted else x_BCHW,
        conv.weight_NK,
        conv.bias_N,
        y_BNHW,
        sums,
        parts,
        x_BCHW if arrived is None else arrived,
        x_BCHW if pooled_BC is None else pooled_BC,
        x_BCHW if arrived is None else arrived[_PROGRAMS:],
        number,
        positions,
        y_BNHW.shape[3],
        x_BCHW.shape[2],
        x_BCHW.shape[3],
        K=conv.weight_NK.shape[1] // conv.side**2,
        N=channels,
        SIDE=conv.side,
        STRIDE=conv.stride,
        GATHER=gather,
        COUNTED=counted,
        ADD=add,
        RELU=relu,
        POOL=fused,
        FINISH=finish,
        PER_IMAGE=tiles.per_image,
        SPLIT=tiles.split,
        BLOCK_M=tiles.block_m,
        BLOCK_N=tiles.block_n,
        BLOCK_K=tiles.block_k,
        TILES=tiles_of_image,
        BLOCK_T=min(triton.next_power_of_2(tiles_of_image), _LARGEST_POOL),
        num_warps=4,
        num_stages=3 if tiles.split == 1 else 4,
        chained=few,
    )
    if pooled_BC is not None and not finish:
        if fused:
            pool_parts_(pooled_BC, sums.view(number, -1, channels), positions, listed)
        else:
            pool_rows_(pooled_BC, y_BNHW, listed)
