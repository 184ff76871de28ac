"""A network's weights as `stage` reads them, from convolutions with biases and routers of two linear layers.

Knows nothing of Triton, nor of what network the weights are from.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from codinet.kernels.stage_tuning import Form


@dataclass(frozen=True)
class RouterWeights:
    """Linear(C, C), ReLU, Linear(C, 2): skip, then run."""

    hidden_CC: torch.Tensor
    hidden_C: torch.Tensor
    out_2C: torch.Tensor
    out_2: torch.Tensor


@dataclass(frozen=True)
class BlockWeights:
    """Two 3×3 convolutions with biases, and who decides whether they run (None: nobody, they do)."""

    conv1_OI33: torch.Tensor
    bias1_O: torch.Tensor
    conv2_OI33: torch.Tensor
    bias2_O: torch.Tensor
    router: RouterWeights | None


@dataclass(frozen=True)
class StageWeights:
    """Blocks of one width. Where the stride is not 1 the first of them strides, and may widen."""

    blocks: Sequence[BlockWeights]
    stride: int

    @property
    def channels(self) -> int:
        return len(self.blocks[0].bias1_O)

    @property
    def channels_in(self) -> int:
        return self.blocks[0].conv1_OI33.shape[1]

    @property
    def routed(self) -> bool:
        return self.blocks[0].router is not None


@dataclass(frozen=True)
class NetworkWeights:
    """A 3×3 convolution of the images, ReLU, stages, the mean over pixels, a linear head."""

    stem_OI33: torch.Tensor
    stem_O: torch.Tensor
    stages: Sequence[StageWeights]
    head_KC: torch.Tensor
    head_K: torch.Tensor

    @property
    def routed(self) -> bool:
        return self.stages[0].routed


def pack_stem(weight_OI33: torch.Tensor) -> torch.Tensor:
    """All taps of all planes one below the other, 9·I rows × O, then zeros up to a power of two."""
    rows = pack_taps(weight_OI33).flatten(0, 1)
    packed = rows.new_zeros(max(16, 1 << (len(rows) - 1).bit_length()), rows.shape[1])
    packed[: len(rows)] = rows
    return packed


def pack_taps(weight_OI33: torch.Tensor) -> torch.Tensor:
    """9×I×O, the taps row by row."""
    return weight_OI33.permute(2, 3, 1, 0).flatten(0, 1).contiguous()


def pack_pairs(weight_OI33: torch.Tensor) -> torch.Tensor:
    """3×4I×2O: from the four pixels around two neighbours to both, for each of the three rows; zero off the band."""
    outs, ins = weight_OI33.shape[:2]
    packed = weight_OI33.new_zeros(3, 4, ins, 2, outs)
    for output in range(2):
        for tap in range(3):
            packed[:, output + tap, :, output] = weight_OI33[:, :, :, tap].permute(2, 1, 0)
    return packed.reshape(3, 4 * ins, 2 * outs)


def pack_conv(weight_OI33: torch.Tensor, form: Form) -> torch.Tensor:
    return (pack_pairs if form == "pairs" else pack_taps)(weight_OI33)


def pack_router(router: RouterWeights) -> tuple[torch.Tensor, torch.Tensor]:
    """The hidden matrix input by input, and in one vector of 3·C + 4: its bias, both outputs, their biases, zeros."""
    parts = router.hidden_C, router.out_2C.reshape(-1), router.out_2, router.out_2.new_zeros(2)
    return router.hidden_CC.T.contiguous(), torch.cat(parts)
