"""Features stay in the blocked layout across `If`s, and outputs do not change."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

import onnx
from onnx import helper

from codinet.engines.onnx.blocked_layout import DOMAIN, keep_blocked
from codinet.engines.onnx.build_graph import build
from codinet.engines.onnx.graph_nodes import Graph
from codinet.engines.onnx.runtime import open_session
from codinet.model import RoutedNetwork

Make = Callable[..., RoutedNetwork]


def _optimized(content: bytes, folder: Path) -> onnx.ModelProto:
    open_session(content, threads=1, save_optimized=folder / "optimized.onnx")
    return onnx.load(folder / "optimized.onnx")


def _kinds(graph: onnx.GraphProto, branch: str = "") -> Iterator[tuple[str, str]]:
    """Branch and operator of every node; operators of the blocked layout have a star."""
    for node in graph.node:
        yield branch, node.op_type + "*" * (node.domain == DOMAIN)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _kinds(attribute.g, attribute.name)


@pytest.mark.parametrize("opset", [17, 18])
def test_nothing_is_reordered_between_blocks(opset: int, network: Make, tmp_path: Path) -> None:
    model = _optimized(build(network(), (3, 32, 32), opset=opset).SerializeToString(), tmp_path)
    before = list(_kinds(model.graph))
    if ("then_branch", "ReorderInput*") not in before:
        pytest.skip("ONNX Runtime has no blocked layout on this machine")
    keep_blocked(model)
    after = list(_kinds(model.graph))
    assert {kind for branch, kind in after if branch == "then_branch"} == {"Conv*", "GlobalAveragePool*", "Flatten"}
    assert not any(kind == "ReorderInput*" for _, kind in after)
    # Three remain for pooled vectors: of the stem and of the two skipped blocks that change the shape.
    assert sum(kind == "ReorderOutput*" for _, kind in after) == 3
    assert sum(kind == "Conv*" for _, kind in after) == sum(kind == "Conv*" for _, kind in before)


def test_graph_outputs_are_in_the_plain_layout(tmp_path: Path) -> None:
    """32 channels fill the blocks of every machine; the output of the `If` is a graph output."""
    _compare(_conditional(channels=32), tmp_path)


def test_channels_that_would_be_padded(tmp_path: Path) -> None:
    _compare(_conditional(channels=20), tmp_path)


def test_a_graph_without_the_layout_does_not_change(tmp_path: Path) -> None:
    graph = Graph(17)
    graph.rename(graph.one("Relu", "images"), "logits")
    content = _model(graph, channels=3)
    model = _optimized(content, tmp_path)
    before = list(model.graph.node)
    keep_blocked(model)
    assert list(model.graph.node) == before


def _conditional(channels: int) -> bytes:
    """A convolution, one more if the mean is positive, and the features themselves as the output."""
    random = np.random.default_rng(0)
    graph, then, other = Graph(17), Graph(17, "then_"), Graph(17, "other_")

    def conv(into: Graph, x: str, inputs: int) -> str:
        weight = into.constant(random.standard_normal((channels, inputs, 3, 3)).astype(np.float32))
        return into.one("Relu", into.one("Conv", x, weight, pads=[1] * 4, kernel_shape=[3, 3]))

    x = conv(graph, "images", 3)
    zero = graph.constant(np.array(0, np.float32))
    runs = graph.one("Greater", graph.one("ReduceMean", "images", axes=[0, 1, 2, 3], keepdims=0), zero)
    run = conv(then, then.one("MaxPool", x, kernel_shape=[1, 1]), channels)
    skip = other.one("Identity", x)
    shape = [1, channels, 8, 8]
    branches = {"then_branch": then.nested({run: shape}), "else_branch": other.nested({skip: shape})}
    (features,) = graph.add("If", runs, **branches)
    graph.rename(features, "logits")
    return _model(graph, channels)


def _model(graph: Graph, channels: int) -> bytes:
    main = graph.main({"images": [1, 3, 8, 8]}, {"logits": [1, channels, 8, 8]}, "test")
    model = helper.make_model(main, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString()


def _compare(content: bytes, folder: Path) -> None:
    model = _optimized(content, folder)
    keep_blocked(model)
    rewritten, plain = open_session(model.SerializeToString(), threads=1), open_session(content, threads=1)
    images = np.random.default_rng(1).standard_normal((1, 3, 8, 8)).astype(np.float32)
    for shift in (-3, 3):
        feeds = {"images": images + np.float32(shift)}
        np.testing.assert_allclose(rewritten.run(None, feeds)[0], plain.run(None, feeds)[0], rtol=1e-5, atol=1e-4)
