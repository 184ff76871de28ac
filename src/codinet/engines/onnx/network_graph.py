"""The graph of a network from the writers of its parts: with branches, with masks or with a fixed path.

Many trained networks decide some blocks alike for nearly all images. For these, an `If` costs time and saves none. With
`usual`, a routed graph has two parts. The first follows the usual decisions without an `If`, and evaluates the routers
of these blocks together. If all of them confirm, its output is the answer; otherwise the second part, with an `If` for
every block, computes it. So the output never depends on what is usual. The file has the weights twice, because ONNX
Runtime's fast layout requires them in the graph that reads them.
"""

from collections.abc import Sequence

import numpy as np
import onnx
import torch

from codinet.engines.onnx.graph_nodes import Graph, finish
from codinet.engines.onnx.routing_nodes import BlockWriter, Features, branch, limit_of, mask, router_writer, run_at
from codinet.routers import Routers

Usual = Sequence[int | None]
"""For each block 1 (nearly all images run it), 0 (nearly all skip it) or None."""

RARE = 0.002  # the largest fraction of images that decide a usual block otherwise
WORTHWHILE = 0.25  # the smallest fraction of usual blocks for which a graph gets a second part


class NetworkWriter:
    """Adds the parts of a network to a graph.

    Attributes:
        blocks: Writers of the blocks.
        routers: The routers; None for a static graph.
        classes: The number of classes.
        head_pools: Whether the head reads the pooled vector that routers read.
    """

    blocks: Sequence[BlockWriter]
    routers: Routers | None
    classes: int
    head_pools: bool

    def stem(self, graph: Graph, images: str) -> str:
        """The features before the first block."""
        raise NotImplementedError

    def pool(self, graph: Graph, x: str) -> str:
        """The pooled features before the first block."""
        raise NotImplementedError

    def maps(self, graph: Graph, x: str) -> str:
        """The features before the first block as maps."""
        return x

    def head(self, graph: Graph, last: Features) -> str:
        """The logits."""
        raise NotImplementedError


def network_graph(
    network: NetworkWriter,
    image_shape: tuple[int, int, int],
    title: str,
    *,
    opset: int,
    fixed_path: Sequence[int] | None,
    threshold: float,
    branches: bool,
    usual: Usual | None = None,
) -> onnx.ModelProto:
    """Build the graph of a network.

    Args:
        network: The network.
        image_shape: Channels, height and width.
        title: The name of the graph.
        opset: The version of the ONNX operators.
        fixed_path: The blocks that a static graph runs; None for a graph with routers.
        threshold: The default of the `threshold` input.
        branches: Whether blocks are branches, for one image; otherwise for any batch.
        usual: The usual decisions, for a graph with branches.

    Returns:
        The model, accepted by the ONNX checker.
    """
    graph, number = Graph(opset), len(network.blocks)
    batch: int | str = 1 if branches else "batch"
    inputs: dict[str, Sequence[int | str]] = {"images": [batch, *image_shape]}
    outputs: dict[str, Sequence[int | str]] = {"logits": [batch, network.classes]}
    if fixed_path is not None:
        answers = [_static(graph, network, fixed_path)]
    else:
        inputs["threshold"] = []
        outputs |= {"scores": [batch, number, 2], "path": [batch, number]}
        limit = limit_of(graph, threshold)
        nothing: Usual = [None] * number
        if usual is None:
            answers, _ = _routed(graph, network, image_shape, limit, nothing, branches=branches)
        else:
            quick, confirmed = _routed(graph, network, image_shape, limit, usual, branches=True)
            same, whole = Graph(opset, "usual_"), Graph(opset, "whole_")
            again, _ = _routed(whole, network, image_shape, limit, nothing, branches=True)
            shapes: list[Sequence[int]] = [[1, network.classes], [1, number, 2], [1, number]]
            kept = [same.one("Identity", name) for name in quick]
            then_branch = same.nested(dict(zip(kept, shapes, strict=True)))
            else_branch = whole.nested(dict(zip(again, shapes, strict=True)))
            answers = graph.add("If", confirmed, outputs=3, then_branch=then_branch, else_branch=else_branch)
    for name, answer in zip(outputs, answers, strict=True):
        graph.rename(answer, name)
    return finish(graph.main(inputs, outputs, title), opset)


