"""Time the engines of a network against its static form.

A routed engine is compared with the fastest static network of its own family: torch, ONNX Runtime or OpenVINO. Static
networks of torch are the folded network run eagerly, through torch.compile (static only, because a Python branch cannot
be compiled away) and, on CUDA, through the kernels of the graph engine. A compiled network is replayed as a CUDA graph
there, as the graph engine is.

Timing is split into rounds. In each round every engine processes the same images, and the order of the engines rotates.
A speed-up is the median over rounds of the static network's time divided by the engine's, so that whatever slows a
whole round cancels out.
"""

import copy
import importlib.util
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from codinet.bench.profiling import peak_mb
from codinet.cost import CostTable, block_costs
from codinet.cuda_graphs import CapturedCall
from codinet.engines.branch import BranchEngine
from codinet.engines.choose import has_graph, has_onnx, has_switch
from codinet.engines.gather import GatherEngine
from codinet.engines.graph import GraphEngine, StaticGraphEngine, why_not
from codinet.engines.reference import MaskedEngine, StaticEngine
from codinet.engines.switch import SwitchEngine
from codinet.engines.switch import why_not as why_no_switch
from codinet.environment import seconds_of
from codinet.errors import UserError
from codinet.model import CoDiNet, RoutedNetwork
from codinet.records import RoutedOutput

Call = Callable[[torch.Tensor], RoutedOutput]
Progress = Callable[[str, float], None]
"""Receives what is done next and the fraction of the work that is done."""

ENGINES = ("masked", "branch", "gather", "switch", "graph", "onnx", "onnx-masked", "onnx-file", "openvino")
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TORCH, ONNX, OPENVINO = "torch", "onnx", "openvino"
WARM_UP = 2  # calls


def no_progress(_next: str, _done: float) -> None:
    """A `Progress` that shows nothing."""


@dataclass(frozen=True)
class Contestant:
    """An engine, or a static network, in a comparison."""

    name: str
    family: str
    static: bool
    call: Call


@dataclass(frozen=True)
class Setting:
    """What all rows of a measurement have in common."""

    batch: int
    threads: int
    device: torch.device
    precision: str


def compare(
    model: RoutedNetwork,
    images_TCHW: torch.Tensor,
    *,
    batch: int = 1,
    engines: tuple[str, ...] = (),
    threshold: float = 0.5,
    compiled: bool = False,
    precision: str = "float32",
    usual: Sequence[int | None] | None = None,
    rounds: int = 20,
    progress: Progress = no_progress,
) -> list[dict[str, Any]]:
    """Time engines of a network against its static form, as `codinet bench` does.

    Args:
        model: The network; torch runs on as many threads as it is set to.
        images_TCHW: Normalised images on the network's device; each takes its own path.
        batch: The batch size.
        engines: Some of `ENGINES`. Default: those for the batch size and the device.
        threshold: The run probability from which a block runs.
        compiled: Also time the static network through torch.compile.
        precision: A key of `PRECISIONS`.
        usual: The usual decisions that the file of the engines onnx-file and openvino is written with.
        rounds: The number of rounds.
        progress: Called before each step of the work.

    Returns:
        One row per engine. `speedup` is measured, `mac_speedup` is what the saved multiply-adds suggest, and `realised`
        is their ratio.
    """
    if not 1 <= batch <= len(images_TCHW):
        raise UserError(f"batch must be from 1 to the number of images, {len(images_TCHW)}, got {batch}.")
    device, threads = next(model.parameters()).device, torch.get_num_threads()
    channels, height, width = images_TCHW.shape[1:]
    table = block_costs(model, (channels, height, width))
    contest = contestants(
        model,
        pick_engines(engines, batch, model, device),
        table.image_shape,
        threads=threads,
        threshold=threshold,
        compiled=compiled,
        dtype=PRECISIONS[precision],
        usual=usual,
    )
    images_TCHW = images_TCHW.to(PRECISIONS[precision])
    setting = Setting(batch, threads, device, precision)
    return measure(contest, images_TCHW, table, setting, rounds=rounds, progress=progress)


# Contestants


