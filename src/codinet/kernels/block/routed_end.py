"""The end of a routed block in training: v·relu(BN(y) + s) + (1 − v)·s, where y is the last convolution's output.

`routed_end` returns the block's output and its mean over pixels; `plain_routed_end` is the reference in plain PyTorch.
s is the shortcut. The kernels read y and s twice in each direction, as a static block does: the mean for the next
router and the gradient of the decisions need no pass of their own. BatchNorm is in training mode. Features are
computed in the dtype of y, sums in float32.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch.nn import functional as F

from codinet.kernels.block.norm_kernels import (
    CHANNELS,
    batch_sums,
    mix_backward,
    mix_forward,
    mix_inputs,
    norm_backward,
    norm_forward,
)
from codinet.kernels.launching import launch

_TILE = 2048  # values that a program holds of each tensor
_PROGRAMS = 2048  # of `batch_sums`, roughly: several for each multiprocessor


class NormBuffers(NamedTuple):
    """The buffers of a BatchNorm, which the forward pass updates, and its settings."""

    running_mean: torch.Tensor
    running_var: torch.Tensor
    batches: torch.Tensor
    momentum: float
    eps: float


def routed_end(
    y_BCHW: torch.Tensor,
    shortcut_BCHW: torch.Tensor,
    run_B: torch.Tensor | None,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    buffers: NormBuffers,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes the end of a block with kernels.

    Args:
        y_BCHW: The output of the block's last convolution, of a shape that `supports_end` accepts.
        shortcut_BCHW: The shortcut, in the shape and dtype of y.
        run_B: Decisions between 0 (skip) and 1 (run). None runs the block for every image.
        gamma: Weight of the last BatchNorm.
        beta: Its bias.
        buffers: Its buffers.

    Returns:
        The block's output, in the shape and dtype of y, and its mean over pixels (B×C, float32).
    """
    return _RoutedEnd.apply(y_BCHW, shortcut_BCHW, run_B, gamma, beta, buffers)