def _static(graph: Graph, network: NetworkWriter, path: Sequence[int]) -> str:
    x = network.stem(graph, "images")
    for block, runs in zip(network.blocks, path, strict=True):
        x = block.before(graph, x)
        x = block.run(graph, x) if runs else block.skip(graph, x)
    return network.head(graph, Features(x, ""))


def _routed(
    graph: Graph,
    network: NetworkWriter,
    image_shape: tuple[int, int, int],
    limit: str,
    usual: Usual,
    *,
    branches: bool,
) -> tuple[list[str], str]:
    """Add a network with routers.

    Args:
        graph: The graph to add it to.
        network: The network.
        image_shape: Channels, height and width of the input `images`.
        limit: The name of the smallest margin that runs a block.
        usual: The decisions that are followed before they are known.
        branches: Whether the other blocks are branches; otherwise they are computed and masked.

    Returns:
        The names of logits, scores and path, and of the condition that the routers confirm the decisions.
    """
    assert network.routers is not None
    writer, blocks = router_writer(network.routers), network.blocks
    writer.start(graph, "images", image_shape)
    x = network.stem(graph, "images")
    now = Features(x, network.pool(graph, x) if writer.pools else network.maps(graph, x))
    after_if = False
    for k, (block, decision) in enumerate(zip(blocks, usual, strict=True)):
        is_last = k + 1 == len(blocks)
        pools = writer.pools and (not is_last or network.head_pools)
        if decision is None:
            runs = graph.one("GreaterOrEqual", writer.margin(graph, k, now.read, scalar=branches), limit)
            active = writer.active(graph, limit)
            now = (branch if branches else mask)(graph, k, block, runs, active, now, pools)
            after_if = branches
        else:
            writer.ask_later(graph, k, now.read)
            x = block.before(graph, now.x)
            if decision:
                x = run_at(graph, block, x, writer.active(graph, limit), enter=after_if)
                after_if = False
            else:
                x = block.skip(graph, x)
            if x != now.x:
                now = Features(x, block.pool(graph, x) if pools else "")
        if not writer.pools:
            now = Features(now.x, "" if is_last else block.maps(graph, now.x))
    scores, path = writer.outputs(graph, limit)
    return [network.head(graph, now), scores, path], _confirmed(graph, path, usual)


def _confirmed(graph: Graph, path: str, usual: Usual) -> str:
    """A scalar: whether the path (1 × blocks) has the usual decisions; "" if there are none."""
    if all(decision is None for decision in usual):
        return ""
    weights = [0 if decision is None else 2 * decision - 1 for decision in usual]  # the sum is largest if all agree
    weighted = graph.one("Mul", path, graph.constant(np.array([weights], np.float32)))
    found = graph.one("ReduceSum", weighted, graph.integers(0, 1), keepdims=0)
    return graph.one("GreaterOrEqual", found, graph.constant(np.array(weights.count(1) - 0.5, np.float32)))


def usual_decisions(run_probability_TN: torch.Tensor, threshold: float = 0.5) -> Usual | None:
    """The decisions that nearly all images share.

    Args:
        run_probability_TN: The run probabilities of images, as in `PathTable`.
        threshold: The run probability from which a block runs.

    Returns:
        The usual decisions; None if there are too few to be worth a second part of the graph.
    """
    rates = (run_probability_TN >= threshold).double().mean(dim=0).tolist()
    usual = [1 if rate >= 1 - RARE else 0 if rate <= RARE else None for rate in rates]
    return usual if len(usual) - usual.count(None) >= WORTHWHILE * len(usual) else None
