"""Build the ONNX graph of a network node by node from its folded weights.

Three kinds:
    routed   one `If` per block, so that a skipped block costs nothing; decisions are per graph, so the batch size is 1
    masked   every block is computed and decisions select; any batch size
    static   one fixed path without routers; any batch size

`torch.onnx.export` would trace `torch.cond` for each block, and what it emits for that changes between versions. This
graph contains only what is needed: folded BatchNorms, weights inside the branches where ONNX Runtime's fusions find
them, and pooled vectors carried past skipped blocks. Adopted networks are not supported.

Inputs: `images` (normalised) and, unless static, `threshold`, which has a default. Outputs: `logits` and, unless
static, `scores` (B×N×2) and `path` (B×N).
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from codinet.engines.folding import Conv, FoldedBasic, FoldedBlock, FoldedBottleneck, fold, fold_pair
from codinet.errors import UserError
from codinet.model import CoDiNet, RoutedNetwork
from codinet.routers import CNNRouter, FCRouter, RNNRouters, Routers, SeparateRouters, fc_routers

Kind = Literal["routed", "masked", "static"]
OPSET = 17
MIN_OPSET, MAX_OPSET = 13, 22  # the nodes used here mean the same in all of these


# Nodes


class Graph:
    """Nodes in order, and the constants they read. A nested graph can also read names of its outer graph."""

    def __init__(self, opset: int, prefix: str = "") -> None:
        self.opset, self.prefix, self.count = opset, prefix, 0
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def name(self, what: str) -> str:
        self.count += 1
        return f"{self.prefix}{what}_{self.count}"

    def constant(self, value: Tensor | np.ndarray) -> str:
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        name = self.name("constant")
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        return name

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def add(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> list[str]:
        """Add a node; returns the names of its outputs."""
        names = [self.name(kind.lower()) for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=names[0], **attributes))
        return names

    def one(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output; returns its name."""
        return self.add(kind, *inputs, **attributes)[0]

    def rename(self, inner: str, outer: str) -> None:
        """Give a value the name of a graph output."""
        self.nodes.append(helper.make_node("Identity", [inner], [outer], name=outer))

    def nested(self, outputs: Sequence[str]) -> onnx.GraphProto:
        """The graph as a branch of an `If`."""
        infos = [helper.make_empty_tensor_value_info(name) for name in outputs]
        return helper.make_graph(self.nodes, self.prefix or "graph", [], infos, self.constants)

    def main(
        self, inputs: dict[str, Sequence[int | str]], outputs: dict[str, Sequence[int | str]], title: str
    ) -> onnx.GraphProto:
        """The graph as the main graph of a model, with float inputs and outputs of these shapes."""
        both = [
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name, shape in side.items()]
            for side in (inputs, outputs)
        ]
        return helper.make_graph(self.nodes, title, both[0], both[1], self.constants)


# Routers


class RouterWriter:
    """Adds the routers of a network to a graph, in the order of the blocks, and collects their scores.

    Routers that pool a block's input get the pooled vector, because the graph keeps it between blocks.
    """

    pools = True  # whether routers read the pooled vector; otherwise they read the features

    def __init__(self) -> None:
        self.scores_so_far: list[str] = []  # names
        self.difference = ""

    def router(self, graph: Graph, k: int, x: str) -> str:
        """Add block k's router; returns the name of its scores (batch × 2)."""
        raise NotImplementedError

    def margin(self, graph: Graph, k: int, x: str) -> str:
        """Add block k's router; returns the name of U[run] − U[skip] (batch × 1)."""
        self.scores_so_far.append(self.router(graph, k, x))
        # A product is one node: −1·skip + 1·run rounds once, as the subtraction does.
        self.difference = self.difference or graph.constant(np.array([[-1], [1]], np.float32))
        return graph.one("MatMul", self.scores_so_far[-1], self.difference)

    def scores(self, graph: Graph) -> str:
        """The scores of all routers so far, batch × blocks × 2."""
        side_by_side = graph.one("Concat", *self.scores_so_far, axis=1)
        return graph.one("Reshape", side_by_side, graph.integers(-1, len(self.scores_so_far), 2))


def _linear(graph: Graph, layer: nn.Linear, x: str) -> str:
    return graph.one("Gemm", x, graph.constant(layer.weight), graph.constant(layer.bias), transB=1)


def _pool(graph: Graph, x: str) -> str:
    """Global average pooling, batch × channels."""
    return graph.one("Flatten", graph.one("GlobalAveragePool", x), axis=1)


def _pool_plain(graph: Graph, x: str) -> str:
    """The same in one node: faster for features in the plain layout, slower in the blocked one."""
    if graph.opset < 18:
        return graph.one("ReduceMean", x, axes=[2, 3], keepdims=0)
    return graph.one("ReduceMean", x, graph.integers(2, 3), keepdims=0)


