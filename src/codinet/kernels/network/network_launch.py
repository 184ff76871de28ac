"""Launches the network kernel: images in; logits, scores and paths out.

Imports Triton: call `kernels.available` first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton

from codinet.kernels.launching import launch, require_fit
from codinet.kernels.network import conv_forms
from codinet.kernels.network.network_kernel import network_kernel
from codinet.kernels.network.network_tuning import Cut, Tuning
from codinet.kernels.network.network_weights import GroupWeights, NetworkWeights, PackedGroup, pack_stem

_FORMS = {"taps": conv_forms.TAPS.value, "rows": conv_forms.ROWS.value, "pairs": conv_forms.PAIRS.value}


@dataclass(frozen=True)
class LaunchBuffers:
    """The inputs of a launch beside the images, and its outputs."""

    limit: torch.Tensor  # 1, float32: the smallest U[run] − U[skip] that runs a block
    force_BN: torch.Tensor  # int8: 0 skip, 1 run, 2 evaluate the router
    logits_BK: torch.Tensor  # float32, written
    scores_BN2: torch.Tensor  # float32, written
    path_BN: torch.Tensor  # float32, written
    counters_B2: torch.Tensor  # int32, zero before and after each launch


class Launcher:
    """A network packed for one tuning and dtype.

    Args:
        weights: The network. Its first group must have stride 1.
        tuning: How to run it, with one cut per group.
        dtype: The dtype of images, features and convolutions.
        device: Where to run it.
    """

    def __init__(self, weights: NetworkWeights, tuning: Tuning, dtype: torch.dtype, device: torch.device) -> None:
        assert len(tuning.cuts) == len(weights.groups)
        assert weights.groups[0].stride == 1  # otherwise the first router would not be evaluated
        self.weights, self.tuning, self.dtype, self.device = weights, tuning, dtype, device
        self.stem_weight = pack_stem(weights.stem_OI33).to(device, dtype)
        self.stem_bias = weights.stem_O.to(device, torch.float32).contiguous()
        self.head_weight = weights.head_KC.to(device, torch.float32).contiguous()
        self.head_bias = weights.head_K.to(device, torch.float32).contiguous()
        self.blocks = torch.tensor([len(group.blocks) for group in weights.groups], dtype=torch.int32, device=device)
        self.groups = [
            PackedGroup(group, following, cut, dtype, device)
            for group, following, cut in zip(weights.groups, [*weights.groups[1:], None], tuning.cuts, strict=True)
        ]

    def __call__(self, images_BCHW: torch.Tensor, buffers: LaunchBuffers) -> torch.Tensor:
        """Writes logits, scores and paths into `buffers`; returns the features of the last group, B×H×W×C."""
        return self._run(launch, images_BCHW, buffers)

    def require_fit(self, images_BCHW: torch.Tensor, buffers: LaunchBuffers) -> None:
        """Compiles the kernel for these images; raises `TooLargeError` if it needs too much shared memory."""
        self._run(require_fit, images_BCHW, buffers)

    def _run(self, run: Callable[..., None], images_BCHW: torch.Tensor, buffers: LaunchBuffers) -> Any:
        """Calls `launch` or `require_fit` with the arguments of the kernel."""
        assert images_BCHW.is_contiguous()
        assert images_BCHW.dtype == self.dtype
        batch, planes, height, width = images_BCHW.shape
        tuning, weights = self.tuning, self.weights
        features, cuts, size = [], [], (height, width)
        for group, cut in zip(weights.groups, tuning.cuts, strict=True):
            cuts.append(_constants(group, cut, *size))
            size = -(-size[0] // group.stride), -(-size[1] // group.stride)
            features.append(images_BCHW.new_empty(batch, *size, group.channels))
        # Each group has its own means: a slow thread may still read those of the group before.
        pooled = [torch.empty(batch, 2 * tuning.split, group.channels, device=self.device) for group in weights.groups]
        options = {} if tuning.registers is None else {"maxnreg": tuning.registers}
        run(
            network_kernel,
            (batch * tuning.split,),
            images_BCHW,
            self.stem_weight,
            self.stem_bias,
            tuple(features),
            tuple(torch.empty_like(x_BHWC) for x_BHWC in features),
            tuple(group.enter_weight for group in self.groups),
            tuple(group.weight for group in self.groups),
            tuple(group.bias for group in self.groups),
            tuple(group.hidden for group in self.groups),
            tuple(group.router for group in self.groups),
            tuple(pooled),
            self.blocks,
            self.head_weight,
            self.head_bias,
            buffers.logits_BK,
            buffers.limit,
            buffers.force_BN,
            buffers.scores_BN2,
            buffers.path_BN,
            buffers.counters_B2,
            buffers.path_BN.shape[1],
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


def _constants(group: GroupWeights, cut: Cut, height_in: int, width_in: int) -> tuple[int, ...]:
    """Returns one entry of the kernel's CUTS."""
    width = -(-width_in // group.stride)
    across = -(-width // 2) if cut.form == "pairs" else width
    return (
        height_in,
        width_in,
        group.channels_in,
        group.channels,
        group.stride,
        _FORMS[cut.form],
        cut.pixels,
        cut.channels or group.channels,
        min(triton.next_power_of_2(across), cut.pixels),
        cut.pipeline_depth,
        cut.lookahead if group.routed else 1,
    )
