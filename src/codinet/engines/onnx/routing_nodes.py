"""Decisions in an ONNX graph: routers, and a branch or a mask for each block.

A block is given by its `BlockWriter`, so the graphs of all networks are routed alike. Where routers read pooled
vectors, these are kept between blocks, so that a skipped block costs nothing.
"""

import copy
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from onnx import TensorProto, numpy_helper
from torch import nn

from codinet.engines.onnx.graph_nodes import Graph, linear, pool
from codinet.engines.onnx.torch_parts import OPSETS, TorchPart, export_part
from codinet.errors import UserError
from codinet.routers import (
    BEND,
    EPSILON,
    GAIN,
    SCALE,
    CNNRouter,
    FCRouter,
    FirstRouter,
    HaltingRouter,
    HaltingRouters,
    OnceRouters,
    RNNRouters,
    Routers,
    SeparateRouters,
    fc_routers,
)

# Routers


class RouterWriter:
    """Adds the routers of a network to a graph, in the order of the blocks.

    Scores are kept with the skip score negated, so that a margin U[run] − U[skip] is a sum, which can be a scalar.
    """

    name: str  # as in `codinet.routers.ROUTERS`
    pools = True  # whether routers read the pooled vector; otherwise they read the maps

    def __init__(self) -> None:
        self.signed: list[tuple[list[int], str]] = []  # blocks, and the name of batch × 2 scores for each

    def start(self, graph: Graph, images: str, image_shape: Sequence[int]) -> None:
        """Add what routers compute once, before the first block, from the images."""

    def router(self, graph: Graph, k: int, x: str) -> str:
        """Add block k's router; returns the name of its signed scores (batch × 2)."""
        raise NotImplementedError

    def margin(self, graph: Graph, k: int, x: str, *, scalar: bool) -> str:
        """Add block k's router; returns the name of its margin: a scalar, or batch × 1."""
        signed = self.router(graph, k, x)
        self.signed.append(([k], signed))
        axes = (0, 1) if scalar else (1,)
        return graph.one("ReduceSum", signed, graph.integers(*axes), keepdims=int(not scalar))

    def ask_later(self, graph: Graph, k: int, x: str) -> None:
        """Add block k's router where no decision waits for it."""
        self.signed.append(([k], self.router(graph, k, x)))

    def active(self, graph: Graph, limit: str) -> str:
        """The positions (batch × 1 × height × width) at which the block of the last router runs; "" for all."""
        return ""

    def outputs(self, graph: Graph, limit: str) -> tuple[str, str]:
        """Add the scores (batch × blocks × 2) and the path (batch × blocks); returns their names."""
        side_by_side = graph.one("Concat", *[name for _, name in self.signed], axis=1)
        order = [k for blocks, _ in self.signed for k in blocks]
        signed = graph.one("Reshape", side_by_side, graph.integers(-1, len(order), 2))
        if order != sorted(order):
            signed = graph.one("Gather", signed, graph.integers(*np.argsort(order)), axis=1)
        scores = graph.one("Mul", signed, graph.constant(np.array([-1, 1], np.float32)))
        margins = graph.one("ReduceSum", signed, graph.integers(2), keepdims=0)
        path = graph.one("Cast", graph.one("GreaterOrEqual", margins, limit), to=TensorProto.FLOAT)
        return scores, path


def _signed(graph: Graph, layer: nn.Linear, x: str) -> str:
    """The layer that computes scores, with the skip score negated."""
    weight, bias = _with_sign(layer)
    return graph.one("Gemm", x, graph.constant(weight), graph.constant(bias), transB=1)


