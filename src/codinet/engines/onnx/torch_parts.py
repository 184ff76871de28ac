"""A function of torch as ONNX nodes, written by torch's exporters.

torch has two. The older one traces a function, which takes milliseconds for a block. torch no longer extends it, so
newer operations are missing. The newer one (`torch.export`) supports more and takes seconds for a block. Therefore the
older one is tried first.
"""

import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import onnx
import torch
from onnx import AttributeProto, GraphProto, NodeProto, inliner
from torch import nn

from codinet.engines.onnx.graph_nodes import Part
from codinet.errors import UserError, first_line

TorchFunction = Callable[[torch.Tensor], torch.Tensor]
OPSETS = range(18, 21)  # that both exporters write
_PRINT_GRAPH = "_jit_onnx_log"


class TorchPart(nn.Module):
    """A function, and the module whose parameters it reads, which must be in evaluation mode."""

    def __init__(self, module: nn.Module, function: TorchFunction) -> None:
        super().__init__()
        self.module, self.function, self.training = module, function, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@torch.no_grad()
def export_part(what: str, part: TorchPart, x: torch.Tensor, *, opset: int, any_batch: bool, thorough: bool) -> Part:
    """Export a function.

    Args:
        what: Its name, for errors.
        part: The function.
        x: An example of its input. Values do not matter.
        opset: The version of the ONNX operators.
        any_batch: Whether the first axis may have any length; otherwise that of the example.
        thorough: Whether to try the newer exporter, too.

    Returns:
        Its nodes; none if it returns its input. `UserError` if no exporter supports it.
    """
    version = x._version
    if part(x) is x and x._version == version:  # a write increments the version
        return Part([], [], "x", "x")
    failures = []
    for export in (_trace, _export) if thorough else (_trace,):
        try:
            with _quiet():
                return _part_of(export(part, x, opset, any_batch))
        except Exception as error:  # exporters raise anything, and so may the function
            failures.append(error)
    why = first_line(failures[0]).rstrip(".")
    advice = "" if importlib.util.find_spec("onnxscript") else "; pip install onnxscript may help"
    raise UserError(f"{what} cannot be exported to ONNX: {why}{advice}.") from failures[-1]


def _trace(part: TorchPart, x: torch.Tensor, opset: int, any_batch: bool) -> onnx.ModelProto:
    file = io.BytesIO()
    axes = {name: {0: "batch"} for name in ("x", "y")} if any_batch else None
    torch.onnx.export(
        part,
        (x,),
        file,  # type: ignore[arg-type]  # its annotation lacks files in memory
        dynamo=False,
        opset_version=opset,
        dynamic_axes=axes,
        input_names=["x"],
        output_names=["y"],
    )
    return onnx.load_from_string(file.getvalue())


def _export(part: TorchPart, x: torch.Tensor, opset: int, any_batch: bool) -> onnx.ModelProto:
    shapes = ({0: torch.export.Dim.DYNAMIC},) if any_batch else None
    program = torch.onnx.export(part, (x,), dynamo=True, opset_version=opset, dynamic_shapes=shapes, verbose=False)
    assert program is not None
    proto = program.model_proto
    return inliner.inline_local_functions(proto) if proto.functions else proto


def _part_of(proto: onnx.ModelProto) -> Part:
    graph = proto.graph
    if len(graph.input) != 1 or len(graph.output) != 1:
        raise ValueError(f"It has {len(graph.input)} inputs and {len(graph.output)} outputs")
    foreign = [node.op_type for node in graph.node if node.domain not in ("", "ai.onnx")]
    if foreign:
        raise ValueError(f"Its nodes are not all standard ones, it has {foreign[0]}")
    read = set(_read(graph.node))
    constants = [constant for constant in graph.initializer if constant.name in read]
    return Part(list(graph.node), constants, graph.input[0].name, graph.output[0].name)


def _read(nodes: Iterable[NodeProto]) -> Iterator[str]:
    """What nodes read, also in nested graphs."""
    for node in nodes:
        yield from node.input
        for graph in _nested(node):
            yield from _read(graph.node)
            yield from (output.name for output in graph.output)


def _nested(node: NodeProto) -> Iterator[GraphProto]:
    yield from (attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' warnings and logs, which are about their own development."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    print_graph = getattr(torch._C, _PRINT_GRAPH, None)  # to stdout, before an error is raised
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if print_graph is not None:
            setattr(torch._C, _PRINT_GRAPH, lambda *_words: None)
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            if print_graph is not None:
                setattr(torch._C, _PRINT_GRAPH, print_graph)
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
