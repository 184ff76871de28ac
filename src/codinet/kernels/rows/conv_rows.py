"""1×1 convolutions of a bottleneck that read images by index, or add to them in place.

The images that run a block are never copied next to each other: the first convolution reads them where they are, and
the last one adds its result to them.
"""

import torch
import triton
import triton.language as tl

from codinet.kernels.launching import launch


@triton.jit
def _conv(
    x_ptr,
    index_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    rows,
    positions,  # of an output image
    width,  # of an output image
    in_positions,
    in_width,
    K: tl.constexpr,
    N: tl.constexpr,
    STRIDE: tl.constexpr,
    GATHER: tl.constexpr,
    ADD: tl.constexpr,
    RELU: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """y = relu(x W + b): GATHER reads rows of x by index, ADD adds to rows of y by index."""
    tiles_n = N // BLOCK_N
    tile_m = tl.program_id(0) // tiles_n
    tile_n = tl.program_id(0) % tiles_n
    row_M = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    inside_M = row_M < rows
    image_M = row_M // positions
    position_M = row_M % positions
    if GATHER or ADD:
        indexed_M = tl.load(index_ptr + image_M, mask=inside_M, other=0)
    source_M = (indexed_M if GATHER else image_M).to(tl.int64) * in_positions
    if STRIDE == 1:
        source_M += position_M
    else:
        source_M += (position_M // width) * STRIDE * in_width + (position_M % width) * STRIDE
    n_N = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k_K = tl.arange(0, BLOCK_K)
    x_MK = x_ptr + source_M[:, None] * K + k_K[None, :]
    weight_KN = weight_ptr + n_N[None, :] * K + k_K[:, None]
    target_M = (indexed_M if ADD else image_M).to(tl.int64) * positions + position_M
    y_MN = y_ptr + target_M[:, None] * N + n_N[None, :]
    if ADD:  # before the products, so that they hide its latency
        old_MN = tl.load(y_MN, mask=inside_M[:, None], other=0.0)
    sum_MN = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for _ in range(K // BLOCK_K):
        a_MK = tl.load(x_MK, mask=inside_M[:, None], other=0.0)
        sum_MN = tl.dot(a_MK, tl.load(weight_KN), sum_MN)
        x_MK += BLOCK_K
        weight_KN += BLOCK_K
    sum_MN += tl.load(bias_ptr + n_N)[None, :].to(tl.float32)
    if ADD:
        sum_MN += old_MN.to(tl.float32)
    if RELU:
        sum_MN = tl.maximum(sum_MN, 0.0)
    tl.store(y_MN, sum_MN.to(y_ptr.dtype.element_ty), mask=inside_M[:, None])


def conv_rows(
    x_BCHW: torch.Tensor,
    weight_NK: torch.Tensor,
    bias_N: torch.Tensor,
    *,
    stride: int = 1,
    index_R: torch.Tensor | None = None,
    relu: bool = True,
) -> torch.Tensor:
    """relu(conv1x1(x[index])), or of all images.

    Args:
        x_BCHW: Features, channels_last.
        weight_NK: The weight, output × input channels.
        bias_N: The bias.
        stride: The stride of the convolution.
        index_R: The images to read; None reads all.
        relu: Whether to apply ReLU.

    Returns:
        R×N×H′×W′, channels_last.
    """
    number = len(x_BCHW) if index_R is None else len(index_R)
    height, width = (-(-side // stride) for side in x_BCHW.shape[2:])
    y_RNHW = x_BCHW.new_empty(number, height, width, len(weight_NK)).permute(0, 3, 1, 2)
    _launch(
        x_BCHW, index_R, weight_NK, bias_N, y_RNHW, number, stride, gather=index_R is not None, add=False, relu=relu
    )
    return y_RNHW


def add_conv_rows_(
    y_BNHW: torch.Tensor, index_R: torch.Tensor, x_RCHW: torch.Tensor, weight_NK: torch.Tensor, bias_N: torch.Tensor
) -> None:
    """y[index] = relu(y[index] + conv1x1(x)), in place.

    Args:
        y_BNHW: Features to change, channels_last.
        index_R: The images of y that x belongs to. Only the spare one may occur more than once.
        x_RCHW: The input of the convolution, channels_last.
        weight_NK: The weight, output × input channels.
        bias_N: The bias.
    """
    _launch(x_RCHW, index_R, weight_NK, bias_N, y_BNHW, len(x_RCHW), 1, gather=False, add=True, relu=True)


def _launch(
    x_BCHW: torch.Tensor,
    index_R: torch.Tensor | None,
    weight_NK: torch.Tensor,
    bias_N: torch.Tensor,
    y_BNHW: torch.Tensor,
    number: int,
    stride: int,
    *,
    gather: bool,
    add: bool,
    relu: bool,
) -> None:
    channels, inputs = weight_NK.shape
    positions = y_BNHW.shape[2] * y_BNHW.shape[3]
    rows = number * positions
    # Measured on an H200; few rows need narrow tiles to use all multiprocessors.
    block_n = min(channels, 32 if rows <= 4096 else 128)
    block_m, block_k = 64, min(inputs, 64)
    grid = (triton.cdiv(rows, block_m) * (channels // block_n),)
    launch(
        _conv,
        grid,
        x_BCHW,
        x_BCHW if index_R is None else index_R,
        weight_NK,
        bias_N,
        y_BNHW,
        rows,
        positions,
        y_BNHW.shape[3],
        x_BCHW.shape[2] * x_BCHW.shape[3],
        x_BCHW.shape[3],
        K=inputs,
        N=channels,
        STRIDE=stride,
        GATHER=gather,
        ADD=add,
        RELU=relu,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        num_warps=4,
        num_stages=3,
    )
