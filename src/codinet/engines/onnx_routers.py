"""Routers as ONNX nodes, one writer per kind of router.

A writer is asked in the order of the blocks. Those that pool a block's input are handed the pooled vector,
because the graph keeps it between blocks; see `onnx_graph`. Knows nothing of blocks.
"""

from collections.abc import Sequence

import numpy as np
from torch import nn

from codinet.engines.onnx_nodes import Graph
from codinet.errors import UserError
from codinet.routers import CNNRouter, FCRouter, RNNRouters, Routers, SeparateRouters, fc_routers


class Writer:
    """Writes the routers of a network, and remembers their scores."""

    pools = True
    """Whether routers see the pooled vector; otherwise they see the features."""

    def __init__(self) -> None:
        self.written: list[str] = []  # names of the scores so far
        self.difference = ""

    def router(self, graph: Graph, k: int, x: str) -> str:
        """Write block k's router; the name of its scores (batch × 2)."""
        raise NotImplementedError

    def margin(self, graph: Graph, k: int, x: str) -> str:
        """Write block k's router; the name of U[run] − U[skip] (batch × 1)."""
        self.written.append(self.router(graph, k, x))
        # A product is one node: −1·skip + 1·run rounds once, as the subtraction does.
        self.difference = self.difference or graph.constant(np.array([[-1], [1]], np.float32))
        return graph.one("MatMul", self.written[-1], self.difference)

    def scores(self, graph: Graph) -> str:
        """batch × blocks × 2, of all routers that were written."""
        side_by_side = graph.one("Concat", *self.written, axis=1)
        return graph.one("Reshape", side_by_side, graph.integers(-1, len(self.written), 2))


def linear(graph: Graph, layer: nn.Linear, x: str) -> str:
    return graph.one("Gemm", x, graph.constant(layer.weight), graph.constant(layer.bias), transB=1)


def pool(graph: Graph, x: str) -> str:
    """Global average pooling, batch × channels."""
    return graph.one("Flatten", graph.one("GlobalAveragePool", x), axis=1)


def pool_plain(graph: Graph, x: str) -> str:
    """The same as one node, for features in the plain layout: faster there, slower in a blocked one."""
    if graph.opset < 18:
        return graph.one("ReduceMean", x, axes=[2, 3], keepdims=0)
    return graph.one("ReduceMean", x, graph.integers(2, 3), keepdims=0)


class FCWriter(Writer):
    def __init__(self, routers: Sequence[FCRouter]) -> None:
        super().__init__()
        self.routers = routers

    def router(self, graph: Graph, k: int, x: str) -> str:
        router = self.routers[k]
        return linear(graph, router.out, graph.one("Relu", linear(graph, router.hidden, x)))


class CNNWriter(Writer):
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
        return linear(graph, router.out, pool(graph, graph.one("Relu", features)))


class RNNWriter(Writer):
    """The LSTM cell is written out: its state goes from block to block, not along an axis."""

    def __init__(self, routers: RNNRouters) -> None:
        super().__init__()
        self.routers = routers
        self.state: tuple[str, str] | None = None  # None: zero

    def router(self, graph: Graph, k: int, x: str) -> str:
        embed, cell = self.routers.embed[str(self.routers.widths[k])], self.routers.lstm
        assert isinstance(embed, nn.Linear)
        embedded = graph.one("Relu", linear(graph, embed, x))
        gates = graph.one(
            "Gemm", embedded, graph.constant(cell.weight_ih), graph.constant(cell.bias_ih + cell.bias_hh), transB=1
        )
        if self.state is not None:
            gates = graph.one("Gemm", self.state[0], graph.constant(cell.weight_hh), gates, transB=1)
        sizes = graph.integers(*[cell.hidden_size] * 4)
        enter, keep, new, show = graph.add("Split", gates, sizes, outputs=4, axis=1)
        memory = graph.one("Mul", graph.one("Sigmoid", enter), graph.one("Tanh", new))
        if self.state is not None:
            memory = graph.one("Add", memory, graph.one("Mul", graph.one("Sigmoid", keep), self.state[1]))
        hidden = graph.one("Mul", graph.one("Sigmoid", show), graph.one("Tanh", memory))
        self.state = hidden, memory
        return linear(graph, self.routers.out, hidden)


def writer_of(routers: Routers) -> Writer:
    if isinstance(routers, RNNRouters):
        return RNNWriter(routers)
    each = fc_routers(routers)
    if each is not None:
        return FCWriter(each)
    if isinstance(routers, SeparateRouters) and all(type(router) is CNNRouter for router in routers.each):
        return CNNWriter(routers)
    raise UserError(f"Routers of the kind {type(routers).__name__} cannot be exported to ONNX.")