def pick_engines(names: tuple[str, ...], batch: int, model: RoutedNetwork, device: torch.device) -> list[str]:
    """The engines to time: those of `names`, or by default those for the batch size and the device."""
    if any(family_of(name) != TORCH for name in names) and not has_onnx(model, device):
        raise UserError("ONNX engines need --device cpu and pip install onnx onnxruntime.")
    if OPENVINO in names and importlib.util.find_spec(OPENVINO) is None:
        raise UserError("The openvino engine requires OpenVINO; install it with pip install openvino.")
    reason = why_not(model, device) if "graph" in names else None
    if reason is not None:
        raise UserError(reason)
    if model.routers is None:
        return []  # only static networks
    reason = why_no_switch(model, device) if "switch" in names else None
    if reason is not None:
        raise UserError(reason)
    if names:
        return list(names)
    if device.type == "cuda":
        if has_graph(model, device):  # far ahead of a switch on small images
            return ["masked", "gather", "graph"]
        return ["masked", "gather", *(["switch"] if has_switch(model, device) else [])]
    if batch > 1:
        return ["masked", "gather"]
    return ["masked", "branch", *(["onnx"] if has_onnx(model, device) else [])]


def family_of(engine: str) -> str:
    """The library that runs an engine."""
    name = engine.removeprefix("static-")
    return ONNX if name.startswith(ONNX) else OPENVINO if name == OPENVINO else TORCH


def contestants(
    model: RoutedNetwork,
    names: list[str],
    image_shape: tuple[int, int, int],
    *,
    threads: int,
    threshold: float = 0.5,
    compiled: bool = False,
    dtype: torch.dtype = torch.float32,
    usual: Sequence[int | None] | None = None,
) -> list[Contestant]:
    """Make static networks, then the named engines. Those of torch compute in `dtype` and take images of it."""
    device = next(model.parameters()).device
    rounded = copy.deepcopy(model).to(dtype)  # engines with kernels fold in float32 and round afterwards
    entries = [Contestant("static", TORCH, True, StaticEngine(rounded))]
    if compiled:
        entries.append(Contestant("static-compiled", TORCH, True, _compiled(rounded)))
    if has_graph(model, device, routers=False):
        entries.append(Contestant("static-graph", TORCH, True, StaticGraphEngine(model, dtype=dtype)))
    make_onnx = partial(_onnx, model, image_shape, threads=threads, threshold=threshold)
    # Exporting an adopted network takes time, or may not be possible, so it is done only for a comparison.
    wanted = isinstance(model, CoDiNet) or any(family_of(name) == ONNX for name in names)
    if wanted and has_onnx(model, device) and dtype == torch.float32:
        entries.append(Contestant("static-onnx", ONNX, True, make_onnx(kind="static")))
    if OPENVINO in names:
        entries.append(Contestant("static-openvino", OPENVINO, True, make_onnx(OPENVINO, kind="static")))
    make: dict[str, Callable[[], Call]] = {
        "masked": lambda: MaskedEngine(rounded, threshold=threshold),
        "branch": lambda: BranchEngine(rounded, threshold=threshold),
        "gather": lambda: GatherEngine(rounded, threshold=threshold),
        "switch": lambda: SwitchEngine(rounded, threshold=threshold),
        "graph": lambda: GraphEngine(model, threshold=threshold, dtype=dtype),
        "onnx": make_onnx,
        "onnx-masked": lambda: make_onnx(kind="masked"),
        "onnx-file": lambda: make_onnx(portable=True, usual=usual),
        "openvino": lambda: make_onnx(OPENVINO, usual=usual),
    }
    return entries + [Contestant(name, family_of(name), False, make[name]()) for name in names]


def _onnx(model: RoutedNetwork, image_shape: tuple[int, int, int], runtime: str = ONNX, **options: Any) -> Call:
    from codinet.engines.onnx import OnnxEngine, OpenVinoEngine

    return (OpenVinoEngine if runtime == OPENVINO else OnnxEngine).of(model, image_shape, **options)


