"""A routed basic block in training, v·F(x) + (1 − v)·x, as fused kernels with gradients.

`routed_block` returns the block's output and its mean over pixels; `plain_routed_block` is the reference in plain
PyTorch. Both support blocks that keep their shape, with BatchNorm in training mode. Features are computed in the dtype
of x, weights and sums in float32.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch.nn import functional as F

from codinet.kernels.block import conv_kernels
from codinet.kernels.block.conv_kernels import add_weights, conv3x3, conv3x3_weight, pack
from codinet.kernels.block.routed_end import EndKernels, NormBuffers, plain_routed_end
from codinet.kernels.block.tile_sizes import Tiles, choose
from codinet.kernels.launching import launch

ADDED = 32  # weights whose gradients a program of `add_weights` sums
PLAIN, ACTIVATED, GRADIENT = conv_kernels.PLAIN.value, conv_kernels.ACTIVATED.value, conv_kernels.GRADIENT.value
FEATURES, MASKED, RESIDUAL = conv_kernels.FEATURES.value, conv_kernels.MASKED.value, conv_kernels.RESIDUAL.value


class BlockTensors(NamedTuple):
    """A basic block's parameters and buffers."""

    weight1: torch.Tensor
    gamma1: torch.Tensor
    beta1: torch.Tensor
    weight2: torch.Tensor
    gamma2: torch.Tensor
    beta2: torch.Tensor
    buffers1: NormBuffers
    buffers2: NormBuffers


