"""Features of a routed graph, kept in ONNX Runtime's blocked layout from one `If` to the next.

ONNX Runtime convolves in a layout of its own: channels in blocks as wide as the machine's registers. Its optimizer
brings features into it and back within each graph by itself, and a branch of an `If` is such a graph; so every block
run pays for both ways. Here the graph is taken as that optimizer left it, with the runtime's own nodes and weights
already laid out, and the way back is moved from the end of the branches to behind the `If`, where it meets the next
way in: both go.

What comes out is for this machine and this version of ONNX Runtime only. Knows nothing of sessions, networks and
files, and nothing of the layout but which nodes enter and leave it. Features that the layout would fill up with empty
channels stay as they are.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, helper, numpy_helper

DOMAIN = "com.microsoft.nchwc"
PLACES = [2, 3]  # the axes of height and width


def keep_blocked(model: ModelProto) -> None:
    """Rewrite a model that ONNX Runtime has optimized and saved; one without its layout stays as it is."""
    # The optimizer uses the same names again in each branch, which it does not accept when it reads them.
    for node in model.graph.node:
        for k, branch in enumerate(_branches(node)):
            _prefix_names(branch, f"{node.name}_{k}_")
    _rewrite(model.graph, _Seen())
    _remove_unused(model.graph)


class _Seen:
    """What is known of the values that a node may read."""

    def __init__(self, outer: "_Seen | None" = None) -> None:
        self.blocked: dict[str, str] = dict(outer.blocked) if outer else {}  # plain features → the same, blocked
        self.channels: dict[str, int] = dict(outer.channels) if outer else {}  # of blocked features, empty ones too
        self.same: dict[str, str] = dict(outer.same) if outer else {}  # outputs of nodes that went → what they copied


def _rewrite(graph: GraphProto, seen: _Seen) -> None:
    constants = {constant.name: constant for constant in graph.initializer}
    nodes: list[NodeProto] = []
    for node in graph.node:
        for k, name in enumerate(node.input):
            node.input[k] = seen.same.get(name, name)
        nodes += _rewritten(node, seen, constants)
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)


def _rewritten(node: NodeProto, seen: _Seen, constants: dict[str, onnx.TensorProto]) -> Iterator[NodeProto]:
    """What stands for a node: itself, something better, or nothing. What may turn out unused is removed later."""
    kind = node.op_type, node.domain
    x = node.input[0] if node.input else ""
    if kind == ("If", ""):
        yield from _opened(node, seen)
    elif kind == ("ReorderInput", DOMAIN) and x in seen.blocked:
        seen.same[node.output[0]] = seen.blocked[x]
    elif kind == ("MaxPool", DOMAIN) and _over_one_place(node):
        seen.same[node.output[0]] = x  # was there to have the sum in the blocked layout, where it now is anyway
    elif kind == ("ReduceMean", "") and x in seen.blocked and _over_all_places(node, constants):
        # With one place a channel, blocked and plain are the same.
        pooled = f"{node.output[0]}_pooled"
        yield helper.make_node("GlobalAveragePool", [seen.blocked[x]], [pooled], domain=DOMAIN)
        yield helper.make_node("Flatten", [pooled], [node.output[0]], axis=1)
    else:
        yield node
        if kind == ("Identity", "") and x in seen.blocked:
            copied = f"{node.output[0]}_blocked"
            yield helper.make_node("Identity", [seen.blocked[x]], [copied])
            seen.blocked[node.output[0]], seen.channels[copied] = copied, seen.channels[seen.blocked[x]]
        elif kind == ("Conv", DOMAIN) and node.input[1] in constants:
            seen.channels[node.output[0]] = constants[node.input[1]].dims[0]
        elif kind == ("MaxPool", DOMAIN) and x in seen.channels:
            seen.channels[node.output[0]] = seen.channels[x]
        elif kind == ("ReorderOutput", DOMAIN) and seen.channels.get(x) == _attribute(node, "channels"):
            seen.blocked[node.output[0]] = x


def _opened(node: NodeProto, seen: _Seen) -> Iterator[NodeProto]:
    """An `If` that gives blocked features where all its branches can, and the way back for who wants them plain."""
    branches, inside = _branches(node), []
    for branch in branches:
        inside.append(_Seen(seen))
        _rewrite(branch, inside[-1])
    after = []
    for k, plain in enumerate(node.output):
        pairs = [(branch.output[k].name, known.blocked) for branch, known in zip(branches, inside, strict=True)]
        if not all(name in blocked for name, blocked in pairs):
            continue
        ends = [blocked[name] for name, blocked in pairs]
        for branch, end in zip(branches, ends, strict=True):
            branch.output[k].name = end
        node.output[k] = seen.blocked[plain] = f"{plain}_blocked"
        channels = seen.channels[node.output[k]] = inside[0].channels[ends[0]]
        after.append(helper.make_node("ReorderOutput", [node.output[k]], [plain], domain=DOMAIN, channels=channels))
    yield node
    yield from after


def _branches(node: NodeProto) -> list[GraphProto]:
    return [attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH]


def _attribute(node: NodeProto, name: str) -> Any:
    return next((helper.get_attribute_value(one) for one in node.attribute if one.name == name), None)


def _over_one_place(node: NodeProto) -> bool:
    """Whether a pooling copies its input."""
    steps = {*(_attribute(node, "strides") or [1]), *(_attribute(node, "dilations") or [1])}
    return _attribute(node, "kernel_shape") == [1, 1] and steps == {1} and not any(_attribute(node, "pads") or [0])


def _over_all_places(node: NodeProto, constants: dict[str, onnx.TensorProto]) -> bool:
    """Whether a mean leaves batch × channels. Its axes are an attribute up to opset 17, an input after it."""
    axes = _attribute(node, "axes")
    if len(node.input) > 1 and node.input[1] in constants:
        axes = numpy_helper.to_array(constants[node.input[1]]).tolist()
    return axes == PLACES and _attribute(node, "keepdims") == 0


def _prefix_names(graph: GraphProto, prefix: str) -> None:
    """Rename what a graph holds; names of the graph around it stay."""
    own = {constant.name for constant in graph.initializer} | {name for node in graph.node for name in node.output}
    for node in graph.node:
        node.name = prefix + node.name
        for names in (node.input, node.output):
            for k, name in enumerate(names):
                names[k] = prefix + name if name and name in own else name
    for named in (*graph.initializer, *graph.output):
        named.name = prefix + named.name


def _remove_unused(graph: GraphProto) -> set[str]:
    """Drop nodes whose outputs nobody reads; the names that the rest reads."""
    used = {output.name for output in graph.output}
    kept = []
    for node in reversed(graph.node):
        if used.isdisjoint(node.output):
            continue
        kept.append(node)
        used.update(_read(node))
    del graph.node[:]
    graph.node.extend(reversed(kept))
    return used


def _read(node: NodeProto) -> Iterable[str]:
    yield from node.input
    for branch in _branches(node):
        yield from _remove_unused(branch)
