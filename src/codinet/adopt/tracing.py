"""A module's forward as a graph of calls, and that graph cut at residual blocks. Knows nothing of routing."""

import copy
import inspect
from collections import Counter
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from codinet.adopt.layout import Layout, has_channels, layout_of
from codinet.checks import shown
from codinet.errors import UserError, first_line
from codinet.model import in_evaluation

Blocks = str | Sequence[str] | type[nn.Module]


class Kept(NamedTuple):
    """How a block that keeps the shape of its features is called."""

    layout: Layout  # of the features
    args: tuple[Any, ...]  # its other arguments, the same in every call
    kwargs: dict[str, Any]


class Seen(NamedTuple):
    """What a pass on shapes found."""

    shapes: dict[fx.Node, tuple[int, ...]]  # of every tensor
    layers: dict[str, nn.Module]  # by block, the first layer in it that was called and has channels
    square: bool  # whether the images were


def first_convolution(module: nn.Module) -> nn.Conv2d:
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            return part
    raise UserError(f"This {type(module).__name__} has no convolution to start with.")


def chosen(module: nn.Module, blocks: Blocks) -> list[str]:
    """The names of the chosen modules; of nested ones the outermost."""
    names = blocks if isinstance(blocks, list | tuple) else [blocks]
    if not names or not all(isinstance(name, str) or name is blocks for name in names):
        raise _no_blocks(blocks)
    if not isinstance(blocks, str | list | tuple) and not (isinstance(blocks, type) and issubclass(blocks, nn.Module)):
        raise _no_blocks(blocks)
    parts = [(name, part) for name, part in module.named_modules() if name]
    if isinstance(blocks, type):
        found = [name for name, part in parts if isinstance(part, blocks)]
    else:
        found = [name for name, _ in parts if any(fnmatchcase(name, str(pattern)) for pattern in names)]
    outermost = [name for name in found if not any(name.startswith(f"{other}.") for other in found)]
    if not outermost:
        asked = blocks.__name__ if isinstance(blocks, type) else repr(blocks)
        raise UserError(f"This {type(module).__name__} has no module {asked}; {_offer(module)}.")
    return outermost


def _no_blocks(blocks: object) -> UserError:
    return UserError(f"blocks must be a class of modules, a name or a list of names, got {shown(blocks)}.")


def _offer(module: nn.Module) -> str:
    """Classes that may have been meant: those of several layers that occur several times in a row."""
    rows = [part for part in module.modules() if isinstance(part, nn.Sequential | nn.ModuleList)]
    counts = Counter(type(part).__name__ for row in rows for part in row if _layers([part]) > 1)
    several = [f"{name} ({count})" for name, count in counts.most_common(4) if count > 1]
    return f"it has {', '.join(several)}" if several else "nothing in it is repeated"


def _layers(modules: Iterable[nn.Module]) -> int:
    return sum(isinstance(part, nn.Conv2d | nn.Linear) for module in modules for part in module.modules())


class _Tracer(fx.Tracer):
    """Traces into modules that contain blocks, and treats every other module as one call."""

    def __init__(self, module: nn.Module, blocks: Iterable[str]) -> None:
        super().__init__()
        holders = {name[:place] for name in blocks for place, letter in enumerate(name) if letter == "."}
        self.holders = {module.get_submodule(holder) for holder in holders}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m not in self.holders


def traced(module: nn.Module, blocks: Sequence[str]) -> list[fx.Graph]:
    """The module's forward with images as its only argument and blocks as calls: in training, and in evaluation."""
    takes = inspect.signature(module.forward).parameters.values()
    usual = {each.name: each.default for each in takes if each.default is not each.empty}
    try:
        with in_evaluation(module):  # restores the mode of every part
            return [_Tracer(module.train(training), blocks).trace(module, usual) for training in (True, False)]
    except Exception as error:  # a foreign forward may fail in any way on symbolic tensors
        why = first_line(error).rstrip(".")
        raise UserError(f"The forward of this {type(module).__name__} cannot be followed: {why}.") from error


