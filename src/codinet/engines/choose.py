"""The fastest engine for a network, a device and a batch size, found by trying them.

Candidates are timed on random images, which a trained network may route otherwise than its own; pass `images`
where that matters. What is not installed (ONNX Runtime, Triton) or cannot hold the network is left out, and so are
kernels of our own that do not give the network's answers here.
"""

import copy
import importlib.util
import time
import warnings
from collections.abc import Callable

import torch

from codinet.engines.branch import BranchEngine
from codinet.engines.contract import Engine
from codinet.engines.gather import GatherEngine
from codinet.engines.graph import DTYPES, GraphEngine, StaticGraphEngine, why_not
from codinet.engines.masked import MaskedEngine
from codinet.engines.static import StaticEngine
from codinet.environment import pick_device
from codinet.errors import UserError
from codinet.model import CoDiNet, RoutedNetwork

ROUNDS = 5
LEFT_OUT = "the graph engine's kernels give other answers than the network on this device, so it is left out"


def compile_engine(
    model: RoutedNetwork,
    *,
    device: str | torch.device = "cpu",
    batch: int = 1,
    threshold: float = 0.5,
    images: torch.Tensor | None = None,
    image_shape: tuple[int, int, int] | None = None,
    dtype: torch.dtype | None = None,
) -> Engine:
    """The engine that was fastest here; they all give the same answers.

    Images are of the size the network was trained on, or was published for, unless said otherwise. With a `dtype` the
    engine computes in it and takes images of it; otherwise in the network's own.
    """
    if batch < 1:
        raise UserError(f"A batch holds one image or more, not {batch}.")
    if not 0 <= threshold <= 1:
        raise UserError(f"A threshold of {threshold:g} is no probability; give a number from 0 to 1.")
    device = pick_device(str(device))
    if images is None:
        images = torch.randn(batch, *(image_shape or model.image_shape or _published_shape(model)))
    dtype = next(model.parameters()).dtype if dtype is None else dtype
    images = images[:batch].to(device, dtype)
    model = copy.deepcopy(model).to(device, dtype)
    timed = [(_fastest_of(engine, images), engine) for engine in _candidates(model, images, threshold)]
    return min(timed, key=lambda pair: pair[0])[1]


def _published_shape(model: RoutedNetwork) -> tuple[int, int, int]:
    if isinstance(model, CoDiNet):
        return model.config.in_channels, model.shape.image_size, model.shape.image_size
    return 3, 224, 224


def _candidates(model: RoutedNetwork, images_BCHW: torch.Tensor, threshold: float) -> list[Engine]:
    if model.routers is None:
        engines: list[Engine] = [StaticEngine(model)]
    elif len(images_BCHW) == 1:
        engines = [BranchEngine(model, threshold=threshold)]
    else:
        engines = [
            GatherEngine(model, threshold=threshold),
            BranchEngine(model, threshold=threshold),
            MaskedEngine(model, threshold=threshold),
        ]
    if has_graph(model, images_BCHW.device) and images_BCHW.dtype in DTYPES:
        graph = _graph(model, threshold, images_BCHW.dtype)
        if _answers_alike(graph, MaskedEngine(model, threshold=threshold), images_BCHW):
            engines.append(graph)
        else:
            warnings.warn(LEFT_OUT, stacklevel=3)
    if has_onnx(model, images_BCHW.device) and images_BCHW.dtype == torch.float32:
        engines += _onnx(model, images_BCHW, threshold)
    return engines


def _answers_alike(graph: Engine, reference: Engine, images_BCHW: torch.Tensor) -> bool:
    """Whether kernels of our own are right on this device, of a kind that they may never have met."""
    wished = reference(images_BCHW)
    # Forced, so that rounding cannot tip a decision; a static one has none to tip.
    got = graph(images_BCHW, force=None if graph.takes.blocks is None else wished.path_BN)
    near = 0.01 if images_BCHW.dtype == torch.float32 else 0.05
    pairs = (got.logits_BK, wished.logits_BK), (got.scores_BN2, wished.scores_BN2)
    return all(bool((ours - theirs).abs().max() <= near * theirs.abs().max().clamp(min=1)) for ours, theirs in pairs)


def has_onnx(model: RoutedNetwork, device: torch.device) -> bool:
    """Whether ONNX Runtime is installed and can hold the network."""
    installed = all(importlib.util.find_spec(name) is not None for name in ("onnx", "onnxruntime"))
    return installed and device.type == "cpu" and isinstance(model, CoDiNet)


def has_graph(model: RoutedNetwork, device: torch.device) -> bool:
    """Whether the graph engine can hold the network there. On the CPU it is for tests, so nobody should choose it."""
    return device.type == "cuda" and why_not(model, device) is None


def _graph(model: RoutedNetwork, threshold: float, dtype: torch.dtype) -> Engine:
    if model.routers is None:
        return StaticGraphEngine(model, dtype=dtype)
    return GraphEngine(model, threshold=threshold, dtype=dtype)


def _onnx(model: RoutedNetwork, images_BCHW: torch.Tensor, threshold: float) -> list[Engine]:
    from codinet.engines.onnx import OnnxEngine

    channels, height, width = images_BCHW.shape[1:]
    shape = channels, height, width
    return [OnnxEngine.of(model, shape, kind="static" if model.routers is None else "routed", threshold=threshold)]


def _fastest_of(engine: Callable[[torch.Tensor], object], images_BCHW: torch.Tensor) -> float:
    """Seconds of the quickest of a few calls, the first not counted."""
    times = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        engine(images_BCHW)
        if images_BCHW.device.type == "cuda":
            torch.cuda.synchronize(images_BCHW.device)
        times.append(time.perf_counter() - start)
    return min(times[1:])
