"""`model.routed_step` with fused kernels for the blocks that they support. Importing this module needs Triton.

Basic blocks that keep their shape are computed by kernels as a whole. Of a bottleneck, torch computes the convolutions
and the kernels the end, where routing would otherwise need passes of its own over the largest features.
"""

from collections.abc import Callable
from typing import Any

import torch

from codinet.backbones import BasicBlock, Block, Bottleneck
from codinet.kernels.block import tile_sizes
from codinet.kernels.block.fused_block import BlockTensors, routed_block
from codinet.kernels.block.routed_end import NormBuffers, routed_end, supports_end
from codinet.kernels.block.router_kernels import fc_scores
from codinet.model import RoutedStep, routed_mix
from codinet.relaxation import Decide
from codinet.routers import FCRouter, Router, State


class FusedStep:
    """A replacement for `model.routed_step`.

    A block's kernels also compute the mean of its output over pixels, which is what the next block's router needs, so
    it is kept from one call to the next.

    Args:
        rest: Runs the blocks that the kernels do not support.
        compile: Compiles the parts that torch computes.
    """

    def __init__(self, rest: RoutedStep, *, compile: Callable[..., Any] = lambda function: function) -> None:
        self.rest = rest
        self.decide, self.score = compile(_decide), compile(_score)
        self.mix = compile(routed_mix)
        self.convolutions, self.shortcut = compile(_convolutions), compile(_shortcut)
        self.last: tuple[torch.Tensor, torch.Tensor] | None = None  # a block's output, and its mean over pixels

    def __call__(
        self,
        block: Block,
        router: Router | None,
        x_BCHW: torch.Tensor,
        state: State,
        decide: Decide,
        forced_B: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, State]:
        per_position = getattr(router, "per_position", False)
        static = per_position or (router is None and forced_B is None)
        if not supports(block, x_BCHW, static=static):
            return self.rest(block, router, x_BCHW, state, decide, forced_B)
        if per_position:  # the kernels mix whole images
            assert isinstance(block, BasicBlock)
            y_BCHW, _ = routed_block(x_BCHW, None, _tensors(block))
            return self.mix(router, x_BCHW, x_BCHW, y_BCHW, state, decide, forced_B)
        if router is None:
            scores_B2 = torch.zeros(len(x_BCHW), 2, device=x_BCHW.device)
            decision_B = torch.ones_like(scores_B2[:, 0])
        else:
            scores_B2, state = self._route(router, x_BCHW, state)
            decision_B = self.decide(decide, scores_B2)
        decision_B = decision_B if forced_B is None else forced_B
        run_B = None if static else decision_B
        if isinstance(block, Bottleneck):
            shortcut_BCHW = x_BCHW if block.downsample is None else self.shortcut(block, x_BCHW)
            features_BCHW, norm = self.convolutions(block, x_BCHW), block.bn3
            y_BCHW, pooled_BC = routed_end(features_BCHW, shortcut_BCHW, run_B, norm.weight, norm.bias, _buffers(norm))
        else:
            assert isinstance(block, BasicBlock)
            y_BCHW, pooled_BC = routed_block(x_BCHW, run_B, _tensors(block))
        self.last = y_BCHW, pooled_BC
        return y_BCHW, scores_B2, decision_B, state

    def _route(self, router: Router, x_BCHW: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        if isinstance(router, FCRouter) and router.hidden.in_features in tile_sizes.WIDTHS:
            hidden, out = router.hidden, router.out
            return fc_scores(self._pooled(x_BCHW), hidden.weight, hidden.bias, out.weight, out.bias), state
        if getattr(router, "reads_means", False):
            x_BCHW = self._pooled(x_BCHW)[:, :, None, None]
        return self.score(router, x_BCHW, state)

    def _pooled(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        if self.last is not None and self.last[0] is x_BCHW:
            return self.last[1]
        return x_BCHW.mean(dim=(2, 3), dtype=torch.float32)


def supports(block: Block, x_BCHW: torch.Tensor, *, static: bool) -> bool:
    """Return whether the kernels support a block, in whole or its end, and are faster: in training, in half precision.

    A static bottleneck is a little faster in torch alone.
    """
    if type(block) is Bottleneck and not static:
        norms, fits = [block.bn3], supports_end(len(x_BCHW), block.bn3.num_features, *x_BCHW.shape[2:])
    elif type(block) is BasicBlock and block.stride == 1 and block.conv1.weight.shape == block.conv2.weight.shape:
        norms, fits = [block.bn1, block.bn2], tile_sizes.fits(*x_BCHW.shape[1:])
    else:
        return False
    plain = all(type(norm) is torch.nn.BatchNorm2d for norm in norms)
    return block.training and plain and x_BCHW.dtype != torch.float32 and fits


def _decide(decide: Decide, scores_B2: torch.Tensor) -> torch.Tensor:
    return decide(scores_B2)


def _score(router: Router, x_BCHW: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
    scores_B2, state = router(x_BCHW, state)
    return scores_B2.float(), state


def _convolutions(block: Bottleneck, x_BCHW: torch.Tensor) -> torch.Tensor:
    return block.convolutions(x_BCHW)


def _shortcut(block: Bottleneck, x_BCHW: torch.Tensor) -> torch.Tensor:
    return block.shortcut(x_BCHW)


def _tensors(block: BasicBlock) -> BlockTensors:
    (one, norm1), (two, norm2) = (block.conv1, block.bn1), (block.conv2, block.bn2)
    return BlockTensors(
        *(one.weight, norm1.weight, norm1.bias),
        *(two.weight, norm2.weight, norm2.bias),
        _buffers(norm1),
        _buffers(norm2),
    )


def _buffers(norm: torch.nn.BatchNorm2d) -> NormBuffers:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    assert norm.momentum is not None
    return NormBuffers(norm.running_mean, norm.running_var, norm.num_batches_tracked, norm.momentum, norm.eps)