def routed_block(
    x_BCHW: torch.Tensor, run_B: torch.Tensor | None, block: BlockTensors, *, tiles: Tiles | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs a block for each image with weight run_B, using kernels.

    Args:
        x_BCHW: Features of a shape that `tile_sizes.fits` accepts.
        run_B: Decisions between 0 (skip) and 1 (run). None runs the block for every image.
        block: The block's parameters and buffers.
        tiles: Tile sizes; None uses the tuned ones.

    Returns:
        The output, in the shape and dtype of x, and its mean over pixels (B×C, float32).
    """
    tiles = tiles or choose(*x_BCHW.shape[1:])
    return _RoutedBlock.apply(x_BCHW, run_B, *block, tiles)


def plain_routed_block(
    x_BCHW: torch.Tensor, run_B: torch.Tensor | None, block: BlockTensors
) -> tuple[torch.Tensor, torch.Tensor]:
    """The reference of `routed_block` in plain PyTorch."""
    mean_C, var_C, batches, momentum, eps = block.buffers1
    y_BCHW = F.conv2d(x_BCHW, block.weight1.to(x_BCHW.dtype), padding=1)
    y_BCHW = F.batch_norm(y_BCHW, mean_C, var_C, block.gamma1, block.beta1, training=True, momentum=momentum, eps=eps)
    batches += 1
    y_BCHW = F.conv2d(F.relu(y_BCHW), block.weight2.to(x_BCHW.dtype), padding=1)
    return plain_routed_end(y_BCHW, x_BCHW, run_B, block.gamma2, block.beta2, block.buffers2)


class BlockKernels(EndKernels):
    """Launches the kernels of a block for features of one shape."""

    def __init__(self, x_BCHW: torch.Tensor, tiles: Tiles) -> None:
        super().__init__(x_BCHW)
        self.tiles = tiles
        self.shape: dict[str, Any] = {"H": self.height, "W": self.width, "C": self.channels}

    def conv(
        self,
        source: torch.Tensor,
        weights: torch.Tensor,
        *,
        read: int,
        write: int,
        source_y: torch.Tensor | None = None,
        source_coefficients: torch.Tensor | None = None,
        y: torch.Tensor | None = None,
        coefficients: torch.Tensor | None = None,
        dz: torch.Tensor | None = None,
        dout: torch.Tensor | None = None,
        dpool: torch.Tensor | None = None,
        run: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns what `conv3x3` writes, and its sums in parts."""
        tiles = self.tiles
        number = triton.cdiv(self.number, tiles.images) * (self.height // tiles.rows)
        out, sums = self.like(), self._new(number, 2, tiles.pair * self.channels)
        launch(
            conv3x3,
            (number,),
            *(source, source_y, source_coefficients, weights, out, sums),
            *(y, coefficients, dz, dout, dpool, run, self.number),
            **self.shape,
            IMAGES=tiles.images,
            ROWS=tiles.rows,
            PAIR=tiles.pair,
            READ=read,
            WRITE=write,
            ROUTED=run is not None,
            POOLED=dpool is not None,
            num_warps=tiles.warps,
            num_stages=1,
        )
        return out, sums

    def weight_gradient(
        self,
        source: torch.Tensor,
        source_coefficients: torch.Tensor | None,
        dz: torch.Tensor,
        y: torch.Tensor,
        coefficients: torch.Tensor,
        weight: torch.Tensor,
    ) -> torch.Tensor:
        """Returns the gradient of a convolution's weight, in the memory format of `weight`."""
        tiles, channels = self.tiles, self.channels
        parts = triton.cdiv(self.number, tiles.weight_images)
        partial = self._new(parts, (9 if tiles.weight_pair == 1 else 24) * channels * channels)
        launch(
            conv3x3_weight,
            (parts,),
            *(source, source_coefficients, dz, y, coefficients, partial, self.number),
            **self.shape,
            IMAGES=tiles.weight_images,
            PAIR=tiles.weight_pair,
            READ=PLAIN if source_coefficients is None else ACTIVATED,
            num_warps=tiles.weight_warps,
            num_stages=1,
        )
        out = torch.empty_like(weight)
        stride_out, stride_in, _, stride_tap = out.stride()
        launch(
            add_weights,
            (9 * channels * channels // ADDED,),
            *(partial, out, stride_out, stride_in, stride_tap),
            PARTS=parts,
            C=channels,
            PAIR=tiles.weight_pair,
            BLOCK=ADDED,
            ROWS=128,
            num_warps=4,
        )
        return out


class _RoutedBlock(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_BCHW: torch.Tensor,
        run_B: torch.Tensor | None,
        weight1: torch.Tensor,
        gamma1: torch.Tensor,
        beta1: torch.Tensor,
        weight2: torch.Tensor,
        gamma2: torch.Tensor,
        beta2: torch.Tensor,
        buffers1: NormBuffers,
        buffers2: NormBuffers,
        tiles: Tiles,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x_BCHW = x_BCHW.contiguous(memory_format=torch.channels_last)
        run_B = None if run_B is None else run_B.float().contiguous()
        kernels = BlockKernels(x_BCHW, tiles)
        packed = pack(weight1, weight2, tiles.pair, x_BCHW.dtype)
        y1, sums = kernels.conv(x_BCHW, packed[0, 0], read=PLAIN, write=FEATURES)
        norm1 = kernels.norm(sums, gamma1, beta1, buffers1)
        y2, sums = kernels.conv(y1, packed[1, 0], read=ACTIVATED, write=FEATURES, source_coefficients=norm1)
        norm2 = kernels.norm(sums, gamma2, beta2, buffers2)
        out_BCHW, pool_BC = kernels.mix(y2, norm2, run_B)
        ctx.save_for_backward(x_BCHW, run_B, weight1, weight2, packed, gamma1, gamma2, y1, norm1, y2, norm2)
        ctx.tiles = tiles
        ctx.set_materialize_grads(False)
        return out_BCHW, pool_BC

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor | None, dpool: torch.Tensor | None) -> Any:
        x, run, weight1, weight2, packed, gamma1, gamma2, y1, norm1, y2, norm2 = ctx.saved_tensors
        kernels = BlockKernels(x, ctx.tiles)
        dout = torch.zeros_like(x) if dout is None else dout.contiguous(memory_format=torch.channels_last)
        dpool = None if dpool is None else dpool.contiguous()
        dz2 = kernels.like()
        sums, drun = kernels.mix_gradient(dout, dpool, y2, norm2, run, dz2)
        back2, dgamma2, dbeta2 = kernels.norm_gradient(sums, gamma2, norm2)
        dweight2 = kernels.weight_gradient(y1, norm1, dz2, y2, back2, weight2)
        dz1, sums = kernels.conv(
            dz2,
            packed[1, 1],
            read=GRADIENT,
            write=MASKED,
            source_y=y2,
            source_coefficients=back2,
            y=y1,
            coefficients=norm1,
        )
        back1, dgamma1, dbeta1 = kernels.norm_gradient(sums, gamma1, norm1)
        dweight1 = kernels.weight_gradient(x, None, dz1, y1, back1, weight1)
        dx, _ = kernels.conv(
            dz1,
            packed[0, 1],
            read=GRADIENT,
            write=RESIDUAL,
            source_y=y1,
            source_coefficients=back1,
            dz=dz2,
            dout=dout,
            dpool=dpool,
            run=run,
        )
        return dx, drun, dweight1, dgamma1, dbeta1, dweight2, dgamma2, dbeta2, None, None, None
