"""Choose the fastest engine for a network, a device and a batch size by timing the candidates.

Candidates are timed on random images, which a trained network may route differently from real ones; pass `images` where
that matters. Engines that are not installed (ONNX Runtime, Triton) or do not support the network are left out. So is
the graph or switch engine if it does not reproduce the network's output on the device.
"""

import copy
import importlib.util
import math
import warnings
from collections.abc import Callable

import torch

from codinet.checks import LARGEST_COUNT, require_flag, require_image_shape, require_tensor, require_whole, shown
from codinet.checks import require_finite as require_finite_images
from codinet.engines.branch import BranchEngine
from codinet.engines.contract import Engine, require_finite
from codinet.engines.gather import GatherEngine
from codinet.engines.graph import DTYPES, GraphEngine, StaticGraphEngine, why_not
from codinet.engines.reference import MaskedEngine, StaticEngine
from codinet.engines.switch import SwitchEngine
from codinet.engines.switch import why_not as why_no_switch
from codinet.environment import pick_device, seconds_of
from codinet.errors import UserError, first_line
from codinet.model import CoDiNet, RoutedNetwork, require_network
from codinet.relaxation import require_threshold

ROUNDS = 5
MAX_NUMBERS = 2**28  # of a batch of images: a gigabyte in float32


def compile_engine(
    model: RoutedNetwork,
    *,
    device: str | torch.device | None = None,
    batch: int = 1,
    threshold: float = 0.5,
    images: torch.Tensor | None = None,
    image_shape: tuple[int, int, int] | None = None,
    dtype: torch.dtype | None = None,
    measure: bool = True,
) -> Engine:
    """Make the engine that is fastest on this machine. All engines give the same output.

    Args:
        model: The network; the engine keeps a copy.
        device: Where the engine runs. Default: the network's own device.
        batch: The batch size to optimise for.
        threshold: The run probability from which a block runs.
        images: Normalised images to time the engines on; the first `batch` of them are used.
        image_shape: The shape of random images to time the engines on instead. Default: the size that the network was
            trained on or published for.
        dtype: The dtype that the engine computes in and takes images of. Default: the network's own.
        measure: Whether to time the candidates, which takes seconds for a large batch on a CPU. Otherwise the engine is
            the one that is usually fastest: graph or switch on a GPU, branch for one image, gather for a batch.

    Returns:
        The fastest engine.
    """
    require_network(model)
    require_whole("batch", batch, 1, LARGEST_COUNT)
    require_threshold(threshold)
    require_flag("measure", measure)
    require_finite(model)
    weight = next(model.parameters())
    dtype = weight.dtype if dtype is None else dtype
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UserError(f"dtype must be a floating-point torch.dtype such as torch.bfloat16, got {shown(dtype)}.")
    images = _images(model, batch, images, image_shape).to(_device(weight.device if device is None else device), dtype)
    model = copy.deepcopy(model).to(images.device, dtype)
    if not measure:
        return _usually_fastest(model, images, threshold)
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
        if batch * math.prod(shape) > MAX_NUMBERS:
            raise UserError(
                f"A batch to time engines on must have at most {MAX_NUMBERS} numbers, got {shown(batch)} images of "
                f"{'×'.join(map(str, shape))}; choose a smaller batch."
            )
        return torch.randn(batch, *shape)
    if image_shape is not None:
        raise UserError("Pass images or image_shape, not both.")
    require_tensor("images", images, ("B", "C", "H", "W"))
    require_finite_images("images", images)
    if len(images) < batch:
        raise UserError(f"images must have at least one batch of {batch} images, got {shown(images)}.")
    return images[:batch]


def _published_shape(model: RoutedNetwork) -> tuple[int, int, int]:
    if isinstance(model, CoDiNet):
        return model.config.in_channels, model.shape.image_size, model.shape.image_size
    return 3, 224, 224


def _usually_fastest(model: RoutedNetwork, images_BCHW: torch.Tensor, threshold: float) -> Engine:
    recorded = _recorded(model, images_BCHW, threshold)
    if recorded:
        return recorded[0]
    if model.routers is None:
        return StaticEngine(model)
    kind = BranchEngine if len(images_BCHW) == 1 else GatherEngine
    return kind(model, threshold=threshold)


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
    engines += _recorded(model, images_BCHW, threshold)
    if has_onnx(model, images_BCHW.device) and images_BCHW.dtype == torch.float32:
        engines += _onnx(model, images_BCHW, threshold)
    return engines


