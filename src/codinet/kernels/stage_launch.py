"""Launching `stage`: buffers in, features, scores and path out.

A `Stage` holds the packed weights of one stage under one tuning. Needs Triton: ask `kernels.available` first.
"""

from dataclasses import dataclass
from functools import partial

import torch
import triton

from codinet.kernels.stage import stage_kernel
from codinet.kernels.stage_tuning import Tuning
from codinet.kernels.stage_weights import BlockWeights, StageWeights, pack_conv, pack_router, pack_taps

FORMS = {"taps": 0, "rows": 1, "pairs": 2}


@dataclass(frozen=True)
class Traffic:
    """What all stages of a network read and write, beside features: places for N blocks."""

    limit: torch.Tensor  # 1, float32: the least U[run] − U[skip] that runs a block
    force_BN: torch.Tensor  # int8: 0 skip, 1 run, 2 ask the router
    scores_BN2: torch.Tensor  # float32
    path_BN: torch.Tensor  # float32


class Stage:
    """The blocks of one width, in a dtype, under a tuning. `first` is the network's number of its first block."""

    def __init__(
        self, weights: StageWeights, first: int, tuning: Tuning, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.tuning, self.first, self.number = tuning, first, len(weights.blocks)
        self.channels, self.channels_in, self.stride = weights.channels, weights.channels_in, weights.stride
        self.routed, self.device = weights.routed, device
        strided = weights.blocks[0]
        convs = [_regular(block, weights, tuning) for block in weights.blocks]
        biases = [torch.stack([block.bias1_O, block.bias2_O]) for block in weights.blocks]
        self.weight = torch.stack(convs).to(device, dtype).contiguous()
        self.bias = torch.stack(biases).to(device, torch.float32).contiguous()
        self.enter_weight = pack_taps(strided.conv1_OI33).to(device, dtype).contiguous()
        self.router, self.enter_router = self.bias, self.bias  # not read where nobody routes
        if self.routed:
            vectors = [pack_router(block.router) for block in weights.blocks if block.router is not None]
            self.enter_router = vectors[0].to(device)
            if self.stride > 1:
                vectors[0] = torch.zeros(self.channels**2 + 3 * self.channels + 4)
            self.router = torch.stack([vector.to(device) for vector in vectors])

    def __call__(
        self,
        enter_BHWC: torch.Tensor,
        enter_pooled_BC: torch.Tensor | None,
        traffic: Traffic,
        ticket_B: torch.Tensor,
        *,
        pools: bool,
        compile_only: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The features that leave and their means (not set unless `pools` or routed).

        No feature may be negative, as after a ReLU. Without a stride those that enter are written over. Tickets are
        zeros, int32; they are used up.
        """
        batch, height, width, _ = enter_BHWC.shape
        tuning, stride = self.tuning, self.stride
        shape = batch, -(-height // stride), -(-width // stride), self.channels
        x_BHWC = enter_BHWC if stride == 1 else enter_BHWC.new_empty(shape)
        pooled_BC = torch.empty(batch, self.channels, device=self.device)
        across = -(-shape[2] // 2) if tuning.form == "pairs" else shape[2]
        options = {} if tuning.registers is None else {"maxnreg": tuning.registers}
        grid = (batch * tuning.split,)
        launch = partial(stage_kernel.warmup, grid=grid) if compile_only else stage_kernel[grid]
        launch(
            enter_BHWC,
            x_BHWC,
            enter_BHWC.new_empty(shape),
            self.enter_weight,
            self.weight,
            self.bias,
            self.enter_router,
            self.router,
            pooled_BC if enter_pooled_BC is None else enter_pooled_BC,
            pooled_BC,
            traffic.limit,
            traffic.force_BN,
            traffic.scores_BN2,
            traffic.path_BN,
            ticket_B,
            torch.empty(batch, tuning.split, self.channels, device=self.device),
            self.number,
            self.first,
            traffic.path_BN.shape[1],
            H_IN=height,
            W_IN=width,
            C_IN=self.channels_in,
            C=self.channels,
            STRIDE=stride,
            ROUTED=self.routed,
            POOLS=pools or self.routed,
            FORM=FORMS[tuning.form],
            BM=tuning.pixels,
            BN=tuning.channels or self.channels,
            ACROSS=min(triton.next_power_of_2(across), tuning.pixels),
            STAGES=tuning.stages,
            SPLIT=tuning.split,
            num_warps=tuning.warps,
            num_stages=tuning.stages,
            **options,
        )
        return x_BHWC, pooled_BC


def _regular(block: BlockWeights, weights: StageWeights, tuning: Tuning) -> torch.Tensor:
    """Both convolutions packed; zeros for a first one that strides, which lies apart."""
    conv2 = pack_conv(block.conv2_OI33, tuning.form)
    strides = block is weights.blocks[0] and weights.stride > 1
    return torch.stack([torch.zeros_like(conv2) if strides else pack_conv(block.conv1_OI33, tuning.form), conv2])
