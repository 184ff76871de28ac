"""ONNX nodes in order, and the constants that they read: what a graph is built from."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor, nn


class Part(NamedTuple):
    """A function of one tensor as nodes. The names are its own; `Graph.insert` replaces them."""

    nodes: Sequence[NodeProto]
    constants: Sequence[TensorProto]
    input: str
    output: str


class Graph:
    """Nodes in order, and the constants they read. A nested graph can also read names of its outer graph."""

    def __init__(self, opset: int, prefix: str = "") -> None:
        self.opset, self.prefix, self.count = opset, prefix, 0
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []

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

    def insert(self, part: Part, x: str) -> str:
        """Add the nodes of a part that reads x; returns the name of its output, which is x if the part does nothing."""
        names = {part.input: x}
        for constant in part.constants:
            names[constant.name] = self._copy_constant(constant)
        for node in part.nodes:
            value = next((one.t for one in node.attribute if one.name == "value"), None)
            if node.op_type == "Identity":
                names[node.output[0]] = names[node.input[0]]
            elif node.op_type == "Constant" and value is not None:
                names[node.output[0]] = self._copy_constant(value)
            else:
                names |= {output: self.name(node.op_type.lower()) for output in node.output if output}
                self.nodes.append(_renamed(node, names))
        return names[part.output]

    def _copy_constant(self, constant: TensorProto) -> str:
        copied = TensorProto()
        copied.CopyFrom(constant)
        copied.name = self.name("constant")
        copied.ClearField("doc_string")
        self.constants.append(copied)
        return copied.name

    def nested(self, outputs: Mapping[str, Sequence[int]]) -> GraphProto:
        """The graph as a branch of an `If`, with float outputs of these shapes. Some runtimes cannot infer them."""
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()]
        return helper.make_graph(self.nodes, self.prefix or "graph", [], infos, self.constants)

    def main(
        self, inputs: dict[str, Sequence[int | str]], outputs: dict[str, Sequence[int | str]], title: str
    ) -> GraphProto:
        """The graph as the main graph of a model, with float inputs and outputs of these shapes."""
        both = [
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name, shape in side.items()]
            for side in (inputs, outputs)
        ]
        return helper.make_graph(self.nodes, title, both[0], both[1], self.constants)


def _renamed(node: NodeProto, names: Mapping[str, str]) -> NodeProto:
    """A copy of a node with other names for what it reads and writes, and without notes of the exporter."""
    copied = NodeProto()
    copied.CopyFrom(node)
    for values in (copied.input, copied.output):
        for index, name in enumerate(values):
            values[index] = names[name] if name else ""
    copied.name = copied.output[0]
    copied.ClearField("doc_string")
    copied.ClearField("metadata_props")
    for attribute in copied.attribute:
        if attribute.type == AttributeProto.GRAPH:
            _rename_inside(attribute.g, names, f"{copied.name}_{attribute.name}_")
    return copied


def _rename_inside(graph: GraphProto, names: Mapping[str, str], prefix: str) -> None:
    """Prefix what a nested graph defines; what it reads of its outer graph gets the names there."""
    own = [one.name for one in (*graph.input, *graph.initializer)]
    own += [name for node in graph.node for name in node.output]
    inside = {**names, **{name: prefix + name for name in own}}
    nodes = [_renamed(node, inside) for node in graph.node]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    for named in (*graph.input, *graph.initializer, *graph.output):
        named.name = inside[named.name]


def linear(graph: Graph, layer: nn.Linear, x: str) -> str:
    """A fully connected layer, batch × features."""
    return graph.one("Gemm", x, graph.constant(layer.weight), graph.constant(layer.bias), transB=1)


def pool(graph: Graph, x: str) -> str:
    """Global average pooling of maps, batch × channels."""
    return graph.one("Flatten", graph.one("GlobalAveragePool", x), axis=1)


def mean(graph: Graph, x: str, *axes: int) -> str:
    """The mean over axes, in one node: faster for maps in the plain layout, slower in the blocked one."""
    if graph.opset < 18:
        return graph.one("ReduceMean", x, axes=list(axes), keepdims=0)
    return graph.one("ReduceMean", x, graph.integers(*axes), keepdims=0)


def finish(graph: GraphProto, opset: int) -> onnx.ModelProto:
    """The model of a main graph, after the ONNX checker has accepted it."""
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(proto)
    return proto
