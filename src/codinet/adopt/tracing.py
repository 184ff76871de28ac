"""A module's forward as a graph of calls, and that graph cut at residual blocks. Knows nothing of routing."""

import copy
import inspect
from collections import Counter
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from codinet.adopt.layout import Layout, layout_of
from codinet.errors import UserError
from codinet.model import in_evaluation

Blocks = str | Sequence[str] | type[nn.Module]
Shapes = dict[fx.Node, tuple[int, ...]]


class Kept(NamedTuple):
    """How a block that keeps the shape of its features is called."""

    layout: Layout  # of the features
    args: tuple[Any, ...]  # what else it is given, which is the same in every call
    kwargs: dict[str, Any]


def first_convolution(module: nn.Module) -> nn.Conv2d:
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            return part
    raise UserError(f"This {type(module).__name__} has no convolution to start with.")


def chosen(module: nn.Module, blocks: Blocks) -> list[str]:
    """The names of the modules that are meant; of those within one another the outermost."""
    parts = [(name, part) for name, part in module.named_modules() if name]
    if isinstance(blocks, type):
        found = [name for name, part in parts if isinstance(part, blocks)]
    else:
        patterns = [blocks] if isinstance(blocks, str) else blocks
        found = [name for name, _ in parts if any(fnmatchcase(name, pattern) for pattern in patterns)]
    outermost = [name for name in found if not any(name.startswith(f"{other}.") for other in found)]
    if not outermost:
        asked = blocks.__name__ if isinstance(blocks, type) else repr(blocks)
        raise UserError(f"This {type(module).__name__} has no module {asked}; {_offer(module)}.")
    return outermost


def _offer(module: nn.Module) -> str:
    """What may have been meant: classes of several layers, of which there are several in a row."""
    rows = [part for part in module.modules() if isinstance(part, nn.Sequential | nn.ModuleList)]
    counts = Counter(type(part).__name__ for row in rows for part in row if _layers([part]) > 1)
    several = [f"{name} ({count})" for name, count in counts.most_common(4) if count > 1]
    return f"it has {', '.join(several)}" if several else "nothing in it is repeated"


def _layers(modules: Iterable[nn.Module]) -> int:
    return sum(isinstance(part, nn.Conv2d | nn.Linear) for module in modules for part in module.modules())


class _Tracer(fx.Tracer):
    """Looks into what holds blocks, and takes everything else as it is."""

    def __init__(self, module: nn.Module, blocks: Iterable[str]) -> None:
        super().__init__()
        holders = {name[:place] for name in blocks for place, letter in enumerate(name) if letter == "."}
        self.holders = {module.get_submodule(holder) for holder in holders}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m not in self.holders


def traced(module: nn.Module, blocks: Sequence[str]) -> list[fx.Graph]:
    """The module's forward on images alone, with the blocks called as they are: in training, and in use."""
    takes = inspect.signature(module.forward).parameters.values()
    usual = {each.name: each.default for each in takes if each.default is not each.empty}
    try:
        with in_evaluation(module):  # which leaves every part in the mode it had
            return [_Tracer(module.train(training), blocks).trace(module, usual) for training in (True, False)]
    except Exception as error:  # whatever somebody's forward does to tensors that are none
        why = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"The forward of this {type(module).__name__} cannot be followed: {why}.") from error


def skippable(module: nn.Module, graph: fx.Graph, blocks: Sequence[str], images_BCHW: torch.Tensor) -> dict[str, Kept]:
    """The blocks that keep the shape of their features, in the order in which they run.

    A bare layer, which a name with a `*` may well mean too, is no block.
    """
    shapes = _shapes(module, graph, images_BCHW)
    whole = [name for name in blocks if _layers(module.get_submodule(name).children()) > 0]
    found: dict[str, Kept] = {}
    for node in graph.nodes:
        if node.op == "call_module" and node.target in whole and (kept := _kept(node, shapes)):
            if node.target in found:
                raise UserError(f"{node.target} is run more than once, so it cannot be skipped alone.")
            found[node.target] = kept
    if not found:
        raise UserError(
            f"None of the {len(blocks)} blocks chosen in this {type(module).__name__} is made of layers, takes one "
            "tensor of features and keeps its shape, so none can be skipped."
        )
    return found


@torch.no_grad()
def _shapes(module: nn.Module, graph: fx.Graph, images_BCHW: torch.Tensor) -> Shapes:
    """Of every tensor on the way, in a pass on shapes alone."""
    _ends(graph)  # before it is asked for more than images
    walk = _Walk(copy.deepcopy(module).to("meta").eval(), graph=graph)
    try:
        walk.run(images_BCHW)
    except Exception as error:  # as above
        size, why = "×".join(map(str, images_BCHW.shape[1:])), str(error).splitlines()[0].rstrip(".")
        raise UserError(
            f"This {type(module).__name__} fails on images of {size}: {why}; if it takes others, give image_shape."
        ) from error
    return walk.shapes


class _Walk(fx.Interpreter):
    """Runs a graph and keeps the shape of every tensor."""

    def __init__(self, module: nn.Module, *, graph: fx.Graph) -> None:
        super().__init__(module, graph=graph)
        self.shapes: Shapes = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, torch.Tensor):
            self.shapes[n] = tuple(result.shape)
        return result


def _kept(block: fx.Node, shapes: Shapes) -> Kept | None:
    if len(block.all_input_nodes) != 1 or not block.args or block.args[0] is not _given(block):
        return None
    features = shapes.get(_given(block), ())
    layout = layout_of(features) if shapes.get(block) == features else None
    return layout and Kept(layout, block.args[1:], dict(block.kwargs))


def _given(block: fx.Node) -> fx.Node:
    """The features; nothing else that a block is given was computed."""
    return block.all_input_nodes[0]


def cut(graph: fx.Graph, blocks: Sequence[str]) -> list[fx.Graph]:
    """What comes before the first block, what leads to each of them from the one before, and what comes after."""
    calls = [node for node in graph.nodes if node.op == "call_module" and node.target in blocks]
    images, logits = _ends(graph)
    first = _given(calls[0])
    starts, ends = (images, first, *calls), (first, *map(_given, calls), logits)
    return [_between(graph, start, end) for start, end in zip(starts, ends, strict=True)]


def _ends(graph: fx.Graph) -> tuple[fx.Node, fx.Node]:
    """Where images come in and logits go out."""
    given = [node for node in graph.nodes if node.op == "placeholder" and not node.args]  # the others have defaults
    ((result,),) = (node.args for node in graph.nodes if node.op == "output")
    if len(given) != 1 or not isinstance(result, fx.Node):
        raise UserError("Routing knows images in and logits out; this network takes or gives something else.")
    return given[0], result


def _between(graph: fx.Graph, start: fx.Node, end: fx.Node) -> fx.Graph:
    """What leads from one tensor to another; `UserError` where that takes more than the first."""
    needed: set[fx.Node] = set()
    open_ends = [end]
    while open_ends:
        node = open_ends.pop()
        if node is start or node in needed:
            continue
        if node.op == "placeholder":
            raise UserError(f"Something goes past {start.target} and is used after it, so it cannot be skipped alone.")
        needed.add(node)
        open_ends += node.all_input_nodes
    part = fx.Graph()
    made = {start: part.placeholder("x")}
    for node in graph.nodes:
        if node in needed:
            made[node] = part.node_copy(node, made.__getitem__)
    part.output(made[end])
    return part