class FCWriter(RouterWriter):
    def __init__(self, routers: Sequence[FCRouter]) -> None:
        super().__init__()
        self.routers = routers

    def router(self, graph: Graph, k: int, x: str) -> str:
        router = self.routers[k]
        return _linear(graph, router.out, graph.one("Relu", _linear(graph, router.hidden, x)))


class CNNWriter(RouterWriter):
    pools = False

    def __init__(self, routers: SeparateRouters) -> None:
        super().__init__()
        self.routers = routers

    def router(self, graph: Graph, k: int, x: str) -> str:
        router = self.routers.each[k]
        assert isinstance(router, CNNRouter)
        assert router.conv.bias is not None
        weights = graph.constant(router.conv.weight), graph.constant(router.conv.bias)
        features = graph.one("Conv", x, *weights, strides=[2, 2], pads=[1, 1, 1, 1], kernel_shape=[3, 3])
        return _linear(graph, router.out, _pool(graph, graph.one("Relu", features)))


class RNNWriter(RouterWriter):
    """The LSTM cell in elementary nodes, because its state goes from block to block and not along an axis."""

    def __init__(self, routers: RNNRouters) -> None:
        super().__init__()
        self.routers = routers
        self.state: tuple[str, str] | None = None  # hidden and cell state; None: zero

    def router(self, graph: Graph, k: int, x: str) -> str:
        embed, cell = self.routers.embed[str(self.routers.widths[k])], self.routers.lstm
        assert isinstance(embed, nn.Linear)
        embedded = graph.one("Relu", _linear(graph, embed, x))
        gates = graph.one(
            "Gemm", embedded, graph.constant(cell.weight_ih), graph.constant(cell.bias_ih + cell.bias_hh), transB=1
        )
        if self.state is not None:
            gates = graph.one("Gemm", self.state[0], graph.constant(cell.weight_hh), gates, transB=1)
        sizes = graph.integers(*[cell.hidden_size] * 4)
        input_gate, forget_gate, cell_gate, output_gate = graph.add("Split", gates, sizes, outputs=4, axis=1)
        memory = graph.one("Mul", graph.one("Sigmoid", input_gate), graph.one("Tanh", cell_gate))
        if self.state is not None:
            memory = graph.one("Add", memory, graph.one("Mul", graph.one("Sigmoid", forget_gate), self.state[1]))
        hidden = graph.one("Mul", graph.one("Sigmoid", output_gate), graph.one("Tanh", memory))
        self.state = hidden, memory
        return _linear(graph, self.routers.out, hidden)


def _router_writer(routers: Routers) -> RouterWriter:
    if isinstance(routers, RNNRouters):
        return RNNWriter(routers)
    each = fc_routers(routers)
    if each is not None:
        return FCWriter(each)
    if isinstance(routers, SeparateRouters) and all(type(router) is CNNRouter for router in routers.each):
        return CNNWriter(routers)
    raise UserError(f"Routers of type {type(routers).__name__} cannot be exported to ONNX.")


# Networks