def _with_sign(layer: nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
    sign = layer.weight.new_tensor([-1, 1])
    return layer.weight * sign[:, None], layer.bias * sign


class FCWriter(RouterWriter):
    name = "fc"

    def __init__(self, routers: Sequence[FCRouter]) -> None:
        super().__init__()
        self.routers = routers
        self.waiting: dict[int, list[tuple[int, str]]] = {}  # width → blocks and the vectors that their routers read

    def router(self, graph: Graph, k: int, x: str) -> str:
        router = self.routers[k]
        return _signed(graph, router.out, graph.one("Relu", linear(graph, router.hidden, x)))

    def ask_later(self, graph: Graph, k: int, x: str) -> None:
        self.waiting.setdefault(self.routers[k].hidden.in_features, []).append((k, x))

    def outputs(self, graph: Graph, limit: str) -> tuple[str, str]:
        for width, asked in self.waiting.items():
            self.signed.append(([k for k, _ in asked], self._together(graph, width, asked)))
        return super().outputs(graph, limit)

    def _together(self, graph: Graph, width: int, asked: Sequence[tuple[int, str]]) -> str:
        """Add the routers of several blocks as one product per layer, for one image: 1 × 2 scores for each."""
        routers = [self.routers[k] for k, _ in asked]
        hidden = [(router.hidden.weight, router.hidden.bias) for router in routers]
        out = [_with_sign(router.out) for router in routers]
        side_by_side = graph.one("Concat", *[x for _, x in asked], axis=1)
        x = graph.one("Reshape", side_by_side, graph.integers(len(asked), 1, width))
        for layer in (hidden, out):
            weight = torch.stack([weight.T for weight, _ in layer])
            bias = torch.stack([bias[None] for _, bias in layer])
            x = graph.one("Add", graph.one("MatMul", x, graph.constant(weight)), graph.constant(bias))
            x = graph.one("Relu", x) if layer is hidden else x
        return graph.one("Reshape", x, graph.integers(1, -1))


class CNNWriter(RouterWriter):
    name = "cnn"
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
        return _signed(graph, router.out, pool(graph, graph.one("Relu", features)))


class RNNWriter(RouterWriter):
    """The LSTM cell in elementary nodes, because its state goes from block to block and not along an axis."""

    name = "rnn"

    def __init__(self, routers: RNNRouters) -> None:
        super().__init__()
        self.routers = routers
        self.state: tuple[str, str] | None = None  # hidden and cell state; None: zero

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
        input_gate, forget_gate, cell_gate, output_gate = graph.add("Split", gates, sizes, outputs=4, axis=1)
        memory = graph.one("Mul", graph.one("Sigmoid", input_gate), graph.one("Tanh", cell_gate))
        if self.state is not None:
            memory = graph.one("Add", memory, graph.one("Mul", graph.one("Sigmoid", forget_gate), self.state[1]))
        hidden = graph.one("Mul", graph.one("Sigmoid", output_gate), graph.one("Tanh", memory))
        self.state = hidden, memory
        return _signed(graph, self.routers.out, hidden)


class OnceWriter(RouterWriter):
    """Routers that score all blocks from the images, as torch exports them."""

    name = "once"
    pools = False

    def __init__(self, routers: OnceRouters) -> None:
        super().__init__()
        self.routers, self.all = routers, ""

    def start(self, graph: Graph, images: str, image_shape: Sequence[int]) -> None:
        example = torch.zeros(2, *image_shape)  # a length of 1 may be taken for a fixed one
        routers = copy.deepcopy(self.routers).to("cpu", torch.float32).eval()
        opset = min(graph.opset, OPSETS[-1])  # these nodes mean the same in later ones
        part = TorchPart(routers, routers.scores)
        exported = export_part("The routers", part, example, opset=opset, any_batch=True, thorough=False)
        sign = graph.constant(np.array([-1, 1], np.float32))
        self.all = graph.one("Mul", graph.insert(exported, images), sign)

    def router(self, graph: Graph, k: int, x: str) -> str:
        return graph.one("Gather", self.all, graph.constant(np.array(k, np.int64)), axis=1)


class HaltingWriter(RouterWriter):
    """Halting units, of images or of positions. The names of their sums go from block to block.

    A subclass of `HaltingRouter` needs a convolution `conv` to one channel, which is added for each position, and a
    buffer `gentle`, which says whether its logits are changed.
    """

    name = "halting"

    def __init__(self, routers: HaltingRouters) -> None:
        super().__init__()
        self.routers, self.spent, self.margins = routers, "", ""
        self.pools = not any(getattr(router, "per_position", False) for router in routers.each)

    def router(self, graph: Graph, k: int, x: str) -> str:
        router = self.routers.each[k]
        vector = x if self.pools else pool(graph, x)
        self.margins = ""
        if isinstance(router, FirstRouter):
            self.spent = ""
            held = router(torch.zeros(1), ())[0][0].cpu() * torch.tensor([-1.0, 1.0])
            zeros = torch.zeros(2, self._width(k))
            return graph.one("Gemm", vector, graph.constant(zeros), graph.constant(held), transB=1)
        assert isinstance(router, HaltingRouter)
        logits = linear(graph, router.halt, vector)
        if not self.pools:
            logits = graph.one(
                "Add", self._conv(graph, router, x), graph.one("Unsqueeze", logits, graph.integers(2, 3))
            )
            if router.get_buffer("gentle"):
                logits = self._bent(graph, logits)
        halting = graph.one("Sigmoid", logits)
        self.spent = graph.one("Add", self.spent, halting) if self.spent else halting
        scale, most = np.array(SCALE, np.float32), SCALE * (1 - EPSILON) + router.raised.float().cpu().numpy()
        spent = graph.one("Mul", self.spent, graph.constant(scale))
        margin = graph.one("Sub", graph.constant(np.array(most, np.float32)), spent)
        runs = graph.one("GreaterOrEqual", margin, graph.constant(np.array(0, np.float32)))
        rest = graph.one("Sub", graph.constant(np.array(1, np.float32)), halting)
        ponder = graph.one("Mul", rest, graph.one("Cast", runs, to=TensorProto.FLOAT))
        if not self.pools:
            self.margins = margin
            margin = graph.one("Flatten", graph.one("GlobalMaxPool", margin), axis=1)
            ponder = pool(graph, ponder)
        return graph.one("Concat", ponder, graph.one("Sub", margin, ponder), axis=1)

    def active(self, graph: Graph, limit: str) -> str:
        return graph.one("GreaterOrEqual", self.margins, limit) if self.margins else ""

    def _width(self, k: int) -> int:
        return self.routers.widths[k]

    @staticmethod
    def _bent(graph: Graph, logits: str) -> str:
        """Logits z of a gentle unit: beyond the bend, sign(z) (BEND + log(1 + |z| − BEND))."""
        bend, one = (graph.constant(np.array(value, np.float32)) for value in (BEND, 1))
        excess = graph.one("Relu", graph.one("Sub", graph.one("Abs", logits), bend))
        less = graph.one("Sub", graph.one("Log", graph.one("Add", excess, one)), excess)
        return graph.one("Add", logits, graph.one("Mul", graph.one("Sign", logits), less))

    @staticmethod
    def _conv(graph: Graph, router: HaltingRouter, x: str) -> str:
        weight = router.get_submodule("conv").get_parameter("weight") * (1 - router.get_buffer("gentle") * (1 - GAIN))
        return graph.one("Conv", x, graph.constant(weight.contiguous()), pads=[1, 1, 1, 1], kernel_shape=[3, 3])


def router_writer(routers: Routers) -> RouterWriter:
    """The writer for the routers of a network; `UserError` for routers that codinet does not know."""
    if isinstance(routers, HaltingRouters):
        return HaltingWriter(routers)
    if isinstance(routers, RNNRouters):
        return RNNWriter(routers)
    if isinstance(routers, OnceRouters):
        return OnceWriter(routers)
    each = fc_routers(routers)
    if each is not None:
        return FCWriter(each)
    if isinstance(routers, SeparateRouters) and all(type(router) is CNNRouter for router in routers.each):
        return CNNWriter(routers)
    raise UserError(f"Routers of type {type(routers).__name__} cannot be exported to ONNX.")


# Blocks


class BlockWriter:
    """Adds a block to a graph.

    Attributes:
        shape: The shape of its output, without the batch.
        channels: The channels of its output.
    """

    shape: Sequence[int]
    channels: int

    def before(self, graph: Graph, x: str) -> str:
        """What runs in any case, before `skip` and `run`; x itself if nothing does."""
        return x

    def skip(self, graph: Graph, x: str) -> str:
        """The output of the skipped block; x itself where nothing is computed."""
        raise NotImplementedError

    def run(self, graph: Graph, x: str) -> str:
        """The output of the block that runs."""
        raise NotImplementedError

    def enter(self, graph: Graph, x: str) -> str:
        """The input of `run` in a branch, from a value of the outer graph."""
        return x

    def pool(self, graph: Graph, x: str, *, in_branch: bool = False) -> str:
        """The pooled output (batch × channels), as routers read it. `in_branch`: of a block that just ran."""
        raise NotImplementedError

    def maps(self, graph: Graph, x: str) -> str:
        """The output as maps, as routers read it."""
        return x

    def positions(self, graph: Graph, active: str) -> str:
        """Positions of maps (batch × 1 × height × width) in the layout of the output."""
        return active


class Features(NamedTuple):
    """Features between two blocks, and what the next router reads: a pooled vector or maps; "" after the last block."""

    x: str
    read: str


def limit_of(graph: Graph, threshold: float) -> str:
    """The smallest margin that runs a block, computed from the `threshold` input, whose default is added too."""
    graph.constants.append(numpy_helper.from_array(np.array(threshold, np.float32), "threshold"))
    low, high = graph.constant(np.array(0, np.float32)), graph.constant(np.array(1, np.float32))
    probability = graph.one("Clip", "threshold", low, high)
    return graph.one("Log", graph.one("Div", probability, graph.one("Sub", high, probability)))


def run_at(graph: Graph, block: BlockWriter, x: str, active: str, *, enter: bool) -> str:
    """The output of a block that runs at some positions, or at all if `active` is ""."""
    y = block.run(graph, block.enter(graph, x) if enter else x)
    return graph.one("Where", block.positions(graph, active), y, block.skip(graph, x)) if active else y


def branch(graph: Graph, k: int, block: BlockWriter, runs: str, active: str, now: Features, pools: bool) -> Features:
    """An `If` that returns the next features and, where routers pool, the pooled vector, which a skip keeps."""
    then, other = (Graph(graph.opset, f"{graph.prefix}{what}{k}_") for what in ("run", "skip"))
    x = block.before(graph, now.x)
    ran = [run_at(then, block, x, active, enter=True)]
    shortcut = block.skip(other, x)
    skipped = [other.one("Identity", shortcut) if shortcut == x else shortcut]
    shapes = [[1, *block.shape]]
    if pools:
        ran.append(block.pool(then, ran[0], in_branch=True))
        skipped.append(other.one("Identity", now.read) if shortcut == now.x else block.pool(other, shortcut))
        shapes.append([1, block.channels])
    branches = (dict(zip(names, shapes, strict=True)) for names in (ran, skipped))
    then_branch, else_branch = (nested.nested(outputs) for nested, outputs in zip((then, other), branches, strict=True))
    names = graph.add("If", runs, outputs=len(ran), then_branch=then_branch, else_branch=else_branch)
    return Features(names[0], names[1] if pools else "")


def mask(graph: Graph, k: int, block: BlockWriter, runs: str, active: str, now: Features, pools: bool) -> Features:
    """Compute both, select one per image or position."""
    x = block.before(graph, now.x)
    if active:
        return Features(run_at(graph, block, x, active, enter=False), "")
    mask = graph.one("Unsqueeze", runs, graph.integers(*range(2, 1 + len(block.shape))))
    x = graph.one("Where", mask, block.run(graph, x), block.skip(graph, x))
    return Features(x, block.pool(graph, x) if pools else "")
