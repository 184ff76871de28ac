"""Which engines a bench runs, and the static net that each is measured against.

Families: torch and ONNX Runtime. A routed engine is compared with the fastest static net of its own family. Torch's
are the folded network run eagerly, through torch.compile (static only: a Python branch cannot be compiled away), and
on CUDA through the kernels of the graph engine; what is compiled is replayed there as a CUDA graph, as that engine is.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch

from codinet.engines.branch import BranchEngine
from codinet.engines.choose import has_graph, has_onnx
from codinet.engines.gather import GatherEngine
from codinet.engines.graph import GraphEngine, StaticGraphEngine, why_not
from codinet.engines.graph_capture import Captured
from codinet.engines.masked import MaskedEngine
from codinet.engines.static import StaticEngine
from codinet.errors import UserError
from codinet.model import RoutedNetwork
from codinet.records import RoutedOutput

Call = Callable[[torch.Tensor], RoutedOutput]
ENGINES = ("masked", "branch", "gather", "graph", "onnx", "onnx-masked")
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TORCH, ONNX = "torch", "onnx"


@dataclass(frozen=True)
class Contestant:
    name: str
    family: str
    static: bool
    call: Call


def pick_engines(wished: tuple[str, ...], batch: int, model: RoutedNetwork, device: torch.device) -> list[str]:
    """The engines to run at a batch size: those wished, which are of `ENGINES`, or those made for it."""
    if any(name.startswith(ONNX) for name in wished) and not has_onnx(model, device):
        raise UserError("ONNX engines need --device cpu and pip install 'codinet[onnx]'.")
    reason = why_not(model, device) if "graph" in wished else None
    if reason is not None:
        raise UserError(reason)
    if model.routers is None:
        return []  # static nets alone: there is nothing to route
    if wished:
        return list(wished)
    if device.type == "cuda":
        return ["masked", "gather", *(["graph"] if has_graph(model, device) else [])]
    if batch > 1:
        return ["masked", "gather"]
    return ["masked", "branch", *(["onnx"] if has_onnx(model, device) else [])]


def contestants(
    model: RoutedNetwork,
    names: list[str],
    image_shape: tuple[int, int, int],
    *,
    threads: int,
    threshold: float = 0.5,
    compiled: bool = False,
    dtype: torch.dtype = torch.float32,
) -> list[Contestant]:
    """Static nets first, then the engines named. Torch's compute in `dtype`, and take images of it."""
    device = next(model.parameters()).device
    whole = model  # engines of kernels fold it in float32 and round afterwards
    model = copy.deepcopy(model).to(dtype)
    found = [Contestant("static", TORCH, True, StaticEngine(model))]
    if compiled:
        found.append(Contestant("static-compiled", TORCH, True, _compiled(model)))
    if has_graph(whole, device):
        found.append(Contestant("static-graph", TORCH, True, StaticGraphEngine(whole, dtype=dtype)))
    if has_onnx(whole, device) and dtype == torch.float32:
        found.append(Contestant("static-onnx", ONNX, True, _onnx(whole, "static", image_shape, threads, threshold)))
    made: dict[str, Callable[[], Call]] = {
        "masked": lambda: MaskedEngine(model, threshold=threshold),
        "branch": lambda: BranchEngine(model, threshold=threshold),
        "gather": lambda: GatherEngine(model, threshold=threshold),
        "graph": lambda: GraphEngine(whole, threshold=threshold, dtype=dtype),
        "onnx": lambda: _onnx(whole, "routed", image_shape, threads, threshold),
        "onnx-masked": lambda: _onnx(whole, "masked", image_shape, threads, threshold),
    }
    found += [Contestant(name, ONNX if name.startswith(ONNX) else TORCH, False, made[name]()) for name in names]
    return found


def _onnx(model: RoutedNetwork, kind: str, image_shape: tuple[int, int, int], threads: int, threshold: float) -> Call:
    from codinet.engines.onnx import OnnxEngine

    return OnnxEngine.of(model, image_shape, kind=kind, threshold=threshold, threads=threads)  # type: ignore[arg-type]


def _compiled(model: RoutedNetwork) -> Call:
    """The static network through torch.compile, weights frozen in; on CUDA as a graph for each shape of batch."""
    engine = StaticEngine(model)
    forward = torch.compile(_Whole(engine), dynamic=False)
    graphs: dict[torch.Size, Captured[torch.Tensor]] = {}

    @torch.inference_mode()
    def call(images_BCHW: torch.Tensor) -> RoutedOutput:
        images_BCHW = images_BCHW.contiguous(memory_format=torch.channels_last)
        if not images_BCHW.is_cuda:
            logits_BK = forward(images_BCHW)
        else:
            if images_BCHW.shape not in graphs:
                graphs[images_BCHW.shape] = _capture(forward, images_BCHW)
            logits_BK = graphs[images_BCHW.shape](images_BCHW).clone()
        number = len(images_BCHW)
        path_BN = torch.ones(number, len(engine.path))
        return RoutedOutput(logits_BK, torch.zeros(*path_BN.shape, 2), path_BN)

    return call


def _capture(forward: Callable[[torch.Tensor], torch.Tensor], images_BCHW: torch.Tensor) -> Captured[torch.Tensor]:
    """With the convolutions that cuDNN finds fastest: shapes are fixed, so that looking pays."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        return Captured(forward, images_BCHW)
    finally:
        torch.backends.cudnn.benchmark = before


class _Whole(torch.nn.Module):
    """Stem, blocks, head: what is compiled."""

    def __init__(self, engine: StaticEngine) -> None:
        super().__init__()
        self.engine = engine

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        x_BCHW = self.engine.net.stem(images_BCHW)
        for block, _ in self.engine.steps:
            x_BCHW = block.run(x_BCHW, block.skip(x_BCHW))
        return self.engine.net.head(x_BCHW)
