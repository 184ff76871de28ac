"""A network as plain functions of tensors, faster than its modules. All engines but the masked one are built from it.

Blocks of codinet's own networks are folded (`folding`). Blocks of adopted networks keep their own forward, because
their contents are unknown; their layers are packed (`packed_layers`). Routers are passed on unchanged.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from codinet.adopt.resnet import AdoptedBlock
from codinet.backbones import BasicBlock, Block, Bottleneck, ResNet
from codinet.engines.contract import require_finite
from codinet.engines.folding import Conv, FoldedBasic, FoldedBlock, FoldedBottleneck, FusedConv, fold_pair
from codinet.engines.packed_layers import pack
from codinet.model import RoutedNetwork
from codinet.routers import Routers


class UnfoldedBlock(FoldedBlock):
    """A block with its own forward."""

    def __init__(self, block: Block) -> None:
        self.in_channels, self.block = block.in_channels, block
        self.projects_twice = isinstance(block, AdoptedBlock) and block.projects

    def skip(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return self.block.shortcut(x_BCHW)

    def run(self, x_BCHW: torch.Tensor, shortcut_BCHW: torch.Tensor) -> torch.Tensor:
        return self.block.run(x_BCHW, shortcut_BCHW)

    def whole(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return self.block(x_BCHW)


@dataclass(frozen=True)
class FoldedNetwork:
    """The parts of a network, to be called in order."""

    stem: Callable[[torch.Tensor], torch.Tensor]
    blocks: Sequence[FoldedBlock]
    head: Callable[[torch.Tensor], torch.Tensor]
    routers: Routers | None
    first: tuple[Conv, nn.Module] | None = None  # the convolution and the pooling of a ResNet's stem

    def start(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """The input of the first block, in its own memory, because engines write into it."""
        x_BCHW = self.stem(images_BCHW.contiguous(memory_format=torch.channels_last))
        same = x_BCHW.untyped_storage().data_ptr() == images_BCHW.untyped_storage().data_ptr()
        return x_BCHW.clone() if same else x_BCHW


def fold(model: RoutedNetwork) -> FoldedNetwork:
    """A folded copy of a network in evaluation mode; the network itself does not change."""
    require_finite(model)
    model = copy.deepcopy(model).eval()
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch has it, its stubs do not
    if not isinstance(model, ResNet):
        pack(model)
    blocks = fold_blocks(model)
    if not isinstance(model, ResNet):
        return FoldedNetwork(model.stem, blocks, model.head, model.routers)
    conv = fold_pair(model.conv1, model.bn1)
    return FoldedNetwork(_fold_stem(conv, model.pool), blocks, model.head, model.routers, (conv, model.pool))


def fold_blocks(model: RoutedNetwork) -> list[FoldedBlock]:
    """The folded blocks of a network in evaluation mode. Blocks that cannot be folded refer to the network's own."""
    return [_fold_block(block) for block in model.blocks]


def _fold_stem(conv: Conv, pool: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    fused = FusedConv(conv)
    if isinstance(pool, nn.Identity):
        return fused.relu
    return lambda images_BCHW: pool(fused.relu(images_BCHW))


def _fold_block(block: Block) -> FoldedBlock:
    # By exact type: a subclass may compute something else.
    if type(block) is BasicBlock:
        return FoldedBasic(block)
    if type(block) is Bottleneck:
        return FoldedBottleneck(block)
    return UnfoldedBlock(block)