def plain_routed_end(
    y_BCHW: torch.Tensor,
    shortcut_BCHW: torch.Tensor,
    run_B: torch.Tensor | None,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    buffers: NormBuffers,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The reference of `routed_end` in plain PyTorch."""
    mean_C, var_C, batches, momentum, eps = buffers
    y_BCHW = F.batch_norm(y_BCHW, mean_C, var_C, gamma, beta, training=True, momentum=momentum, eps=eps)
    batches += 1
    out_BCHW = F.relu(y_BCHW + shortcut_BCHW)
    if run_B is not None:
        out_BCHW = torch.lerp(shortcut_BCHW, out_BCHW, run_B.to(out_BCHW.dtype)[:, None, None, None])
    return out_BCHW, out_BCHW.float().mean(dim=(2, 3))


def supports_end(number: int, channels: int, height: int, width: int) -> bool:
    """Returns whether the kernels support features of this shape."""
    return (channels in (16, 32) or channels % 64 == 0) and number * channels * height * width < 2**31


def _channels_per_program(channels: int) -> int:
    return 128 if channels % 128 == 0 else min(channels, 64)


class EndKernels:
    """Launches the kernels of a block's end for features of one shape.

    Args:
        x_BCHW: The shortcut, in channels last.
    """

    def __init__(self, x_BCHW: torch.Tensor) -> None:
        self.x = x_BCHW
        self.number, self.channels, self.height, self.width = x_BCHW.shape
        assert supports_end(*x_BCHW.shape)
        self.count = self.number * self.height * self.width
        pixels, width = self.height * self.width, _channels_per_program(self.channels)
        self.grid = self.number, self.channels // width
        self.sizes = {
            "PIXELS": pixels,
            "C": self.channels,
            "WIDTH": width,
            "BLOCK": min(triton.next_power_of_2(pixels), _TILE // width),
        }

    def _new(self, *size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.float32, device=self.x.device)

    def like(self) -> torch.Tensor:
        """Returns an empty tensor for features."""
        return torch.empty_like(self.x, memory_format=torch.channels_last)

    def sums(self, y: torch.Tensor) -> torch.Tensor:
        """Returns the sums of y and y² over the batch, in parts."""
        width, block = self.sizes["WIDTH"], self.sizes["BLOCK"]
        rows = block * triton.cdiv(self.count * self.grid[1], block * _PROGRAMS)
        parts = triton.cdiv(self.count, rows)
        sums = self._new(parts, 2, self.channels)
        launch(
            batch_sums,
            (parts, self.grid[1]),
            *(y, sums, self.count),
            ROWS=rows,
            C=self.channels,
            WIDTH=width,
            BLOCK=block,
            num_warps=4,
        )
        return sums

    def norm(self, sums: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, buffers: NormBuffers) -> torch.Tensor:
        """Returns scale, shift, mean and 1/σ (4×C), and updates the running statistics."""
        out = self._new(4, self.channels)
        launch(
            norm_forward,
            (self.channels // CHANNELS,),
            *(sums, gamma, beta, buffers.running_mean, buffers.running_var, buffers.batches, out),
            *(self.count, buffers.momentum, buffers.eps),
            PARTS=len(sums),
            C=self.channels,
            PAIR=sums.shape[2] // self.channels,
            num_warps=8,
        )
        return out

    def norm_gradient(
        self, sums: torch.Tensor, gamma: torch.Tensor, forward: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the coefficients of a BatchNorm's backward pass, and the gradients of its γ and β."""
        out, dgamma, dbeta = self._new(3, self.channels), self._new(self.channels), self._new(self.channels)
        launch(
            norm_backward,
            (self.channels // CHANNELS,),
            *(sums, gamma, forward, out, dgamma, dbeta, self.count),
            PARTS=len(sums),
            C=self.channels,
            PAIR=sums.shape[2] // self.channels,
            num_warps=8,
        )
        return out, dgamma, dbeta

    def mix(
        self, y: torch.Tensor, coefficients: torch.Tensor, run: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the block's output and its mean over pixels."""
        out, pool = self.like(), self._new(self.number, self.channels)
        launch(
            mix_forward,
            self.grid,
            *(y, self.x, coefficients, run, out, pool),
            **self.sizes,
            ROUTED=run is not None,
            num_warps=4,
        )
        return out, pool

    def mix_gradient(
        self,
        dout: torch.Tensor,
        dpool: torch.Tensor | None,
        y: torch.Tensor,
        coefficients: torch.Tensor,
        run: torch.Tensor | None,
        dz: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns the sums of the gradient of the last BatchNorm's output, in parts, and the gradient of the decisions.

        The first gradient itself is written to dz, if there is one.
        """
        sums = self._new(self.number, 2, self.channels)
        drun = None if run is None else self._new(*self.grid)
        launch(
            mix_backward,
            self.grid,
            *(dout, dpool, y, self.x, coefficients, run, dz, sums, drun),
            **self.sizes,
            ROUTED=run is not None,
            POOLED=dpool is not None,
            STORED=dz is not None,
            num_warps=4,
        )
        if drun is not None:
            drun = drun[:, 0] if drun.shape[1] == 1 else drun.sum(dim=1)
        return sums, drun

    def mix_inputs(
        self,
        dout: torch.Tensor,
        dpool: torch.Tensor | None,
        y: torch.Tensor,
        coefficients: torch.Tensor,
        gradient: torch.Tensor,
        run: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the gradients of y and of the shortcut."""
        dy, dx = self.like(), self.like()
        launch(
            mix_inputs,
            self.grid,
            *(dout, dpool, y, self.x, coefficients, gradient, run, dy, dx),
            **self.sizes,
            ROUTED=run is not None,
            POOLED=dpool is not None,
            num_warps=4,
        )
        return dy, dx


class _RoutedEnd(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        y_BCHW: torch.Tensor,
        shortcut_BCHW: torch.Tensor,
        run_B: torch.Tensor | None,
        gamma: torch.Tensor,
        beta: torch.Tensor,
        buffers: NormBuffers,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        y, shortcut = (each.contiguous(memory_format=torch.channels_last) for each in (y_BCHW, shortcut_BCHW))
        run = None if run_B is None else run_B.float().contiguous()
        kernels = EndKernels(shortcut)
        norm = kernels.norm(kernels.sums(y), gamma, beta, buffers)
        out_BCHW, pool_BC = kernels.mix(y, norm, run)
        ctx.save_for_backward(y, shortcut, run, gamma, norm)
        ctx.set_materialize_grads(False)
        return out_BCHW, pool_BC

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor | None, dpool: torch.Tensor | None) -> Any:
        y, shortcut, run, gamma, norm = ctx.saved_tensors
        kernels = EndKernels(shortcut)
        dout = torch.zeros_like(y) if dout is None else dout.contiguous(memory_format=torch.channels_last)
        dpool = None if dpool is None else dpool.contiguous()
        sums, drun = kernels.mix_gradient(dout, dpool, y, norm, run)
        gradient, dgamma, dbeta = kernels.norm_gradient(sums, gamma, norm)
        dy, dshortcut = kernels.mix_inputs(dout, dpool, y, norm, gradient, run)
        return dy, dshortcut, drun, dgamma, dbeta, None
