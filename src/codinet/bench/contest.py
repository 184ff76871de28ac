"""Which engines a bench runs, and the static net that each is measured against.

Families: torch (eager, folded), compiled (the same through torch.compile, static only: a Python branch cannot be
compiled away) and ONNX Runtime. A routed engine is compared with the fastest static net of its own family.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from codinet.engines.branch import BranchEngine
from codinet.engines.choose import has_onnx
from codinet.engines.gather import GatherEngine
from codinet.engines.masked import MaskedEngine
from codinet.engines.static import StaticEngine
from codinet.errors import UserError, unknown
from codinet.model import RoutedNetwork
from codinet.records import RoutedOutput

Call = Callable[[torch.Tensor], RoutedOutput]
ENGINES = ("masked", "branch", "gather", "onnx", "onnx-masked")
TORCH, ONNX = "torch", "onnx"


@dataclass(frozen=True)
class Contestant:
    name: str
    family: str
    static: bool
    call: Call


def pick_engines(wished: tuple[str, ...], batch: int, model: RoutedNetwork, device: torch.device) -> list[str]:
    """The engines to run at a batch size: those wished, or those made for it."""
    for name in wished:
        if name not in ENGINES:
            raise unknown("engine", name, ENGINES)
    if any(name.startswith(ONNX) for name in wished) and not has_onnx(model, device):
        raise UserError("ONNX engines need --device cpu and pip install 'codinet[onnx]'.")
    if model.routers is None:
        return []  # static nets alone: there is nothing to route
    if wished:
        return list(wished)
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
) -> list[Contestant]:
    """Static nets first, then the engines named."""
    found = [Contestant("static", TORCH, True, StaticEngine(model))]
    if compiled:
        found.append(Contestant("static-compiled", TORCH, True, _compiled(model)))
    if has_onnx(model, next(model.parameters()).device):
        found.append(Contestant("static-onnx", ONNX, True, _onnx(model, "static", image_shape, threads, threshold)))
    made: dict[str, Callable[[], Call]] = {
        "masked": lambda: MaskedEngine(model, threshold=threshold),
        "branch": lambda: BranchEngine(model, threshold=threshold),
        "gather": lambda: GatherEngine(model, threshold=threshold),
        "onnx": lambda: _onnx(model, "routed", image_shape, threads, threshold),
        "onnx-masked": lambda: _onnx(model, "masked", image_shape, threads, threshold),
    }
    found += [Contestant(name, ONNX if name.startswith(ONNX) else TORCH, False, made[name]()) for name in names]
    return found


def _onnx(model: RoutedNetwork, kind: str, image_shape: tuple[int, int, int], threads: int, threshold: float) -> Call:
    from codinet.engines.onnx import OnnxEngine

    engine = OnnxEngine.of(model, image_shape, kind=kind, threads=threads)  # type: ignore[arg-type]
    engine.threshold = threshold
    return engine


def _compiled(model: RoutedNetwork) -> Call:
    """The static network through torch.compile, weights frozen in."""
    engine = StaticEngine(model)
    forward = torch.compile(_Whole(engine), dynamic=False)

    @torch.inference_mode()
    def call(images_BCHW: torch.Tensor) -> RoutedOutput:
        logits_BK = forward(images_BCHW)
        number = len(images_BCHW)
        path_BN = torch.ones(number, len(engine.path))
        return RoutedOutput(logits_BK, torch.zeros(*path_BN.shape, 2), path_BN)

    return call


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
