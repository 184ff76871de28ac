"""A module's forward as a graph of calls, split at the residual blocks. Knows nothing about routing.

Routing works on maps, B×C×H×W. A `Layout` converts between them and the features of a network, which may be tokens or
channels-last.
"""

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from codinet.adopt.blank import meta_copy
from codinet.checks import shown
from codinet.errors import UserError, first_line
from codinet.model import in_evaluation

Blocks = str | Sequence[str] | type[nn.Module]


class Layout(NamedTuple):
    """Conversion between a network's features and maps. Features that are channels_last in memory are not copied."""

    to_maps: Callable[[torch.Tensor], torch.Tensor]
    from_maps: Callable[[torch.Tensor], torch.Tensor]


def _identity(x: torch.Tensor) -> torch.Tensor:
    return x


def _maps_of_tokens(x_BTC: torch.Tensor) -> torch.Tensor:
    return x_BTC.mT.unsqueeze(3)


def _tokens_of_maps(x_BCT1: torch.Tensor) -> torch.Tensor:
    return x_BCT1.squeeze(3).mT.contiguous()


def _maps_of_channels_last(x_BHWC: torch.Tensor) -> torch.Tensor:
    return x_BHWC.permute(0, 3, 1, 2)


def _channels_last_of_maps(x_BCHW: torch.Tensor) -> torch.Tensor:
    return x_BCHW.permute(0, 2, 3, 1).contiguous()


MAPS = Layout(_identity, _identity)  # B×C×H×W
TOKENS = Layout(_maps_of_tokens, _tokens_of_maps)  # B×T×C; routers pool over all tokens
CHANNELS_LAST = Layout(_maps_of_channels_last, _channels_last_of_maps)  # B×H×W×C

_WHOLE = "resample_abs_pos_embed", "resample_abs_pos_embed_nhwc"  # functions of timm.layers
_CHANNELS_FIRST_LAYERS = (nn.Conv2d, nn.BatchNorm2d, nn.InstanceNorm2d, nn.GroupNorm)
_CHANNELS_LAST_LAYERS = (nn.Linear, nn.LayerNorm)  # subclasses may differ


def _states_channels(layer: nn.Module) -> bool:
    """Whether a layer states how many channels its input has. A LayerNorm over several axes does not."""
    if isinstance(layer, nn.LayerNorm):
        return len(layer.normalized_shape) == 1
    return isinstance(layer, _CHANNELS_FIRST_LAYERS + _CHANNELS_LAST_LAYERS)


def _channels(layer: nn.Module) -> int:
    if isinstance(layer, nn.LayerNorm):
        return layer.normalized_shape[0]
    names = "in_channels", "num_features", "num_channels", "in_features"
    return next(getattr(layer, name) for name in names if hasattr(layer, name))


def _layout_of(shape: tuple[int, ...], layer: nn.Module | None, *, square: bool) -> Layout | None:
    """The layout of features.

    Args:
        shape: The shape of the features that go into a block.
        layer: The block's first layer that states its channels. The axis of that size holds the channels.
        square: Whether images are square. Then two equal axes are height and width, if there is no such layer or axis.

    Returns:
        The layout; None if it is ambiguous.
    """
    if len(shape) == 3:
        return TOKENS
    if len(shape) != 4:
        return None
    first, middle, last = shape[1:]
    if layer is not None and _channels(layer) in (first, last):
        if first != last:
            return MAPS if _channels(layer) == first else CHANNELS_LAST
        if isinstance(layer, _CHANNELS_FIRST_LAYERS):
            return MAPS
        return CHANNELS_LAST if type(layer) in _CHANNELS_LAST_LAYERS else None
    if square and (first == middle) != (middle == last):
        return CHANNELS_LAST if first == middle else MAPS
    return None


def select_blocks(module: nn.Module, blocks: Blocks) -> list[str]:
    """The names of the modules that `blocks` selects; of nested ones only the outermost."""
    patterns = blocks if isinstance(blocks, list | tuple) else [blocks]
    is_class = isinstance(blocks, type) and issubclass(blocks, nn.Module)
    if not is_class and (not patterns or not all(isinstance(pattern, str) for pattern in patterns)):
        raise UserError(f"blocks must be a class of modules, a name or a list of names, got {shown(blocks)}.")
    parts = [(name, part) for name, part in module.named_modules() if name]
    if isinstance(blocks, type):
        found = [name for name, part in parts if isinstance(part, blocks)]
    else:
        found = [name for name, _ in parts if any(fnmatchcase(name, str(pattern)) for pattern in patterns)]
    outermost = [name for name in found if not any(name.startswith(f"{other}.") for other in found)]
    if not outermost:
        selector = blocks.__name__ if isinstance(blocks, type) else repr(blocks)
        raise UserError(f"This {type(module).__name__} has no module {selector}; {_suggestion(module)}.")
    return outermost


