"""A routed network over any module whose residual blocks run one after another: ConvNeXts, MobileNets, transformers, …

The module's forward is traced once and split at the blocks (`tracing`). Operations between two blocks belong to the
second one and always run. Routers get the features as maps, B×C×H×W, whatever the module's own layout.
"""

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Self

import torch
from torch import fx, nn

from codinet.adopt.families import fixed_size
from codinet.adopt.parts import count_groups, first_convolution, last_classifier, make_routers, require_same_logits
from codinet.adopt.tracing import (
    BlockCall,
    Blocks,
    Layout,
    find_skippable,
    select_blocks,
    split_graph,
    trace_forward,
)
from codinet.backbones import Block
from codinet.checks import require_image_shape
from codinet.errors import UserError
from codinet.model import RoutedNetwork


class Segment:
    """A part of a module's forward, from one tensor to another. Modules and parameters are looked up when it is called.

    The traced operations become a Python function, which `torch.compile` and exporters can follow.
    """

    def __init__(self, module: nn.Module, in_training: fx.Graph, in_evaluation: fx.Graph) -> None:
        self.module, self.graphs = module, (in_training, in_evaluation)
        self.in_training, self.in_evaluation = _function_of(in_training), _function_of(in_evaluation)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        function = self.in_training if self.module.training else self.in_evaluation
        return x if function is None else function(self.module, x)

    @property
    def is_empty(self) -> bool:
        """Whether there are no operations."""
        return self.in_training is None and self.in_evaluation is None

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy the module; the graphs and functions, which never change, are shared."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__, module=copy.deepcopy(self.module, memo))
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the graphs: a generated function has no name to find it by."""
        return type(self), (self.module, *self.graphs)


def _function_of(graph: fx.Graph) -> Callable[[nn.Module, torch.Tensor], torch.Tensor] | None:
    """The operations of a graph as a function of the module and a tensor; None if there are none."""
    if len(graph.nodes) == 2:  # input and output
        return None
    code = graph.python_code("self")
    namespace = dict(code.globals)
    exec(code.src, namespace)  # as `fx.GraphModule` does
    return namespace["forward"]


class ChainBlock(Block):
    """A block that keeps the shape, and the operations before it, which run even if the block is skipped.

    Args:
        name: The block's name in the module.
        before: The operations between the previous block and this one.
        block: The block.
        input_layout: The layout of the features before `before`; the block itself may use another.
        call: How the module calls the block.
    """

    def __init__(self, name: str, before: Segment, block: nn.Module, input_layout: Layout, call: BlockCall) -> None:
        super().__init__()
        self.name, self.before, self.block, self.input_layout, self.call = name, before, block, input_layout, call
        # Whether `before` changes its input in place. Routers and the shortcut need it unchanged.
        self.before_writes = False

    @property
    def keeps(self) -> bool:
        """Whether the shortcut is the input itself."""
        return self.before.is_empty and self.input_layout == self.call.layout

    def shortcut(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        x = self.input_layout.from_maps(x_BCHW.clone() if self.before_writes else x_BCHW)
        return self.call.layout.to_maps(self.before(x))

    def run(self, x_BCHW: torch.Tensor, shortcut_BCHW: torch.Tensor) -> torch.Tensor:
        layout, args, kwargs = self.call[:3]
        x = layout.from_maps(shortcut_BCHW.clone() if self.call.writes else shortcut_BCHW)
        return layout.to_maps(self.block(x, *args, **kwargs))


class AdoptedChain(RoutedNetwork):
    """The original network as `module`, and routers.

    Args:
        module: The network.
        blocks: Its residual blocks: their class, or names with wildcards.
        router: The kind of router; None adds no routers.
        image_shape: Channels, height and width of the images; by default the only size that it accepts, or 224×224.
        check: Whether to compare its logits with those of the module.
    """

    paper_unit = 1

    def __init__(
        self,
        module: nn.Module,
        blocks: Blocks,
        router: str | None,
        image_shape: tuple[int, int, int] | None,
        *,
        check: bool = True,
    ) -> None:
        super().__init__()
        if image_shape is not None:
            image_shape = require_image_shape(image_shape)
        self.module, first = module, first_convolution(module)
        if image_shape is None and (size := fixed_size(module)):
            image_shape = (first.in_channels, *size)
        shape = image_shape or (first.in_channels, 224, 224)
        images = torch.empty(2, *shape, dtype=first.weight.dtype, device="meta")
        names = select_blocks(module, blocks)
        in_training, in_evaluation = trace_forward(module, names)
        calls = find_skippable(module, in_evaluation, names, images)
        names, layouts = list(calls), [call.layout for call in calls.values()]
        _require_same_calls(module, in_training, in_evaluation, names)
        graphs = zip(split_graph(in_training, names), split_graph(in_evaluation, names), strict=True)
        self._stem, *befores, self._head = [Segment(module, *both) for both in graphs]
        self._first_layout, self._last_layout = layouts[0], layouts[-1]
        # Wrappers in a tuple are not submodules, so the blocks keep their names in the module.
        self._blocks = tuple(
            ChainBlock(name, before, module.get_submodule(name), input_layout, calls[name])
            for name, before, input_layout in zip(names, befores, [layouts[0], *layouts[:-1]], strict=True)
        )
        self._blocks[0].in_channels = self._blocks[0].call.channels
        for previous, block in pairwise(self._blocks):  # a router gets the output of the block before
            block.in_channels, block.before_writes = previous.call.channels, previous.name in block.call.changed
        self.routers = make_routers(router, self._blocks, self.groups, module)
        self.in_channels, self.image_shape = shape[0], image_shape
        self.training = module.training
        if check:
            require_same_logits(self, module, shape)

    def stem(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        return self._first_layout.to_maps(self._stem(images_BCHW))

    @property
    def blocks(self) -> Sequence[ChainBlock]:
        return self._blocks

    def head(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return self._head(self._last_layout.from_maps(x_BCHW))

    @property
    def ends(self) -> tuple[Segment, Segment]:
        """The operations before the first block and after the last one, in the module's own layout."""
        return self._stem, self._head

    @property
    def groups(self) -> tuple[int, ...]:
        return count_groups([block.name for block in self._blocks])

    @property
    def classifier(self) -> str:
        _, in_evaluation = self._head.graphs
        called = [str(node.target) for node in in_evaluation.nodes if node.op == "call_module"]
        return next(filter(None, (last_classifier(self, f"module.{name}") for name in reversed(called))), "")


def _require_same_calls(module: nn.Module, in_training: fx.Graph, in_evaluation: fx.Graph, names: list[str]) -> None:
    """Require that the forward calls the same blocks in training and in evaluation."""
    ours, others = (
        [str(node.target) for node in graph.nodes if node.op == "call_module" and node.target in names]
        for graph in (in_training, in_evaluation)
    )
    if ours != others:
        changed = next((name for name in names if ours.count(name) != others.count(name)), names[0])
        raise UserError(
            f"In training the forward of this {type(module).__name__} does not call its blocks as in evaluation "
            f"({changed}); let it call every block in both modes."
        )
