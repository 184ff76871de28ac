"""Keep the features of a routed graph in ONNX Runtime's blocked layout from one `If` to the next.

ONNX Runtime convolves in a layout of its own, with channels in blocks as wide as the machine's registers. Its optimizer
converts features to it and back within each graph, and a branch of an `If` is a graph, so every block that runs pays
for both conversions. This module rewrites the optimized graph: it moves the conversion back from the end of the
branches to behind the `If`, where it meets the next conversion to the layout, and both are removed.

The result is valid for this machine and this version of ONNX Runtime only. Features that the layout would pad with
empty channels are left alone.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, helper, numpy_helper

DOMAIN = "com.microsoft.nchwc"
SPATIAL_AXES = [2, 3]


def keep_blocked(model: ModelProto) -> None:
    """Rewrite, in place, a model that ONNX Runtime has optimized and saved. Without the layout nothing changes."""
    # The optimizer reuses names in each branch, which ONNX Runtime rejects when it loads them.
    for node in model.graph.node:
        for k, branch in enumerate(_branches(node)):
            _prefix_names(branch, f"{node.name}_{k}_")
    _rewrite(model.graph, _Seen())
    _remove_unused(model.graph)


class _Seen:
    """What is known about the values that a node may read."""

    def __init__(self, outer: "_Seen | None" = None) -> None:
        self.blocked: dict[str, str] = dict(outer.blocked) if outer else {}  # plain features → their blocked form
        self.channels: dict[str, int] = dict(outer.channels) if outer else {}  # of blocked features, padding included
        self.same: dict[str, str] = dict(outer.same) if outer else {}  # outputs of removed nodes → what they copied


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
    """The nodes that replace a node: itself, others or none. Nodes that become unused are removed later."""
    kind = node.op_type, node.domain
    x = node.input[0] if node.input else ""
    if kind == ("If", ""):
        yield from _opened(node, seen)
    elif kind == ("ReorderInput", DOMAIN) and x in seen.blocked:
        seen.same[node.output[0]] = seen.blocked[x]
    elif kind == ("MaxPool", DOMAIN) and _is_identity_pool(node):
        seen.same[node.output[0]] = x  # its purpose was to enter the blocked layout
    elif kind == ("ReduceMean", "") and x in seen.blocked and _is_global_mean(node, constants):
        # With one position per channel, both layouts are the same.
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
    """An `If` that returns blocked features where all branches can, and a conversion for readers of plain ones."""
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


def _is_identity_pool(node: NodeProto) -> bool:
    """Whether a pooling node copies its input."""
    steps = {*(_attribute(node, "strides") or [1]), *(_attribute(node, "dilations") or [1])}
    return _attribute(node, "kernel_shape") == [1, 1] and steps == {1} and not any(_attribute(node, "pads") or [0])


def _is_global_mean(node: NodeProto, constants: dict[str, onnx.TensorProto]) -> bool:
    """Whether a mean returns batch × channels. Its axes are an attribute up to opset 17, then an input."""
    axes = _attribute(node, "axes")
    if len(node.input) > 1 and node.input[1] in constants:
        axes = numpy_helper.to_array(constants[node.input[1]]).tolist()
    return axes == SPATIAL_AXES and _attribute(node, "keepdims") == 0


def _prefix_names(graph: GraphProto, prefix: str) -> None:
    """Prefix the names that a graph defines; names of its outer graph stay."""
    own = {constant.name for constant in graph.initializer} | {name for node in graph.node for name in node.output}
    for node in graph.node:
        node.name = prefix + node.name
        for names in (node.input, node.output):
            for k, name in enumerate(names):
                names[k] = prefix + name if name and name in own else name
    for named in (*graph.initializer, *graph.output):
        named.name = prefix + named.name


def _remove_unused(graph: GraphProto) -> set[str]:
    """Remove nodes whose outputs are not read; returns the names that the rest reads."""
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
