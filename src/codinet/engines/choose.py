"""The fastest engine for a network, a device and a batch size, found by timing them.

Candidates are timed on random images, which a trained network may route differently from real ones; pass `images`
where that matters. Engines that are not installed (ONNX Runtime, Triton) or cannot take the network are left out, and
so are our own kernels where they do not give the network's answers.
"""

import copy
import importlib.util
import math
import time
import warnings
from collections.abc import Callable

import torch

from codinet.checks import LARGEST_COUNT, require_image_shape, require_tensor, require_whole, shown
from codinet.checks import require_finite as require_finite_images
from codinet.engines.branch import BranchEngine
from codinet.engines.contract import Engine, require_finite
from codinet.engines.gather import GatherEngine
from codinet.engines.graph import DTYPES, GraphEngine, StaticGraphEngine, why_not
from codinet.engines.masked import MaskedEngine
from codinet.engines.static import StaticEngine
from codinet.environment import pick_device
from codinet.errors import UserError
from codinet.model import CoDiNet, RoutedNetwork, require_network
from codinet.relaxation import require_threshold

ROUNDS = 5
MOST_NUMBERS = 2**28  # of a batch of images: a gigabyte in float32
LEFT_OUT = "the graph engine's kernels give other answers than the network on this device, so it is left out"


def compile_engine(
    model: RoutedNetwork,
    *,
    device: str | torch.device | None = None,
    batch: int = 1,
    threshold: float = 0.5,
    images: torch.Tensor | None = None,
    image_shape: tuple[int, int, int] | None = None,
    dtype: torch.dtype | None = None,
) -> Engine:
    """The engine that was fastest here; they all give the same answers.

    The engine runs on `device`, by default the network's own. It is chosen for batches of `batch` images: the first
    ones of `images` (normalised), or random ones of `image_shape`, by default the size the network was trained on or
    published for. With a `dtype` the engine computes in it and takes images of it; by default in the network's own.
    """
    require_network(model)
    require_whole("batch", batch, 1, LARGEST_COUNT)
    require_threshold(threshold)
    require_finite(model)
    weight = next(model.parameters())
    dtype = weight.dtype if dtype is None else dtype
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UserError(f"dtype must be a torch dtype of floats, such as torch.bfloat16, got {shown(dtype)}.")
    images = _images(model, batch, images, image_shape).to(_device(weight.device if device is None else device), dtype)
    model = copy.deepcopy(model).to(images.device, dtype)
    timed = [(_fastest_of(engine, images), engine) for engine in _candidates(model, images, threshold)]
    return min(timed, key=lambda pair: pair[0])[1]


def _device(device: object) -> torch.device:
    if not isinstance(device, str | torch.device):
        raise UserError(f"device must be a name such as 'cpu' or 'cuda', or a torch.device, got {shown(device)}.")
    return pick_device(str(device))


def _images(
    model: RoutedNetwork, batch: int, images: torch.Tensor | None, image_shape: tuple[int, int, int] | None
) -> torch.Tensor:
    """A batch to time the engines on."""
    if images is None:
        shape = require_image_shape(image_shape or model.image_shape or _published_shape(model))
        if batch * math.prod(shape) > MOST_NUMBERS:
            raise UserError(
                f"A batch to time engines on must hold at most {MOST_NUMBERS} numbers, got {shown(batch)} images of "
                f"{'×'.join(map(str, shape))}; choose a smaller batch."
            )
        return torch.randn(batch, *shape)
    if image_shape is not None:
        raise UserError("Give images or image_shape, not both: images have a shape.")
    require_tensor("images", images, ("B", "C", "H", "W"))
    require_finite_images("images", images)
    if len(images) < batch:
        raise UserError(f"images must hold at least a batch of {batch}, got {shown(images)}.")
    return images[:batch]


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
        engines += _checked_graph(model, images_BCHW, threshold)
    if has_onnx(model, images_BCHW.device) and images_BCHW.dtype == torch.float32:
        engines += _onnx(model, images_BCHW, threshold)
    return engines


def _checked_graph(model: RoutedNetwork, images_BCHW: torch.Tensor, threshold: float) -> list[Engine]:
    """The graph engine, unless its kernels do not fit the device or give other answers."""
    graph = _graph(model, threshold, images_BCHW.dtype)
    try:
        alike = _answers_alike(graph, MaskedEngine(model, threshold=threshold), images_BCHW)
    except UserError as error:  # no kernel fits the device
        warnings.warn(f"the graph engine is left out: {error}", stacklevel=4)
        return []
    if not alike:
        warnings.warn(LEFT_OUT, stacklevel=4)
        return []
    return [graph]


def _answers_alike(graph: Engine, reference: Engine, images_BCHW: torch.Tensor) -> bool:
    """Whether our own kernels are right on this device, which may be of a kind that they were never tested on."""
    wished = reference(images_BCHW)
    # The path is forced, so that rounding cannot change a decision; a static engine makes none.
    got = graph(images_BCHW, force=None if graph.takes.blocks is None else wished.path_BN)
    near = 0.01 if images_BCHW.dtype == torch.float32 else 0.05
    pairs = (got.logits_BK, wished.logits_BK), (got.scores_BN2, wished.scores_BN2)
    return all(bool((ours - theirs).abs().max() <= near * theirs.abs().max().clamp(min=1)) for ours, theirs in pairs)


def has_onnx(model: RoutedNetwork, device: torch.device) -> bool:
    """Whether ONNX Runtime is installed and can take the network."""
    installed = all(importlib.util.find_spec(name) is not None for name in ("onnx", "onnxruntime"))
    return installed and device.type == "cpu" and isinstance(model, CoDiNet)


def has_graph(model: RoutedNetwork, device: torch.device) -> bool:
    """Whether the graph engine can take the network there. On the CPU it is for tests only, so it is never chosen."""
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
    """Seconds of the fastest of a few calls, without the first."""
    times = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        engine(images_BCHW)
        if images_BCHW.device.type == "cuda":
            torch.cuda.synchronize(images_BCHW.device)
        times.append(time.perf_counter() - start)
    return min(times[1:])
