"""Build the ONNX graph of a network.

Three kinds:
    routed   one `If` per block, so that a skipped block costs nothing; decisions are per graph, so the batch size is 1
    masked   every block is computed and decisions select; any batch size
    static   one fixed path without routers; any batch size

`torch.onnx.export` would trace `torch.cond` for each block, and what it emits for that changes between versions. The
graphs of codinet's own networks are written here node by node from folded weights. They contain only what is needed:
folded BatchNorms, weights inside the branches where ONNX Runtime's fusions find them, and pooled vectors carried past
skipped blocks. For other networks see `adopted_graph`.

Inputs: `images` (normalised) and, unless static, `threshold`, which has a default. Outputs: `logits` and, unless
static, `scores` (B×N×2) and `path` (B×N).
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import onnx
from torch import nn

from codinet.engines.folded_network import fold
from codinet.engines.folding import Conv, FoldedBasic, FoldedBlock, FoldedBottleneck, fold_pair
from codinet.engines.onnx.adopted_graph import ADOPTED_OPSETS, adopted_network
from codinet.engines.onnx.graph_nodes import Graph, linear, mean, pool
from codinet.engines.onnx.network_graph import NetworkWriter, Usual, network_graph
from codinet.engines.onnx.routing_nodes import BlockWriter, Features
from codinet.errors import UserError
from codinet.model import CoDiNet, RoutedNetwork

Kind = Literal["routed", "masked", "static"]
OPSETS = range(13, 23)  # the nodes used here mean the same in all of these
OPSET = 17


def build(
    model: RoutedNetwork,
    image_shape: tuple[int, int, int],
    *,
    kind: Kind = "routed",
    path: Sequence[int] | None = None,
    threshold: float = 0.5,
    opset: int | None = None,
    usual: Usual | None = None,
    thorough: bool = True,
) -> onnx.ModelProto:
    """Build a graph and run the ONNX checker on it.

    Args:
        model: The network.
        image_shape: Channels, height and width.
        kind: routed, masked or static; see above.
        path: The blocks that a static graph runs (0 or 1 for each). Default: all.
        threshold: The default of the `threshold` input.
        opset: The version of the ONNX operators. Default: 17, or 18 for an adopted network.
        usual: The usual decisions, for a routed graph that is faster for images which decide so; see `network_graph`.
        thorough: Whether to try torch's newer exporter, which takes seconds, for each part of an adopted network that
            the older one does not support.

    Returns:
        The ONNX model, without metadata. `UserError` for a network or an opset that cannot be exported.
    """
    own = isinstance(model, CoDiNet)
    allowed = OPSETS if own else ADOPTED_OPSETS
    opset = (OPSET if own else ADOPTED_OPSETS[0]) if opset is None else opset
    if opset not in allowed:
        what = "" if own else " for an adopted network"
        raise UserError(f"opset must be from {allowed[0]} to {allowed[-1]}{what}, got {opset}.")
    if kind != "static" and model.routers is None:
        raise UserError(f"A network without routers can only be exported with the kind static, got {kind}.")
    if usual is not None and kind != "routed":
        raise UserError(f"Usual decisions are for the kind routed, got the kind {kind}.")
    if path is None:
        path = [1] * len(model.blocks)
    fixed_path = path if kind == "static" else None
    network: NetworkWriter
    if isinstance(model, CoDiNet):
        network, title = _OwnNetwork(model, image_shape), f"codinet_{model.config.arch}_{kind}"
    else:
        any_batch, title = kind != "routed", f"codinet_{kind}"
        network = adopted_network(model, image_shape, fixed_path, opset, any_batch=any_batch, thorough=thorough)
    return network_graph(
        network,
        image_shape,
        title,
        opset=opset,
        fixed_path=fixed_path,
        threshold=threshold,
        branches=kind == "routed",
        usual=usual,
    )


class _OwnNetwork(NetworkWriter):
    """A folded network."""

    head_pools = True

    def __init__(self, model: CoDiNet, image_shape: tuple[int, int, int]) -> None:
        net = fold(model)
        self.model, self.routers, self.classes = model, net.routers, model.fc.out_features
        self.blocks = _block_writers(net.blocks, _after_stem(model, image_shape))

    def stem(self, graph: Graph, images: str) -> str:
        x = graph.one("Relu", _conv(graph, fold_pair(self.model.conv1, self.model.bn1), images))
        if isinstance(self.model.pool, nn.Identity):
            return x
        return graph.one("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])

    def pool(self, graph: Graph, x: str) -> str:
        return pool(graph, x)

    def head(self, graph: Graph, last: Features) -> str:
        return linear(graph, self.model.fc, last.read or pool(graph, last.x))


def _after_stem(model: CoDiNet, image_shape: tuple[int, int, int]) -> tuple[int, int]:
    """The height and width of the features before the first block."""
    _, *sides = image_shape
    for layer in (model.conv1, model.pool):
        if not isinstance(layer, nn.Identity):
            size, stride, padding = (_one(getattr(layer, name)) for name in ("kernel_size", "stride", "padding"))
            sides = [(side + 2 * padding - size) // stride + 1 for side in sides]
    return sides[0], sides[1]


def _one(value: int | tuple[int, ...]) -> int:
    return value if isinstance(value, int) else value[0]


def _conv(graph: Graph, conv: Conv, x: str) -> str:
    weights = graph.constant(conv.weight.contiguous()), graph.constant(conv.bias)
    pads = [*conv.padding, *conv.padding]
    shape = list(conv.weight.shape[2:])
    return graph.one("Conv", x, *weights, strides=list(conv.stride), pads=pads, kernel_shape=shape)


class _OwnBlock(BlockWriter):
    """A folded block."""

    def __init__(self, block: FoldedBlock, sides: tuple[int, int]) -> None:
        self.block, self.channels = block, block.convs[-1].weight.shape[0]
        self.shape = self.channels, *sides

    def run(self, graph: Graph, x: str) -> str:
        shortcut = self.skip(graph, x)
        *first, last = self.block.convs
        for conv in first:
            x = graph.one("Relu", _conv(graph, conv, x))
        return graph.one("Relu", graph.one("Add", _conv(graph, last, x), shortcut))

    def skip(self, graph: Graph, x: str) -> str:
        block = self.block
        if isinstance(block, FoldedBottleneck):
            return x if block.project is None else _conv(graph, block.project, x)
        assert isinstance(block, FoldedBasic)
        if block.keeps:
            return x
        # A convolution with zeros and ones that subsamples and shifts channels exactly. It is cheaper than Slice and
        # Pad, after which ONNX Runtime would leave its blocked layout for the rest of the network.
        weight = np.zeros((block.in_channels + block.grown, block.in_channels, 1, 1), np.float32)
        weight[np.arange(block.in_channels) + block.before, np.arange(block.in_channels)] = 1
        return graph.one("Conv", x, graph.constant(weight), strides=[block.stride] * 2, kernel_shape=[1, 1])

    def enter(self, graph: Graph, x: str) -> str:
        # A 1×1 maximum changes no value, but its result is in ONNX Runtime's blocked layout, where the sum and the
        # activation fuse with the convolution. x itself is in the plain layout. The features of bottlenecks are so
        # large that the copy costs more than it saves.
        return graph.one("MaxPool", x, kernel_shape=[1, 1]) if isinstance(self.block, FoldedBasic) else x

    def pool(self, graph: Graph, x: str, *, in_branch: bool = False) -> str:
        return mean(graph, x, 2, 3) if in_branch else pool(graph, x)


def _block_writers(blocks: Sequence[FoldedBlock], sides: tuple[int, int]) -> list[_OwnBlock]:
    writers = []
    for block in blocks:
        stride = max(conv.stride[0] for conv in block.convs)  # the other convolutions have a stride of 1
        sides = -(-sides[0] // stride), -(-sides[1] // stride)
        writers.append(_OwnBlock(block, sides))
    return writers
