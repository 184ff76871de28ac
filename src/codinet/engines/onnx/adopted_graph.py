"""The parts of an adopted network, exported by torch one by one, for an ONNX graph with our routing between them.

The weights of a block are inside its branch, where ONNX Runtime's optimizations find them. Features stay in the layout
of the network between blocks: tokens and channels-last features are not turned into maps and back.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from codinet.adopt.chain import AdoptedChain, ChainBlock
from codinet.adopt.tracing import CHANNELS_LAST, MAPS, TOKENS, Layout
from codinet.backbones import Block
from codinet.engines.onnx import torch_parts
from codinet.engines.onnx.graph_nodes import Graph, Part, mean, pool
from codinet.engines.onnx.network_graph import NetworkWriter
from codinet.engines.onnx.routing_nodes import BlockWriter, Features
from codinet.engines.onnx.torch_parts import TorchFunction, TorchPart, export_part
from codinet.errors import UserError, first_line
from codinet.model import RoutedNetwork, in_evaluation

ADOPTED_OPSETS = torch_parts.OPSETS


def adopted_network(
    model: RoutedNetwork,
    image_shape: tuple[int, int, int],
    fixed_path: Sequence[int] | None,
    opset: int,
    *,
    any_batch: bool,
    thorough: bool,
) -> "AdoptedNetwork":
    """Export the parts of any network that has a stem, blocks and a head.

    Args:
        model: The network; it does not change.
        image_shape: Channels, height and width.
        fixed_path: The blocks that a static graph runs; None for a graph with routers.
        opset: The version of the ONNX operators.
        any_batch: Whether batches may have any length; otherwise one image.
        thorough: Whether to try torch's newer exporter where the older one fails.

    Returns:
        The parts. `UserError` with its name if a part cannot be exported.
    """
    with _computing_in_float32(model) as network:
        export = partial(export_part, opset=opset, any_batch=any_batch, thorough=thorough)
        images_BCHW = torch.zeros(2 if any_batch else 1, *image_shape)  # a length of 1 may be taken for a fixed one
        return AdoptedNetwork(network, *_export_parts(network, images_BCHW, fixed_path, export))


@contextmanager
def _computing_in_float32(model: RoutedNetwork) -> Iterator[RoutedNetwork]:
    """The network on the CPU, in float32 and evaluation mode: itself if possible, otherwise a copy."""
    if any((each.is_floating_point() and each.dtype != torch.float32) or not each.is_cpu for each in _tensors(model)):
        model = copy.deepcopy(model).to("cpu", torch.float32)
    with in_evaluation(model):
        yield model


def _tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()


# Parts


class _Functions(NamedTuple):
    """The functions of a block, in the layout of the network."""

    before: TorchPart
    skip: TorchPart
    run: TorchPart
    layout: Layout  # of the output


def _functions(model: RoutedNetwork, block: Block) -> _Functions:
    if isinstance(model, AdoptedChain) and isinstance(block, ChainBlock):
        return _Functions(
            TorchPart(model.module, block.before),
            TorchPart(block.block, _same),
            TorchPart(block.block, _call(block)),
            block.call.layout,
        )
    both = TorchPart(model, lambda x: block.run(x, block.shortcut(x)))
    return _Functions(TorchPart(block, _same), TorchPart(model, block.shortcut), both, MAPS)


def _same(x: torch.Tensor) -> torch.Tensor:
    return x


def _call(block: ChainBlock) -> TorchFunction:
    """How the network calls a block. The block may write into its input, so it gets a copy; the graph needs none."""
    return lambda x: block.block(x.clone(), *block.call.args, **block.call.kwargs)


def _first_layout(model: RoutedNetwork) -> Layout:
    first = model.blocks[0]
    return first.input_layout if isinstance(first, ChainBlock) else MAPS


@torch.inference_mode(False)  # versions of tensors are needed
@torch.no_grad()
def _export_parts(
    model: RoutedNetwork,
    images_BCHW: torch.Tensor,
    fixed_path: Sequence[int] | None,
    export: Callable[[str, TorchPart, torch.Tensor], Part],
) -> "tuple[Part, list[AdoptedBlockWriter], Part, int]":
    """Stem, blocks, head and the number of classes. Of a static graph only what its path needs is exported."""

    def exported(what: str, part: TorchPart, x: torch.Tensor) -> tuple[Part, torch.Tensor]:
        try:
            y = part(x.clone())
        except Exception as error:  # any module may fail in any way
            size = "×".join(map(str, images_BCHW.shape[1:]))
            raise UserError(f"{what} fails on images of {size}: {first_line(error).rstrip('.')}.") from error
        return export(what, part, x), y

    first, last = _ends(model)
    stem, x = exported("The stem", first, images_BCHW)
    writers = []
    for k, block in enumerate(model.blocks):
        functions, name = _functions(model, block), getattr(block, "name", f"Block {k}")
        before, x = exported(name, functions.before, x)
        runs, skips = (fixed_path is None or fixed_path[k] == wanted for wanted in (1, 0))
        skip = exported(f"The shortcut of {name}", functions.skip, x)[0] if skips else None
        run, x = exported(name, functions.run, x) if runs else (None, functions.skip(x))
        writers.append(AdoptedBlockWriter(before, skip, run, x.shape[1:], functions.layout))
    head, logits_BK = exported("The head", last, x)
    return stem, writers, head, logits_BK.shape[1]


def _ends(model: RoutedNetwork) -> tuple[TorchPart, TorchPart]:
    if isinstance(model, AdoptedChain):
        first, last = model.ends
        return TorchPart(model.module, first), TorchPart(model.module, last)
    return TorchPart(model, model.stem), TorchPart(model, model.head)


# Nodes


class AdoptedLayout:
    """What routers read of features in a layout."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def pool(self, graph: Graph, x: str, *, in_branch: bool = False) -> str:
        """The pooled vector, batch × channels."""
        if self.layout == MAPS:
            return mean(graph, x, 2, 3) if in_branch else pool(graph, x)
        return mean(graph, x, 1) if self.layout == TOKENS else mean(graph, x, 1, 2)

    def maps(self, graph: Graph, x: str) -> str:
        """The features as maps."""
        if self.layout == TOKENS:
            return graph.one("Unsqueeze", graph.one("Transpose", x, perm=[0, 2, 1]), graph.integers(3))
        return graph.one("Transpose", x, perm=[0, 3, 1, 2]) if self.layout == CHANNELS_LAST else x

    def positions(self, graph: Graph, active: str) -> str:
        """The inverse of `maps` for a map of positions."""
        if self.layout == TOKENS:
            return graph.one("Transpose", graph.one("Squeeze", active, graph.integers(3)), perm=[0, 2, 1])
        return graph.one("Transpose", active, perm=[0, 2, 3, 1]) if self.layout == CHANNELS_LAST else active