def _compiled(model: RoutedNetwork) -> Call:
    """The static network through torch.compile; on CUDA with a graph for each batch shape."""
    engine = StaticEngine(model)
    forward = torch.compile(_StaticForward(engine), dynamic=False)
    graphs: dict[torch.Size, CapturedCall[torch.Tensor]] = {}

    @torch.inference_mode()
    def call(images_BCHW: torch.Tensor) -> RoutedOutput:
        images_BCHW = images_BCHW.contiguous(memory_format=torch.channels_last)
        if not images_BCHW.is_cuda:
            logits_BK = forward(images_BCHW)
        else:
            if images_BCHW.shape not in graphs:
                graphs[images_BCHW.shape] = CapturedCall(forward, images_BCHW, benchmark=True)
            logits_BK = graphs[images_BCHW.shape](images_BCHW).clone()
        number = len(images_BCHW)
        path_BN = torch.ones(number, len(engine.path))
        return RoutedOutput(logits_BK, torch.zeros(*path_BN.shape, 2), path_BN)

    return call


class _StaticForward(torch.nn.Module):
    """Stem, all blocks and head: what is compiled."""

    def __init__(self, engine: StaticEngine) -> None:
        super().__init__()
        self.engine = engine

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        x_BCHW = self.engine.net.stem(images_BCHW)
        for block, _ in self.engine.steps:
            x_BCHW = block.run(x_BCHW, block.skip(x_BCHW))
        return self.engine.net.head(x_BCHW)


# Timing


def measure(
    contest: Sequence[Contestant],
    images_TCHW: torch.Tensor,
    table: CostTable,
    setting: Setting,
    *,
    rounds: int,
    progress: Progress = no_progress,
) -> list[dict[str, Any]]:
    """Time contestants on all full batches of the images; see `compare` for the rows."""
    batches = [part for part in images_TCHW.split(setting.batch) if len(part) == setting.batch]
    steps = len(contest) * (1 + rounds)
    memory: dict[str, float | None] = {}
    macs: dict[str, float] = {}
    for number, entry in enumerate(contest):
        progress(f"{entry.name}: warm-up", number / steps)
        memory[entry.name] = peak_mb(lambda entry=entry: entry.call(batches[0]), setting.device)  # type: ignore[misc]
        macs[entry.name] = _mean_macs(entry, batches, table)
        for _ in range(WARM_UP):
            entry.call(batches[0])
    calls: dict[str, list[float]] = {entry.name: [] for entry in contest}
    totals: dict[str, list[float]] = {entry.name: [] for entry in contest}
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}", (number + 1) / (1 + rounds))
        first = number % len(contest)
        for entry in [*contest[first:], *contest[:first]]:
            times = [seconds_of(partial(entry.call, part), setting.device) for part in batches]
            calls[entry.name] += times
            totals[entry.name].append(sum(times))
    medians = {name: statistics.median(times) for name, times in totals.items()}
    baseline = {
        family: min(
            (entry.name for entry in contest if entry.static and entry.family == family), key=medians.__getitem__
        )
        for family in {entry.family for entry in contest}
    }
    rows = []
    for entry in contest:
        static = baseline[entry.family]
        ratios = [one / own for one, own in zip(totals[static], totals[entry.name], strict=True)]
        speedup, mac_speedup = statistics.median(ratios), table.static_macs / macs[entry.name]
        rows.append(
            {
                "engine": entry.name,
                "batch": setting.batch,
                "threads": setting.threads,
                "device": setting.device.type,
                "precision": setting.precision,
                "p50_ms": 1e3 * statistics.median(calls[entry.name]),
                "p95_ms": 1e3 * _percentile(calls[entry.name], 0.95),
                "images_per_s": setting.batch * len(batches) / medians[entry.name],
                "mac_speedup": mac_speedup,
                "speedup": speedup,
                "realised": speedup / mac_speedup,
                "against": static,
                "peak_mb": memory[entry.name],
            }
        )
    return rows


def _mean_macs(entry: Contestant, batches: Sequence[torch.Tensor], table: CostTable) -> float:
    """MACs per image, including routers. For the masked engine these are the MACs of its paths, not of its work."""
    if entry.static:
        return table.static_macs
    paths_TN = torch.cat([entry.call(part).path_BN.cpu() for part in batches])
    return table.path_macs(paths_TN).mean().item()


def _percentile(values: Sequence[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[math.ceil(fraction * len(ordered)) - 1]