def _suggestion(module: nn.Module) -> str:
    """Classes that may be blocks: they have several layers and occur several times in a row."""
    rows = [part for part in module.modules() if isinstance(part, nn.Sequential | nn.ModuleList)]
    counts = Counter(type(part).__name__ for row in rows for part in row if _count_layers([part]) > 1)
    repeated = [f"{name} ({count})" for name, count in counts.most_common(4) if count > 1]
    return f"it has {', '.join(repeated)}" if repeated else "it has no repeated modules"


def _count_layers(modules: Iterable[nn.Module]) -> int:
    return sum(isinstance(part, nn.Conv2d | nn.Linear) for module in modules for part in module.modules())


class _Tracer(fx.Tracer):
    """Traces into modules that contain blocks; every other module becomes one call."""

    def __init__(self, module: nn.Module, blocks: Iterable[str]) -> None:
        super().__init__(autowrap_functions=_whole_functions())
        parents = {name[:index] for name in blocks for index, letter in enumerate(name) if letter == "."}
        self.parents = {module.get_submodule(parent) for parent in parents}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m not in self.parents


def _whole_functions() -> tuple[Callable[..., Any], ...]:
    """Functions that become one call: they branch on sizes. timm's vision transformers for any image size use them."""
    found = (getattr(sys.modules.get("timm.layers"), name, None) for name in _WHOLE)
    return tuple(function for function in found if callable(function))


def trace_forward(module: nn.Module, blocks: Sequence[str]) -> list[fx.Graph]:
    """Trace the forward with images as its only argument and each block as one call.

    Returns:
        The graph in training mode and the graph in evaluation mode.
    """
    parameters = inspect.signature(module.forward).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
    try:
        with in_evaluation(module):  # restores the mode of every part
            return [_Tracer(module.train(training), blocks).trace(module, defaults) for training in (True, False)]
    except Exception as error:  # any forward may fail in any way on symbolic tensors
        why = first_line(error).rstrip(".")
        raise UserError(f"The forward of this {type(module).__name__} cannot be traced: {why}.") from error


class BlockCall(NamedTuple):
    """How a module calls a block that can be skipped."""

    layout: Layout  # of its input and output
    args: tuple[Any, ...]  # further arguments, the same in every call
    kwargs: dict[str, Any]
    channels: int  # of its input and output
    writes: bool  # whether it changes its input in place
    changed: frozenset[str]  # earlier blocks whose output has been changed in place when it is called


def find_skippable(
    module: nn.Module, graph: fx.Graph, blocks: Sequence[str], images_BCHW: torch.Tensor
) -> dict[str, BlockCall]:
    """The blocks that keep the shape of their features, in the order in which they run.

    Single layers are left out; a name with a `*` may match them too. Images are on the meta device.
    """
    composite = [name for name in blocks if _count_layers(module.get_submodule(name).children()) > 0]
    shapes = _trace_shapes(module, graph, composite, images_BCHW)
    calls: dict[str, BlockCall] = {}
    for node in graph.nodes:
        if node.op == "call_module" and node.target in composite and (call := _block_call(node, shapes)):
            if node.target in calls:
                raise UserError(f"{node.target} runs more than once, so it cannot be skipped by itself.")
            calls[node.target] = call
    if not calls:
        raise UserError(
            f"None of the {len(blocks)} selected blocks of this {type(module).__name__} can be skipped: a block must "
            "contain layers, take one tensor of features and keep its shape."
        )
    return calls


class _Shapes(NamedTuple):
    """The result of a pass on the meta device."""

    tensors: dict[fx.Node, tuple[int, ...]]
    writes: dict[str, bool]  # see `BlockCall`
    changed: dict[str, frozenset[str]]
    layers: dict[str, nn.Module]  # by block, the first layer called in it that states its channels
    square: bool  # whether images are square


@torch.no_grad()
def _trace_shapes(module: nn.Module, graph: fx.Graph, blocks: Sequence[str], images_BCHW: torch.Tensor) -> _Shapes:
    _ends(graph)  # raises for a network with further inputs
    meta = meta_copy(module)
    layers: dict[str, nn.Module] = {}
    for name in blocks:
        for part in filter(_states_channels, meta.get_submodule(name).modules()):
            part.register_forward_pre_hook(partial(_record_layer, layers, name))
    interpreter = _ShapeInterpreter(meta, graph, blocks)
    try:
        interpreter.run(images_BCHW)
    except Exception as error:  # as above
        size, why = "×".join(map(str, images_BCHW.shape[1:])), first_line(error).rstrip(".")
        raise UserError(
            f"This {type(module).__name__} fails on images of {size}: {why}; set image_shape to the size it takes."
        ) from error
    square = images_BCHW.shape[2] == images_BCHW.shape[3]
    return _Shapes(interpreter.shapes, interpreter.writes, interpreter.changed, layers, square)