class AdoptedBlockWriter(AdoptedLayout, BlockWriter):
    """An exported block."""

    def __init__(self, before: Part, skip: Part | None, run: Part | None, shape: Sequence[int], layout: Layout) -> None:
        super().__init__(layout)
        self.parts = before, skip, run
        self.shape, self.channels = list(shape), shape[0 if layout == MAPS else -1]

    def before(self, graph: Graph, x: str) -> str:
        return graph.insert(self.parts[0], x)

    def skip(self, graph: Graph, x: str) -> str:
        assert self.parts[1] is not None
        return graph.insert(self.parts[1], x)

    def run(self, graph: Graph, x: str) -> str:
        assert self.parts[2] is not None
        return graph.insert(self.parts[2], x)


class AdoptedNetwork(NetworkWriter):
    """Exported parts."""

    head_pools = False

    def __init__(
        self, model: RoutedNetwork, stem: Part, blocks: Sequence[AdoptedBlockWriter], head: Part, classes: int
    ) -> None:
        self.parts, self.blocks, self.classes, self.routers = (stem, head), blocks, classes, model.routers
        self.first = AdoptedLayout(_first_layout(model))

    def stem(self, graph: Graph, images: str) -> str:
        return graph.insert(self.parts[0], images)

    def pool(self, graph: Graph, x: str) -> str:
        return self.first.pool(graph, x)

    def maps(self, graph: Graph, x: str) -> str:
        return self.first.maps(graph, x)

    def head(self, graph: Graph, last: Features) -> str:
        return graph.insert(self.parts[1], last.x)
