"""A routed network over any module whose residual blocks follow one another: ConvNeXts, MobileNets, transformers, …

The module's forward is traced once and cut at the blocks (`tracing`). Operations between two blocks belong to the
second, and run whether it is skipped or not. Routing gets the features as maps, whatever their axes (`layout`).
"""

import copy
from collections.abc import Sequence

import torch
from torch import fx, nn

from codinet.adopt.layout import Layout
from codinet.adopt.tracing import Blocks, Kept, chosen, cut, first_convolution, skippable, traced
from codinet.backbones import Block
from codinet.checks import require_image_shape, shown
from codinet.errors import UserError
from codinet.model import RoutedNetwork, in_evaluation
from codinet.routers import ROUTERS


class Segment:
    """A part of a module's forward, from one tensor to another. Submodules are looked up when it is called."""

    def __init__(self, module: nn.Module, in_training: fx.Graph, in_use: fx.Graph) -> None:
        self.module, self.in_training, self.in_use = module, in_training, in_use

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        graph = self.in_training if self.module.training else self.in_use
        return x if len(graph.nodes) == 2 else fx.Interpreter(self.module, graph=graph).run(x)  # 2: in and out


class ChainBlock(Block):
    """A block that keeps the shape, after the operations before it. Skipping it leaves these operations."""

    def __init__(self, name: str, before: Segment, block: nn.Module, given: Layout, kept: Kept) -> None:
        """`given` is the layout of the features that come in; the block may use another."""
        super().__init__()
        self.name, self.before, self.block, self.given, self.kept = name, before, block, given, kept
        # Whether either writes into its input, which routers and the shortcut need unchanged.
        self.before_writes = self.writes = False

    def shortcut(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        own = self.given.own(x_BCHW.clone() if self.before_writes else x_BCHW)
        return self.kept.layout.maps(self.before(own))

    def run(self, x_BCHW: torch.Tensor, shortcut_BCHW: torch.Tensor) -> torch.Tensor:
        layout, args, kwargs = self.kept
        own = layout.own(shortcut_BCHW.clone() if self.writes else shortcut_BCHW)
        return layout.maps(self.block(own, *args, **kwargs))


class AdoptedChain(RoutedNetwork):
    """The foreign network under the name `module`, and routers."""

    paper_unit = 1

    def __init__(
        self, module: nn.Module, blocks: Blocks, router: str, image_shape: tuple[int, int, int] | None
    ) -> None:
        super().__init__()
        if image_shape is not None:
            image_shape = require_image_shape(image_shape)
        self.module, first = module, first_convolution(module)
        shape = image_shape or (first.in_channels, 224, 224)
        images = torch.empty(2, *shape, dtype=first.weight.dtype, device="meta")
        names = chosen(module, blocks)
        in_training, in_use = traced(module, names)
        kept = skippable(module, in_use, names, images)
        names, layouts = list(kept), [block.layout for block in kept.values()]
        parts = [Segment(module, *both) for both in zip(cut(in_training, names), cut(in_use, names), strict=True)]
        self._stem, *befores, self._head = parts
        # Wrappers in a tuple are not submodules, so the blocks keep their names in the module.
        self._first, self._last = layouts[0], layouts[-1]
        self._blocks = tuple(
            ChainBlock(name, before, module.get_submodule(name), given, kept[name])
            for name, before, given in zip(names, befores, [self._first, *layouts[:-1]], strict=True)
        )
        _look(self, images)
        self.routers = ROUTERS[router]([block.in_channels for block in self._blocks])
        self.routers.to(first.weight.device, first.weight.dtype).train(module.training)
        self.in_channels, self.image_shape = shape[0], image_shape
        self.training = module.training
        _require_same(self, shape)

    def stem(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        return self._first.maps(self._stem(images_BCHW))

    @property
    def blocks(self) -> Sequence[ChainBlock]:
        return self._blocks

    def head(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return self._head(self._last.own(x_BCHW))


@torch.no_grad()
def _look(network: AdoptedChain, images_BCHW: torch.Tensor) -> None:
    """Note the channels of every block in a pass on shapes, and which of them write into their input.

    Writing into a tensor raises its version.
    """
    shapes = copy.deepcopy(network).to("meta").eval()
    x = shapes.stem(images_BCHW)
    for block, shape in zip(network.blocks, shapes.blocks, strict=True):
        block.in_channels, version = x.shape[1], x._version
        skipped = shape.shortcut(x)
        block.before_writes, version = x._version != version, skipped._version
        x = shape.run(x, skipped)
        block.writes = skipped._version != version


@torch.no_grad()
def _require_same(network: AdoptedChain, shape: tuple[int, int, int]) -> None:
    """With every block run the logits must be the module's. Tracing misses random numbers in a forward, for example."""
    weight = first_convolution(network).weight
    if weight.is_meta:
        return
    own = torch.Generator().manual_seed(0)  # leaves the global random state unchanged
    images_1CHW = torch.randn(1, *shape, generator=own).to(weight.device, weight.dtype)
    with in_evaluation(network):
        wished_1K = network.module(images_1CHW)
        if not isinstance(wished_1K, torch.Tensor):
            raise UserError(f"make_dynamic needs a network that returns logits as a tensor, got {shown(wished_1K)}.")
        wished_1K = wished_1K.float()
        got_1K = network(images_1CHW, force=torch.ones(len(network.blocks))).logits_BK
    if not torch.allclose(got_1K, wished_1K, rtol=0.01, atol=0.01 * wished_1K.abs().max().item(), equal_nan=True):
        raise UserError(
            f"This {type(network.module).__name__} gives other answers than its parts one after the other; "
            "move everything else that its forward does into modules."
        )
