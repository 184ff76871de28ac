"""A network of the registry as an ONNX graph, written node by node from its folded weights.

Three kinds:
    routed   one `If` per block, so that a skipped block costs nothing; it decides per graph: batch 1
    masked   every block computed, decisions choose; any batch
    static   the blocks of one fixed path and no routers; any batch

Why not `torch.onnx.export`: it would trace `torch.cond` per block, and what it writes for that changes between
versions. Written by hand the graph holds what we mean and no more: BatchNorms folded, weights inside the
branches where ONNX Runtime's fusions find them, and pooled vectors carried past skipped blocks. The price is
that only networks known here can be written; adopted ones are refused.

Inputs: `images` (normalised), and unless static `threshold`, which has a default. Outputs: `logits`, and unless
static `scores` (B×N×2) and `path` (B×N).
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import onnx
from onnx import helper
from torch import nn

from codinet.engines.conv import Conv
from codinet.engines.folding import FoldedBasic, FoldedBlock, FoldedBottleneck, fold, fold_pair
from codinet.engines.onnx_nodes import Graph
from codinet.engines.onnx_routers import Writer, linear, pool, pool_plain, writer_of
from codinet.errors import UserError
from codinet.model import CoDiNet, RoutedNetwork

Kind = Literal["routed", "masked", "static"]
OPSET = 17
OLDEST, NEWEST = 13, 22  # between these, the nodes used here mean the same


def build(
    model: RoutedNetwork,
    image_shape: tuple[int, int, int],
    *,
    kind: Kind = "routed",
    path: Sequence[int] | None = None,
    threshold: float = 0.5,
    opset: int = OPSET,
) -> onnx.ModelProto:
    """The model, checked. `path` says which blocks a static graph runs: by default all."""
    if not isinstance(model, CoDiNet):
        raise UserError(f"Only networks of the registry can be exported to ONNX, not a {type(model).__name__}.")
    if not OLDEST <= opset <= NEWEST:
        raise UserError(f"Opset {opset} is not supported; choose one from {OLDEST} to {NEWEST}.")
    if kind != "static" and model.routers is None:
        raise UserError(f"A static network has nothing to route; export it with the kind static, not {kind}.")
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
        pooled = pool(graph, x)
    else:
        assert net.routers is not None
        limit = _limit(graph, threshold)
        pooled = _routed(graph, net.blocks, writer_of(net.routers), x, limit, branch=kind == "routed")
        inputs["threshold"] = []
        outputs |= {"scores": [batch, blocks, 2], "path": [batch, blocks]}
    graph.rename(linear(graph, model.fc, pooled), "logits")
    whole = graph.whole(inputs, outputs, f"codinet_{model.config.arch}_{kind}")
    proto = helper.make_model(whole, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
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
    """The shortcut's name, which is x itself where the shape stays."""
    if isinstance(block, FoldedBottleneck):
        return x if block.project is None else _conv(graph, block.project, x)
    assert isinstance(block, FoldedBasic)
    if block.keeps:
        return x
    # A convolution that picks every second place and shifts channels, exact with its zeros and ones: cheaper than
    # Slice and Pad, after which ONNX Runtime would leave its blocked layout for the rest of the network.
    weight = np.zeros((block.in_channels + block.grown, block.in_channels, 1, 1), np.float32)
    weight[np.arange(block.in_channels) + block.before, np.arange(block.in_channels)] = 1
    return graph.one("Conv", x, graph.constant(weight), strides=[block.stride] * 2, kernel_shape=[1, 1])


def _limit(graph: Graph, threshold: float) -> str:
    """The least margin that runs a block, from an input whose default is `threshold`."""
    default = onnx.numpy_helper.from_array(np.array(threshold, np.float32), "threshold")
    graph.constants.append(default)
    low, high = graph.constant(np.array(0, np.float32)), graph.constant(np.array(1, np.float32))
    share = graph.one("Clip", "threshold", low, high)
    return graph.one("Log", graph.one("Div", share, graph.one("Sub", high, share)))


def _routed(graph: Graph, blocks: Sequence[FoldedBlock], writer: Writer, x: str, limit: str, *, branch: bool) -> str:
    """Every block behind its router; the pooled features that the classifier reads."""
    runs = []
    pooled = pool(graph, x) if writer.pools else ""
    step = _branch if branch else _mask
    for k, block in enumerate(blocks):
        margin = writer.margin(graph, k, pooled if writer.pools else x)
        runs.append(graph.one("GreaterOrEqual", margin, limit))
        x, pooled = step(graph, k, block, runs[-1], x, pooled)
    graph.rename(writer.scores(graph), "scores")
    graph.rename(graph.one("Cast", graph.one("Concat", *runs, axis=1), to=onnx.TensorProto.FLOAT), "path")
    return pooled if writer.pools else pool(graph, x)


def _branch(graph: Graph, k: int, block: FoldedBlock, runs: str, x: str, pooled: str) -> tuple[str, str]:
    """An `If` gives the next features and, where routers pool, what they pool to: unchanged by a skip."""
    then, other = Graph(graph.opset, f"run{k}_"), Graph(graph.opset, f"skip{k}_")
    # A maximum over one place changes nothing, but its result is in ONNX Runtime's blocked layout, where the sum and
    # the activation fuse with the convolution; x itself comes from outside in the plain one.
    inner = then.one("MaxPool", x, kernel_shape=[1, 1])
    after = [_run(then, block, inner, _skip(then, block, inner))]
    shortcut = _skip(other, block, x)
    skipped = [other.one("Identity", shortcut) if shortcut == x else shortcut]
    if pooled:
        after.append(pool_plain(then, after[0]))
        skipped.append(other.one("Identity", pooled) if shortcut == x else pool(other, shortcut))
    names = graph.add("If", runs, outputs=len(after), then_branch=then.nested(after), else_branch=other.nested(skipped))
    return names[0], names[1] if pooled else ""


def _mask(graph: Graph, k: int, block: FoldedBlock, runs: str, x: str, pooled: str) -> tuple[str, str]:
    """Both, and one of them chosen per image."""
    shortcut = _skip(graph, block, x)
    mask = graph.one("Unsqueeze", runs, graph.integers(2, 3))
    x = graph.one("Where", mask, _run(graph, block, x, shortcut), shortcut)
    return x, pool(graph, x) if pooled else ""
