"""The default router on pooled features, W₂ relu(W₁ z + b₁) + b₂, fused with its gradients.

`fc_scores` uses kernels and `plain_fc_scores` plain PyTorch. Everything is float32.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from codinet.kernels.launching import launch

_ROWS = 32  # inputs per program


@triton.jit
def _hidden(z, w1_ptr, b1_ptr, C: tl.constexpr):
    o = tl.arange(0, C)
    w1_t = tl.load(w1_ptr + o[None, :] * C + o[:, None])
    return tl.dot(z, w1_t, input_precision="ieee") + tl.load(b1_ptr + o)[None, :]


@triton.jit
def _forward(z_ptr, w1_ptr, b1_ptr, w2_ptr, b2_ptr, out_ptr, number, C: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    o = tl.arange(0, C)
    valid = row < number
    z = tl.load(z_ptr + row[:, None] * C + o[None, :], mask=valid[:, None], other=0.0)
    hidden = tl.maximum(_hidden(z, w1_ptr, b1_ptr, C), 0.0)
    skip = tl.sum(hidden * tl.load(w2_ptr + o)[None, :], axis=1) + tl.load(b2_ptr)
    run = tl.sum(hidden * tl.load(w2_ptr + C + o)[None, :], axis=1) + tl.load(b2_ptr + 1)
    tl.store(out_ptr + row * 2, skip, mask=valid)
    tl.store(out_ptr + row * 2 + 1, run, mask=valid)


@triton.jit
def _backward(
    z_ptr,
    w1_ptr,
    b1_ptr,
    w2_ptr,
    dout_ptr,
    dz_ptr,
    parts_ptr,  # [programs, C·C + 3·C + 16]: W₁, b₁, W₂, b₂
    number,
    C: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    o = tl.arange(0, C)
    valid = row < number
    index = row[:, None] * C + o[None, :]
    z = tl.load(z_ptr + index, mask=valid[:, None], other=0.0)
    before = _hidden(z, w1_ptr, b1_ptr, C)
    hidden = tl.maximum(before, 0.0)
    dskip = tl.load(dout_ptr + row * 2, mask=valid, other=0.0)
    drun = tl.load(dout_ptr + row * 2 + 1, mask=valid, other=0.0)
    w2_skip, w2_run = tl.load(w2_ptr + o), tl.load(w2_ptr + C + o)
    dhidden = dskip[:, None] * w2_skip[None, :] + drun[:, None] * w2_run[None, :]
    dhidden = tl.where(before > 0, dhidden, 0.0)
    w1 = tl.load(w1_ptr + o[:, None] * C + o[None, :])
    tl.store(dz_ptr + index, tl.dot(dhidden, w1, input_precision="ieee"), mask=valid[:, None])
    part = parts_ptr + tl.program_id(0) * (C * C + 3 * C + 16)
    tl.store(part + o[:, None] * C + o[None, :], tl.dot(tl.trans(dhidden), z, input_precision="ieee"))
    part += C * C
    tl.store(part + o, tl.sum(dhidden, axis=0))
    tl.store(part + C + o, tl.sum(dskip[:, None] * hidden, axis=0))
    tl.store(part + 2 * C + o, tl.sum(drun[:, None] * hidden, axis=0))
    tl.store(part + 3 * C, tl.sum(dskip, axis=0))
    tl.store(part + 3 * C + 1, tl.sum(drun, axis=0))


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, z_BC: torch.Tensor, w1: torch.Tensor, b1: torch.Tensor, w2: torch.Tensor, b2: torch.Tensor
    ) -> torch.Tensor:
        z_BC, w1, w2 = z_BC.contiguous(), w1.contiguous(), w2.contiguous()
        number, channels = z_BC.shape
        out_B2 = torch.empty(number, 2, device=z_BC.device)
        grid = (triton.cdiv(number, _ROWS),)
        launch(_forward, grid, z_BC, w1, b1, w2, b2, out_B2, number, C=channels, ROWS=_ROWS, num_warps=4)
        ctx.save_for_backward(z_BC, w1, b1, w2)
        return out_B2

    @staticmethod
    def backward(ctx: Any, dout_B2: torch.Tensor) -> Any:
        z_BC, w1, b1, w2 = ctx.saved_tensors
        number, c = z_BC.shape
        dz_BC = torch.empty_like(z_BC)
        grid = triton.cdiv(number, _ROWS)
        parts = torch.empty(grid, c * c + 3 * c + 16, device=z_BC.device)
        launch(
            _backward,
            (grid,),
            z_BC,
            w1,
            b1,
            w2,
            dout_B2.contiguous(),
            dz_BC,
            parts,
            number,
            C=c,
            ROWS=_ROWS,
            num_warps=4,
        )
        total = parts[:, : c * c + 3 * c + 2].sum(dim=0)
        dw1, db1, dw2, db2 = total.split([c * c, c, 2 * c, 2])
        return dz_BC, dw1.view(c, c), db1, dw2.view(2, c), db2


def fc_scores(
    z_BC: torch.Tensor, w1: torch.Tensor, b1: torch.Tensor, w2: torch.Tensor, b2: torch.Tensor
) -> torch.Tensor:
    """Computes router scores with kernels.

    Args:
        z_BC: Pooled features, float32. C must be a power of two of at least 16.
        w1: Weight of the hidden layer, C×C.
        b1: Bias of the hidden layer, C.
        w2: Weight of the output layer, 2×C.
        b2: Bias of the output layer, 2.

    Returns:
        scores_B2: skip, run.
    """
    return _Scores.apply(z_BC, w1, b1, w2, b2)


def plain_fc_scores(
    z_BC: torch.Tensor, w1: torch.Tensor, b1: torch.Tensor, w2: torch.Tensor, b2: torch.Tensor
) -> torch.Tensor:
    """The reference of `fc_scores` in plain PyTorch."""
    return F.linear(F.relu(F.linear(z_BC, w1, b1)), w2, b2)