def build(
    model: RoutedNetwork,
    image_shape: tuple[int, int, int],
    *,
    kind: Kind = "routed",
    path: Sequence[int] | None = None,
    threshold: float = 0.5,
    opset: int = OPSET,
) -> onnx.ModelProto:
    """Build a graph and run the ONNX checker on it.

    Args:
        model: A network from `create_model`.
        image_shape: Channels, height and width.
        kind: routed, masked or static; see above.
        path: The blocks that a static graph runs (0 or 1 for each). Default: all.
        threshold: The default of the `threshold` input.
        opset: The version of the ONNX operators.

    Returns:
        The ONNX model, without metadata.
    """
    if not isinstance(model, CoDiNet):
        raise UserError(f"Only networks from create_model can be exported to ONNX, got {type(model).__name__}.")
    if not MIN_OPSET <= opset <= MAX_OPSET:
        raise UserError(f"opset must be from {MIN_OPSET} to {MAX_OPSET}, got {opset}.")
    if kind != "static" and model.routers is None:
        raise UserError(f"A network without routers can only be exported with the kind static, got {kind}.")
    net, graph = fold(model), Graph(opset)
    classes, blocks = model.fc.out_features, len(net.blocks)
    batch: int | str = 1 if kind == "routed" else "batch"
    inputs: dict[str, Sequence[int | str]] = {"images": [batch, *image_shape]}
    outputs: dict[str, Sequence[int | str]] = {"logits": [batch, classes]}
    x = _stem(graph, model, "images")
    if kind == "static":
        for block, runs in zip(net.blocks, [1] * blocks if path is None else path, strict=True):
            shortcut = _skip(graph, block, x)
            x = _run(graph, block, x, shortcut) if runs else shortcut
        pooled = _pool(graph, x)
    else:
        assert net.routers is not None
        limit = _limit(graph, threshold)
        pooled = _routed(graph, net.blocks, _router_writer(net.routers), x, limit, branch=kind == "routed")
        inputs["threshold"] = []
        outputs |= {"scores": [batch, blocks, 2], "path": [batch, blocks]}
    graph.rename(_linear(graph, model.fc, pooled), "logits")
    proto_graph = graph.main(inputs, outputs, f"codinet_{model.config.arch}_{kind}")
    proto = helper.make_model(proto_graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(proto)
    return proto


def _stem(graph: Graph, model: CoDiNet, images: str) -> str:
    x = graph.one("Relu", _conv(graph, fold_pair(model.conv1, model.bn1), images))
    if isinstance(model.pool, nn.Identity):
        return x
    return graph.one("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])


def _conv(graph: Graph, conv: Conv, x: str) -> str:
    weights = graph.constant(conv.weight.contiguous()), graph.constant(conv.bias)
    pads = [*conv.padding, *conv.padding]
    shape = list(conv.weight.shape[2:])
    return graph.one("Conv", x, *weights, strides=list(conv.stride), pads=pads, kernel_shape=shape)


def _run(graph: Graph, block: FoldedBlock, x: str, shortcut: str) -> str:
    *first, last = block.convs
    for conv in first:
        x = graph.one("Relu", _conv(graph, conv, x))
    return graph.one("Relu", graph.one("Add", _conv(graph, last, x), shortcut))


def _skip(graph: Graph, block: FoldedBlock, x: str) -> str:
    """The name of the shortcut, which is x itself where the shape stays."""
    if isinstance(block, FoldedBottleneck):
        return x if block.project is None else _conv(graph, block.project, x)
    assert isinstance(block, FoldedBasic)
    if block.keeps:
        return x
    # A convolution with zeros and ones that subsamples and shifts channels exactly. It is cheaper than Slice and Pad,
    # after which ONNX Runtime would leave its blocked layout for the rest of the network.
    weight = np.zeros((block.in_channels + block.grown, block.in_channels, 1, 1), np.float32)
    weight[np.arange(block.in_channels) + block.before, np.arange(block.in_channels)] = 1
    return graph.one("Conv", x, graph.constant(weight), strides=[block.stride] * 2, kernel_shape=[1, 1])


def _limit(graph: Graph, threshold: float) -> str:
    """The smallest margin that runs a block, computed from the `threshold` input."""
    default = onnx.numpy_helper.from_array(np.array(threshold, np.float32), "threshold")
    graph.constants.append(default)
    low, high = graph.constant(np.array(0, np.float32)), graph.constant(np.array(1, np.float32))
    probability = graph.one("Clip", "threshold", low, high)
    return graph.one("Log", graph.one("Div", probability, graph.one("Sub", high, probability)))


def _routed(
    graph: Graph, blocks: Sequence[FoldedBlock], writer: RouterWriter, x: str, limit: str, *, branch: bool
) -> str:
    """All blocks with their routers; returns the pooled features that the classifier reads."""
    runs = []
    pooled = _pool(graph, x) if writer.pools else ""
    step = _branch if branch else _mask
    for k, block in enumerate(blocks):
        margin = writer.margin(graph, k, pooled if writer.pools else x)
        runs.append(graph.one("GreaterOrEqual", margin, limit))
        x, pooled = step(graph, k, block, runs[-1], x, pooled)
    graph.rename(writer.scores(graph), "scores")
    graph.rename(graph.one("Cast", graph.one("Concat", *runs, axis=1), to=onnx.TensorProto.FLOAT), "path")
    return pooled if writer.pools else _pool(graph, x)


def _branch(graph: Graph, k: int, block: FoldedBlock, runs: str, x: str, pooled: str) -> tuple[str, str]:
    """An `If` that returns the next features and, where routers pool, the pooled vector, which a skip keeps."""
    then, other = Graph(graph.opset, f"run{k}_"), Graph(graph.opset, f"skip{k}_")
    # A 1×1 maximum changes no value, but its result is in ONNX Runtime's blocked layout, where the sum and the
    # activation fuse with the convolution. x itself comes from the outer graph in the plain layout.
    inner = then.one("MaxPool", x, kernel_shape=[1, 1])
    after = [_run(then, block, inner, _skip(then, block, inner))]
    shortcut = _skip(other, block, x)
    skipped = [other.one("Identity", shortcut) if shortcut == x else shortcut]
    if pooled:
        after.append(_pool_plain(then, after[0]))
        skipped.append(other.one("Identity", pooled) if shortcut == x else _pool(other, shortcut))
    names = graph.add("If", runs, outputs=len(after), then_branch=then.nested(after), else_branch=other.nested(skipped))
    return names[0], names[1] if pooled else ""


def _mask(graph: Graph, k: int, block: FoldedBlock, runs: str, x: str, pooled: str) -> tuple[str, str]:
    """Compute both, select one per image."""
    shortcut = _skip(graph, block, x)
    mask = graph.one("Unsqueeze", runs, graph.integers(2, 3))
    x = graph.one("Where", mask, _run(graph, block, x, shortcut), shortcut)
    return x, _pool(graph, x) if pooled else ""