def _record_layer(layers: dict[str, nn.Module], block: str, layer: nn.Module, _inputs: object) -> None:
    layers.setdefault(block, layer)


class _ShapeInterpreter(fx.Interpreter):
    """Runs a graph and records the shape of every tensor, and which blocks' tensors are changed in place."""

    def __init__(self, module: nn.Module, graph: fx.Graph, blocks: Sequence[str]) -> None:
        super().__init__(module, graph=graph)
        self.blocks = frozenset(blocks)
        self.shapes: dict[fx.Node, tuple[int, ...]] = {}
        self.writes: dict[str, bool] = {}
        self.changed: dict[str, frozenset[str]] = {}
        self.outputs: dict[str, tuple[torch.Tensor, int]] = {}  # of blocks, with their versions; a write increments it

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, torch.Tensor):
            self.shapes[n] = tuple(result.shape)
        return result

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target not in self.blocks:
            return super().call_module(target, args, kwargs)
        x = args[0] if args else None
        version = x._version if isinstance(x, torch.Tensor) else 0
        self.changed[target] = frozenset(
            name for name, (output, before) in self.outputs.items() if output._version != before
        )
        result = super().call_module(target, args, kwargs)
        self.writes[target] = isinstance(x, torch.Tensor) and x._version != version
        if isinstance(result, torch.Tensor):
            self.outputs[target] = result, result._version
        return result


def _block_call(block: fx.Node, shapes: _Shapes) -> BlockCall | None:
    if len(block.all_input_nodes) != 1 or not block.args or block.args[0] is not _input_of(block):
        return None
    features = shapes.tensors.get(_input_of(block), ())
    if len(features) not in (3, 4) or shapes.tensors.get(block) != features:
        return None
    layout = _layout_of(features, shapes.layers.get(str(block.target)), square=shapes.square)
    if layout is None:
        raise UserError(
            f"Cannot tell which axis of the features of {block.target} holds the channels, got "
            f"{'×'.join(map(str, features[1:]))} per image; set another image_shape."
        )
    name, channels = str(block.target), features[1] if layout is MAPS else features[-1]
    return BlockCall(layout, block.args[1:], dict(block.kwargs), channels, shapes.writes[name], shapes.changed[name])


def _input_of(block: fx.Node) -> fx.Node:
    """The features that go into a block: its only argument that is computed."""
    return block.all_input_nodes[0]


def split_graph(graph: fx.Graph, blocks: Sequence[str]) -> list[fx.Graph]:
    """Split a graph at its blocks: before the first, from each block to the next, and after the last."""
    calls = [node for node in graph.nodes if node.op == "call_module" and node.target in blocks]
    images, logits = _ends(graph)
    first = _input_of(calls[0])
    starts, ends = (images, first, *calls), (first, *map(_input_of, calls), logits)
    return [_subgraph(graph, start, end) for start, end in zip(starts, ends, strict=True)]


def _ends(graph: fx.Graph) -> tuple[fx.Node, fx.Node]:
    """The nodes of the images and of the logits."""
    inputs = [node for node in graph.nodes if node.op == "placeholder" and not node.args]  # the others have defaults
    ((result,),) = (node.args for node in graph.nodes if node.op == "output")
    if len(inputs) != 1 or not isinstance(result, fx.Node):
        raise UserError("The network must take images only and return logits only.")
    return inputs[0], result


def _subgraph(graph: fx.Graph, start: fx.Node, end: fx.Node) -> fx.Graph:
    """The part of a graph from one tensor to another; `UserError` if it needs other tensors too."""
    needed: set[fx.Node] = set()
    pending = [end]
    while pending:
        node = pending.pop()
        if node is start or node in needed:
            continue
        if node.op == "placeholder":
            raise UserError(
                f"A tensor bypasses {start.target} and is used after it, so it cannot be skipped by itself."
            )
        needed.add(node)
        pending += node.all_input_nodes
    part = fx.Graph()
    copies = {start: part.placeholder("x")}
    for node in graph.nodes:
        if node in needed:
            copies[node] = part.node_copy(node, copies.__getitem__)
    part.output(copies[end])
    return part
