"""Writing down ONNX nodes: names, constants, nested graphs. Knows nothing of networks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor


class Graph:
    """Nodes in order, with the constants they read. A nested graph also sees the names of the one around it."""

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
        """A node; the names of its outputs."""
        names = [self.name(kind.lower()) for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=names[0], **attributes))
        return names

    def one(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output, by name."""
        return self.add(kind, *inputs, **attributes)[0]

    def rename(self, inner: str, outer: str) -> None:
        """Give a value the name it has outside."""
        self.nodes.append(helper.make_node("Identity", [inner], [outer], name=outer))

    def nested(self, outputs: Sequence[str]) -> onnx.GraphProto:
        """The graph as a branch of an `If`."""
        infos = [helper.make_empty_tensor_value_info(name) for name in outputs]
        return helper.make_graph(self.nodes, self.prefix or "graph", [], infos, self.constants)

    def whole(
        self, inputs: dict[str, Sequence[int | str]], outputs: dict[str, Sequence[int | str]], title: str
    ) -> onnx.GraphProto:
        """The graph as a model's: float inputs and outputs with their shapes."""
        both = [
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name, shape in side.items()]
            for side in (inputs, outputs)
        ]
        return helper.make_graph(self.nodes, title, both[0], both[1], self.constants)