def _recorded(model: RoutedNetwork, images_BCHW: torch.Tensor, threshold: float) -> list[Engine]:
    """The engine that is recorded as a CUDA graph: graph where it is supported, otherwise switch.

    None if it cannot run on the device or computes something else there.
    """
    device, dtype = images_BCHW.device, images_BCHW.dtype
    make: Callable[[], Engine]
    if has_graph(model, device) and dtype in DTYPES:
        name, make = "graph", lambda: _graph(model, threshold, dtype)
    elif has_switch(model, device):
        name, make = "switch", lambda: SwitchEngine(model, threshold=threshold)
    else:
        return []
    try:
        engine = make()
        if _same_output(engine, MaskedEngine(model, threshold=threshold), images_BCHW):
            return [engine]
        reason = "it does not reproduce the network's output on this device"
    except (UserError, RuntimeError) as error:  # no kernel fits the device, or a block cannot be recorded
        reason = first_line(error)
    warnings.warn(f"The {name} engine is not used: {reason}", stacklevel=4)
    return []


def _same_output(engine: Engine, reference: Engine, images_BCHW: torch.Tensor) -> bool:
    """Whether an engine is correct on this device, which may be of a type that it was never tested on."""
    expected = reference(images_BCHW)
    # The path is forced, so that rounding cannot change a decision; a static engine makes none.
    output = engine(images_BCHW, force=None if engine.spec.blocks is None else expected.path_BN)
    tolerance = 0.01 if images_BCHW.dtype == torch.float32 else 0.05
    pairs = (output.logits_BK, expected.logits_BK), (output.scores_BN2, expected.scores_BN2)
    return all(bool((a - b).abs().max() <= tolerance * b.abs().max().clamp(min=1)) for a, b in pairs)


def has_onnx(model: RoutedNetwork, device: torch.device) -> bool:
    """Whether ONNX Runtime is installed and supports the network."""
    installed = all(importlib.util.find_spec(name) is not None for name in ("onnx", "onnxruntime"))
    return installed and device.type == "cpu"


def has_graph(model: RoutedNetwork, device: torch.device, *, routers: bool = True) -> bool:
    """Whether the graph engine supports the network; with `routers=False`, whether the static graph engine does.

    On the CPU these engines are for tests only, so the answer is False.
    """
    return device.type == "cuda" and why_not(model, device, routers=routers) is None


def has_switch(model: RoutedNetwork, device: torch.device) -> bool:
    """Whether the switch engine supports the network. On the CPU it is for tests only, so the answer is False."""
    return why_no_switch(model, device) is None


def _graph(model: RoutedNetwork, threshold: float, dtype: torch.dtype) -> Engine:
    if model.routers is None:
        return StaticGraphEngine(model, dtype=dtype)
    return GraphEngine(model, threshold=threshold, dtype=dtype)


def _onnx(model: RoutedNetwork, images_BCHW: torch.Tensor, threshold: float) -> list[Engine]:
    from codinet.engines.onnx import OnnxEngine

    channels, height, width = images_BCHW.shape[1:]
    shape, kind = (channels, height, width), "static" if model.routers is None else "routed"
    if isinstance(model, CoDiNet):
        return [OnnxEngine.of(model, shape, kind=kind, threshold=threshold)]  # type: ignore[arg-type]
    if kind == "routed" and len(images_BCHW) > 1:
        return []  # one image after another; exporting would take longer than it is worth
    try:
        return [OnnxEngine.of(model, shape, kind=kind, threshold=threshold, thorough=False)]  # type: ignore[arg-type]
    except UserError:  # a part cannot be exported
        return []


def _fastest_of(engine: Callable[[torch.Tensor], object], images_BCHW: torch.Tensor) -> float:
    """Seconds of the fastest of a few calls; the first one is not counted."""
    times = [seconds_of(lambda: engine(images_BCHW), images_BCHW.device) for _ in range(ROUNDS + 1)]
    return min(times[1:])
