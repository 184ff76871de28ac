"""A network as plain functions of tensors, faster than its modules. All engines but the masked one are built from it.

Blocks of codinet's own networks are folded (`folding`). Blocks of adopted networks keep their own forward, because
their contents are unknown; their layers are packed (`packed_layers`). Routers are passed on unchanged.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from codinet.adopt.chain import ChainBlock
from codinet.adopt.resnet import AdoptedBlock
from codinet.backbones import BasicBlock, Block, Bottleneck, ResNet
from codinet.engines.batch_slices import SLICE_BYTES, LargestFeatures
from codinet.engines.contract import require_finite
from codinet.engines.folding import Conv, FoldedBasic, FoldedBlock, FoldedBottleneck, FusedConv, fold_pair
from codinet.engines.packed_layers import pack
from codinet.model import RoutedNetwork
from codinet.routers import Routers


class UnfoldedBlock(FoldedBlock):
    """A block with its own forward."""

    writes_inplace = False

    def __init__(self, block: Block) -> None:
        self.in_channels, self.block = block.in_channels, block
        self.keeps = isinstance(block, AdoptedBlock | ChainBlock) and block.keeps
        self.projects_twice = isinstance(block, AdoptedBlock) and block.projects

    def skip(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return self.block.shortcut(x_BCHW)

    def run(self, x_BCHW: torch.Tensor, shortcut_BCHW: torch.Tensor) -> torch.Tensor:
        return self.block.run(x_BCHW, shortcut_BCHW)

    def whole(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return self.block(x_BCHW)

    def run_inplace(self, x_BCHW: torch.Tensor) -> None:
        x_BCHW.copy_(self.block.run(x_BCHW, x_BCHW))


@dataclass(frozen=True)
class FoldedNetwork:
    """The parts of a network, to be called in order."""

    stem: Callable[[torch.Tensor], torch.Tensor]
    blocks: Sequence[FoldedBlock]
    head: Callable[[torch.Tensor], torch.Tensor]
    routers: Routers | None
    first: tuple[Conv, nn.Module] | None = None  # the convolution and the pooling of a ResNet's stem
    last: nn.Linear | None = None  # the layer of a ResNet's head, which pools first
    known_sizes: dict[torch.Size, int] = field(default_factory=dict)  # of images → how many to compute at once

    def start(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """The input of the first block, in its own memory, because engines write into it."""
        x_BCHW = self.stem(images_BCHW.contiguous(memory_format=torch.channels_last))
        same = x_BCHW.untyped_storage().data_ptr() == images_BCHW.untyped_storage().data_ptr()
        return x_BCHW.clone() if same else x_BCHW

    def at_once(self, images_BCHW: torch.Tensor) -> int:
        """How many images of this size a CPU thread should compute at once (`batch_slices`)."""
        if images_BCHW.device.type != "cpu" or len(images_BCHW) == 1:
            return len(images_BCHW)
        size = images_BCHW.shape[1:]
        if size not in self.known_sizes:
            with torch.inference_mode(), LargestFeatures() as largest:
                x_1CHW = self.start(images_BCHW[:1])
                for block in self.blocks:
                    x_1CHW = block.whole(x_1CHW)
            self.known_sizes[size] = max(1, SLICE_BYTES // largest.bytes)
        return self.known_sizes[size]


def fold(model: RoutedNetwork) -> FoldedNetwork:
    """A folded copy of a network in evaluation mode; the network itself does not change."""
    require_finite(model)
    model = copy.deepcopy(model).eval()
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch has it, its stubs do not
    pack(model)
    blocks = fold_blocks(model)
    if not isinstance(model, ResNet):
        return FoldedNetwork(model.stem, blocks, model.head, model.routers)
    conv = fold_pair(model.conv1, model.bn1)
    return FoldedNetwork(_fold_stem(conv, model.pool), blocks, model.head, model.routers, (conv, model.pool), model.fc)


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