def skippable(module: nn.Module, graph: fx.Graph, blocks: Sequence[str], images_BCHW: torch.Tensor) -> dict[str, Kept]:
    """The blocks that keep the shape of their features, in the order in which they run.

    A bare layer, which a name with a `*` may match too, is not a block.
    """
    whole = [name for name in blocks if _layers(module.get_submodule(name).children()) > 0]
    seen = _see(module, graph, whole, images_BCHW)
    found: dict[str, Kept] = {}
    for node in graph.nodes:
        if node.op == "call_module" and node.target in whole and (kept := _kept(node, seen)):
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
def _see(module: nn.Module, graph: fx.Graph, blocks: Sequence[str], images_BCHW: torch.Tensor) -> Seen:
    """A pass on the meta device, which computes shapes only."""
    _ends(graph)  # refuses a network that takes more than images
    shapes = copy.deepcopy(module).to("meta").eval()
    layers: dict[str, nn.Module] = {}
    for name in blocks:
        for part in filter(has_channels, shapes.get_submodule(name).modules()):
            part.register_forward_pre_hook(partial(_note, layers, name))
    walk = _Walk(shapes, graph=graph)
    try:
        walk.run(images_BCHW)
    except Exception as error:  # as above
        size, why = "×".join(map(str, images_BCHW.shape[1:])), first_line(error).rstrip(".")
        raise UserError(
            f"This {type(module).__name__} fails on images of {size}: {why}; if it takes others, give image_shape."
        ) from error
    return Seen(walk.shapes, layers, images_BCHW.shape[2] == images_BCHW.shape[3])


def _note(layers: dict[str, nn.Module], block: str, layer: nn.Module, _inputs: object) -> None:
    layers.setdefault(block, layer)


class _Walk(fx.Interpreter):
    """Runs a graph and keeps the shape of every tensor."""

    def __init__(self, module: nn.Module, *, graph: fx.Graph) -> None:
        super().__init__(module, graph=graph)
        self.shapes: dict[fx.Node, tuple[int, ...]] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, torch.Tensor):
            self.shapes[n] = tuple(result.shape)
        return result


def _kept(block: fx.Node, seen: Seen) -> Kept | None:
    if len(block.all_input_nodes) != 1 or not block.args or block.args[0] is not _given(block):
        return None
    features = seen.shapes.get(_given(block), ())
    if len(features) not in (3, 4) or seen.shapes.get(block) != features:
        return None
    layout = layout_of(features, seen.layers.get(str(block.target)), square=seen.square)
    if layout is None:
        raise UserError(
            f"Which axis of the features of {block.target} holds the channels cannot be told, of shape "
            f"{'×'.join(map(str, features[1:]))} per image; give another image_shape."
        )
    return Kept(layout, block.args[1:], dict(block.kwargs))


def _given(block: fx.Node) -> fx.Node:
    """The features: the only argument of a block that is computed."""
    return block.all_input_nodes[0]


def cut(graph: fx.Graph, blocks: Sequence[str]) -> list[fx.Graph]:
    """The parts of a graph: before the first block, from each block to the next, and after the last."""
    calls = [node for node in graph.nodes if node.op == "call_module" and node.target in blocks]
    images, logits = _ends(graph)
    first = _given(calls[0])
    starts, ends = (images, first, *calls), (first, *map(_given, calls), logits)
    return [_between(graph, start, end) for start, end in zip(starts, ends, strict=True)]


def _ends(graph: fx.Graph) -> tuple[fx.Node, fx.Node]:
    """The nodes of the images and of the logits."""
    given = [node for node in graph.nodes if node.op == "placeholder" and not node.args]  # the others have defaults
    ((result,),) = (node.args for node in graph.nodes if node.op == "output")
    if len(given) != 1 or not isinstance(result, fx.Node):
        raise UserError("Routing knows images in and logits out; this network takes or gives something else.")
    return given[0], result


def _between(graph: fx.Graph, start: fx.Node, end: fx.Node) -> fx.Graph:
    """The part of a graph from one tensor to another; `UserError` if it needs more than the first."""
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
