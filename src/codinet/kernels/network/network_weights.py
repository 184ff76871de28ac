"""The weights of a network, and how they are packed for the network kernel.

Weights are given as convolutions with biases (BatchNorm folded in) and routers of two linear layers. This module
imports neither Triton nor models.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from codinet.kernels.network.network_tuning import Cut, Form


@dataclass(frozen=True)
class RouterWeights:
    """Linear(C, C), ReLU, Linear(C, 2). The two outputs are skip and run."""

    hidden_CC: torch.Tensor
    hidden_C: torch.Tensor
    out_2C: torch.Tensor
    out_2: torch.Tensor


@dataclass(frozen=True)
class BlockWeights:
    """Two 3×3 convolutions with biases, and the router. A block without a router always runs."""

    conv1_OI33: torch.Tensor
    bias1_O: torch.Tensor
    conv2_OI33: torch.Tensor
    bias2_O: torch.Tensor
    router: RouterWeights | None


@dataclass(frozen=True)
class GroupWeights:
    """Blocks of one width. Only the first block has the stride; it may also add channels."""

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
    """A 3×3 convolution of the images, ReLU, groups of blocks, the mean over pixels, a linear head."""

    stem_OI33: torch.Tensor
    stem_O: torch.Tensor
    groups: Sequence[GroupWeights]
    head_KC: torch.Tensor
    head_K: torch.Tensor

    @property
    def routed(self) -> bool:
        return self.groups[0].routed


def pack_stem(weight_OI33: torch.Tensor) -> torch.Tensor:
    """Returns all taps of all planes as 9·I rows × O, padded with zeros to a power of two of at least 16 rows."""
    rows = pack_taps(weight_OI33).flatten(0, 1)
    packed = rows.new_zeros(max(16, 1 << (len(rows) - 1).bit_length()), rows.shape[1])
    packed[: len(rows)] = rows
    return packed


def pack_taps(weight_OI33: torch.Tensor) -> torch.Tensor:
    """Returns 9×I×O, with the taps row by row."""
    return weight_OI33.permute(2, 3, 1, 0).flatten(0, 1).contiguous()


def pack_pairs(weight_OI33: torch.Tensor) -> torch.Tensor:
    """Returns 3×4I×2O: for each row of taps, a banded matrix from four adjacent pixels to the two in the middle."""
    outs, ins = weight_OI33.shape[:2]
    packed = weight_OI33.new_zeros(3, 4, ins, 2, outs)
    for output in range(2):
        for tap in range(3):
            packed[:, output + tap, :, output] = weight_OI33[:, :, :, tap].permute(2, 1, 0)
    return packed.reshape(3, 4 * ins, 2 * outs)


class PackedGroup:
    """The weights of a group of blocks as the kernel reads them."""

    def __init__(
        self, group: GroupWeights, following: GroupWeights | None, cut: Cut, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Packs a group.

        Args:
            group: The group.
            following: The next group, whose first router reads features of this group; None for the last group.
            cut: How the kernel runs the group.
            dtype: The dtype of the convolutions. Biases and routers are float32.
            device: Where the packed weights are stored.
        """
        convs = [_pack_block(block, block is group.blocks[0] and group.stride > 1, cut.form) for block in group.blocks]
        biases = [torch.stack([block.bias1_O, block.bias2_O]) for block in group.blocks]
        self.weight = torch.stack(convs).to(device, dtype).contiguous()
        self.bias = torch.stack(biases).to(device, torch.float32).contiguous()
        self.enter_weight = pack_taps(group.blocks[0].conv1_OI33).to(device, dtype).contiguous()
        self.hidden, self.router = self.bias, self.bias  # placeholders, not read without routers
        if group.routed:
            hidden, router = _pack_routers(group, following, cut.lookahead)
            self.hidden, self.router = hidden.to(device, torch.float32), router.to(device, torch.float32)


def _pack_block(block: BlockWeights, strided: bool, form: Form) -> torch.Tensor:
    """Packs both convolutions. A strided first one is packed separately and replaced by zeros here."""
    pack = pack_pairs if form == "pairs" else pack_taps
    conv2 = pack(block.conv2_OI33)
    return torch.stack([torch.zeros_like(conv2) if strided else pack(block.conv1_OI33), conv2])


def _pack_routers(
    group: GroupWeights, following: GroupWeights | None, lookahead: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Packs the routers that read features of this group: hidden layers, and all other parameters.

    The router of a strided first block belongs to the previous group, and zeros take its place. Zeros also follow the
    last router, because the kernel evaluates `lookahead` routers at once.
    """
    channels = group.channels
    own = group.blocks if group.stride == 1 else group.blocks[1:]
    routers = [block.router for block in (*own, *(following.blocks[:1] if following is not None else ()))]
    packed = [_pack_router(router) for router in routers if router is not None]
    like = group.blocks[0].bias1_O
    zeros = like.new_zeros(channels, channels), like.new_zeros(3 * channels + 4)
    padded = [zeros] * (group.stride > 1) + packed + [zeros] * (lookahead - 1)
    hidden, rest = zip(*padded, strict=True)
    return torch.stack(hidden), torch.stack(rest)


def _pack_router(router: RouterWeights) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the transposed hidden weight, and a vector of 3·C + 4: hidden bias, output weights and biases, zeros."""
    parts = router.hidden_C, router.out_2C.reshape(-1), router.out_2, router.out_2.new_zeros(2)
    return router.hidden_CC.T.contiguous(), torch.cat(parts)
