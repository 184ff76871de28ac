"""Launching `stage`: images in; logits, scores and path out.

A `Launcher` holds the packed weights of a network for one tuning. Needs Triton: call `kernels.available` first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton

from codinet.kernels.launching import launch, require_fit
from codinet.kernels.stage import network_kernel
from codinet.kernels.stage_tuning import Cut, Tuning
from codinet.kernels.stage_weights import (
    BlockWeights,
    NetworkWeights,
    StageWeights,
    pack_conv,
    pack_router,
    pack_stem,
    pack_taps,
)

FORMS = {"taps": 0, "rows": 1, "pairs": 2}


@dataclass(frozen=True)
class Traffic:
    """The buffers of a launch beside images and features."""

    limit: torch.Tensor  # 1, float32: the least U[run] − U[skip] that runs a block
    force_BN: torch.Tensor  # int8: 0 skip, 1 run, 2 evaluate the router
    logits_BK: torch.Tensor  # float32
    scores_BN2: torch.Tensor  # float32
    path_BN: torch.Tensor  # float32
    tickets_B2: torch.Tensor  # int32, zeros; each launch leaves them so


class Launcher:
    """A network in a dtype, under a tuning."""

    def __init__(self, weights: NetworkWeights, tuning: Tuning, dtype: torch.dtype, device: torch.device) -> None:
        assert len(tuning.cuts) == len(weights.stages)
        self.weights, self.tuning, self.dtype, self.device = weights, tuning, dtype, device
        self.stem_weight = pack_stem(weights.stem_OI33).to(device, dtype)
        self.stem_bias = weights.stem_O.to(device, torch.float32).contiguous()
        self.head_weight = weights.head_KC.to(device, torch.float32).contiguous()
        self.head_bias = weights.head_K.to(device, torch.float32).contiguous()
        self.numbers = torch.tensor([len(stage.blocks) for stage in weights.stages], dtype=torch.int32, device=device)
        assert weights.stages[0].stride == 1  # the router of a first block that strides would not be evaluated
        asked = [*weights.stages[1:], None]
        self.stages = [
            _Packed(stage, after, cut, dtype, device)
            for stage, after, cut in zip(weights.stages, asked, tuning.cuts, strict=True)
        ]

    def __call__(self, images_BCHW: torch.Tensor, traffic: Traffic) -> torch.Tensor:
        """Writes the answers into the traffic; returns the features after the last stage, B×H×W×C."""
        return self._run(launch, images_BCHW, traffic)

    def require_fit(self, images_BCHW: torch.Tensor, traffic: Traffic) -> None:
        """Compile the kernel for these images; `TooLargeError` if it needs more shared memory than the device has."""
        self._run(require_fit, images_BCHW, traffic)

    def _run(self, run: Callable[..., None], images_BCHW: torch.Tensor, traffic: Traffic) -> Any:
        """`launch` or `require_fit`, with all arguments of the kernel."""
        assert images_BCHW.is_contiguous()
        assert images_BCHW.dtype == self.dtype
        batch, planes, height, width = images_BCHW.shape
        tuning, weights = self.tuning, self.weights
        features, cuts, sides = [], [], (height, width)
        for stage, cut in zip(weights.stages, tuning.cuts, strict=True):
            cuts.append(_constants(stage, cut, *sides))
            sides = -(-sides[0] // stage.stride), -(-sides[1] // stage.stride)
            features.append(images_BCHW.new_empty(batch, *sides, stage.channels))
        options = {} if tuning.registers is None else {"maxnreg": tuning.registers}
        run(
            network_kernel,
            (batch * tuning.split,),
            images_BCHW,
            self.stem_weight,
            self.stem_bias,
            tuple(features),
            tuple(torch.empty_like(x_BHWC) for x_BHWC in features),
            tuple(stage.enter_weight for stage in self.stages),
            tuple(stage.weight for stage in self.stages),
            tuple(stage.bias for stage in self.stages),
            tuple(stage.hidden for stage in self.stages),
            tuple(stage.router for stage in self.stages),
            tuple(
                torch.empty(batch, 2 * tuning.split, stage.channels, device=self.device)
                for stage in weights.stages  # each its own: a slow thread may still read those of the stage before
            ),
            self.numbers,
            self.head_weight,
            self.head_bias,
            traffic.logits_BK,
            traffic.limit,
            traffic.force_BN,
            traffic.scores_BN2,
            traffic.path_BN,
            traffic.tickets_B2,
            traffic.path_BN.shape[1],
            len(self.head_bias),
            HEIGHT=height,
            WIDTH=width,
            PLANES=planes,
            TAPS_IN=len(self.stem_weight),
            CUTS=tuple(cuts),
            ROUTED=weights.routed,
            SPLIT=tuning.split,
            num_warps=tuning.warps,
            **options,
        )
        return features[-1]


class _Packed:
    """The weights of a stage as the kernel reads them."""

    def __init__(
        self,
        weights: StageWeights,
        after: StageWeights | None,
        cut: Cut,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        convs = [_regular(block, weights, cut) for block in weights.blocks]
        biases = [torch.stack([block.bias1_O, block.bias2_O]) for block in weights.blocks]
        self.weight = torch.stack(convs).to(device, dtype).contiguous()
        self.bias = torch.stack(biases).to(device, torch.float32).contiguous()
        self.enter_weight = pack_taps(weights.blocks[0].conv1_OI33).to(device, dtype).contiguous()
        self.hidden, self.router = self.bias, self.bias  # not read where nobody routes
        if weights.routed:
            hidden, router = _routers(weights, after, cut.group)
            self.hidden, self.router = hidden.to(device, torch.float32), router.to(device, torch.float32)


def _routers(weights: StageWeights, after: StageWeights | None, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Those that look at the stage's width, packed: its blocks' and that of the next stage's first block.

    In the place of a first block that strides, whose router the stage before has, there are zeros; and after the last,
    as many as a group may reach beyond it.
    """
    channels = weights.channels
    own = weights.blocks if weights.stride == 1 else weights.blocks[1:]
    asked = [block.router for block in (*own, *(after.blocks[:1] if after is not None else ()))]
    packed = [pack_router(router) for router in asked if router is not None]
    like = weights.blocks[0].bias1_O
    nothing = like.new_zeros(channels, channels), like.new_zeros(3 * channels + 4)
    padded = [nothing] * (weights.stride > 1) + packed + [nothing] * (group - 1)
    hidden, rest = zip(*padded, strict=True)
    return torch.stack(hidden), torch.stack(rest)


def _regular(block: BlockWeights, weights: StageWeights, cut: Cut) -> torch.Tensor:
    """Both convolutions packed; zeros for a first one that strides, which lies apart."""
    conv2 = pack_conv(block.conv2_OI33, cut.form)
    strides = block is weights.blocks[0] and weights.stride > 1
    return torch.stack([torch.zeros_like(conv2) if strides else pack_conv(block.conv1_OI33, cut.form), conv2])


def _constants(weights: StageWeights, cut: Cut, height_in: int, width_in: int) -> tuple[int, ...]:
    """One of the kernel's CUTS."""
    width = -(-width_in // weights.stride)
    across = -(-width // 2) if cut.form == "pairs" else width
    return (
        height_in,
        width_in,
        weights.channels_in,
        weights.channels,
        weights.stride,
        FORMS[cut.form],
        cut.pixels,
        cut.channels or weights.channels,
        min(triton.next_power_of_2(across), cut.pixels),
        cut.stages,
        cut.group if weights.routed else 1,
    )
