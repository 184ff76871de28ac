"""How long a run's network takes for one image, next to the static network of the same architecture.

The routed network runs through the engine that `codinet predict` uses, the static one through the static engine of the
same family. Both process the same random images in turn. The paths are forced: they are those of test images, evenly
spaced by cost, so no data set is needed. Routers are computed all the same.

A measurement is kept in the run folder (inference_time.json) and used again for the same network on the same machine.
"""

import math
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from codinet import files
from codinet.engines import Engine, GraphEngine, StaticEngine, StaticGraphEngine, compile_engine
from codinet.environment import device_name, seconds_of, torch_threads
from codinet.errors import UserError, first_line
from codinet.evaluate import exact_inference
from codinet.model import RoutedNetwork
from codinet.records import PathTable
from codinet.runs import RunFolder

Call = Callable[[int], object]
"""Runs a network once, with the path of this index."""

FORMAT = 1
FILE = "inference_time.json"
IMAGES = 32  # paths that are timed
REPEATS = 5  # per path
SECONDS = 2.0  # no new pair of calls after this time
MIN_PAIRS = 8  # even if they take longer
THREADS = 1  # on a CPU; one small image does not keep more threads busy
_STRIDE = 13  # has no factor in common with IMAGES: a measurement that stops early has seen cheap and costly paths


@dataclass(frozen=True)
class InferenceTime:
    """Measured milliseconds per image, one image at a time."""

    run_ms: float
    static_ms: float  # all blocks, no routers
    engine: str  # of the run
    static_engine: str
    device: str  # model of the GPU or CPU
    threads: int | None  # of a CPU
    images: int  # paths that were timed
    measured: str  # date and time, UTC

    @property
    def speedup(self) -> float:
        """How many times faster the run is than the static network."""
        return self.static_ms / self.run_ms

    @property
    def place(self) -> str:
        """Device and threads in words."""
        if self.threads is None:
            return self.device
        return f"{self.device}, {self.threads} thread{'s' if self.threads > 1 else ''}"


def inference_time(
    folder: RunFolder,
    paths: PathTable,
    network: str,
    device: torch.device,
    *,
    note: Callable[[str], None] = lambda _message: None,
) -> InferenceTime | None:
    """The time of a run per image, measured and saved if necessary.

    Args:
        folder: A finished run.
        paths: Its path table.
        network: The digest of its weights.
        device: The device to measure on.
        note: Called with a message if the time cannot be measured or saved.

    Returns:
        The time, or None if the network cannot run on the device.
    """
    made_from = {"network": network, "device": _model(device), "kind": device.type, "torch": torch.__version__}
    file = folder.path / FILE
    saved = _saved(folder, made_from)
    if saved is not None:
        return saved
    try:
        found = measure_time(folder.load_model(device), folder.data.image_shape, paths.path_TN, paths.macs_T)
    except Exception as error:  # from Triton, the GPU's driver, …; a report is useful without times
        note(f"The time of {folder.path} is not measured ({first_line(error)}).")
        return None
    try:
        files.write_json(file, {"format": FORMAT, "made_from": made_from, "time": asdict(found)})
    except UserError as error:  # the folder may be read-only
        note(f"The measured time is not saved: {error}")
    return found


def measure_time(
    model: RoutedNetwork, image_shape: tuple[int, int, int], path_TN: torch.Tensor, macs_T: torch.Tensor
) -> InferenceTime:
    """Time a network and its static form on the network's device.

    Args:
        model: The network, routed or static.
        image_shape: Channels, height and width of an image.
        path_TN: The paths of the test images.
        macs_T: The cost of each path.

    Returns:
        For both, the mean over paths of the fastest of a few calls: other programs on the machine only slow calls down.
    """
    device = next(model.parameters()).device
    order_T = macs_T.argsort(stable=True)
    number = min(IMAGES, len(order_T))
    chosen_I = order_T[((torch.arange(number) + 0.5) * len(order_T) / number).long()]
    path_IN = path_TN[chosen_I].float().to(device)
    threads = THREADS if device.type == "cpu" else None
    with torch.random.fork_rng(devices=[]), torch_threads(threads or torch.get_num_threads()), exact_inference():
        torch.manual_seed(0)
        image_1CHW = torch.randn(1, *image_shape).to(device)
        run, static = _engines(model, image_shape)
        calls: dict[str, Call] = {"static": lambda _index: static(image_1CHW)}
        if model.routers is not None:
            calls["run"] = lambda index: run(image_1CHW, force=path_IN[index])
        times = _times(calls, number, device)
    means = {name: statistics.fmean(map(min, by_path.values())) for name, by_path in times.items()}
    return InferenceTime(
        run_ms=1e3 * means.get("run", means["static"]),
        static_ms=1e3 * means["static"],
        engine=run.name,
        static_engine=static.name,
        device=_model(device),
        threads=threads,
        images=len(times["static"]),
        measured=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _engines(model: RoutedNetwork, image_shape: tuple[int, int, int]) -> tuple[Engine, Engine]:
    """The engine of the network, and the static engine of the same family."""
    run = compile_engine(model, image_shape=image_shape, measure=False)
    if model.routers is None:
        return run, run
    return run, StaticGraphEngine(model) if isinstance(run, GraphEngine) else StaticEngine(model)


def _times(calls: dict[str, Call], number: int, device: torch.device) -> dict[str, dict[int, list[float]]]:
    """Seconds of the calls with each path. The networks take turns, and which one is first alternates."""
    for call in calls.values():  # the first calls allocate memory and select kernels
        call(0)
        call(0)
    names = list(calls)
    times: dict[str, dict[int, list[float]]] = {name: {} for name in names}
    stride = _STRIDE if math.gcd(_STRIDE, number) == 1 else 1
    end = time.perf_counter() + SECONDS
    for turn in range(number * REPEATS):
        if turn >= MIN_PAIRS and time.perf_counter() > end:
            break
        index = turn * stride % number
        for name in names if turn % 2 else reversed(names):
            times[name].setdefault(index, []).append(seconds_of(partial(calls[name], index), device))
    return times


def _model(device: torch.device) -> str:
    """The model of the GPU or CPU."""
    if device.type != "cpu":
        return device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:  # not Linux
        names = []
    return next(filter(None, [*names[:1], platform.processor(), platform.machine()]), "CPU")


def _saved(folder: RunFolder, made_from: dict[str, Any]) -> InferenceTime | None:
    """The saved measurement; None if it is missing, invalid or of another network or machine."""
    file = folder.path / FILE
    if not file.exists():
        return None
    try:
        content = files.read_json(file)
    except UserError:  # a damaged file is replaced
        return None
    if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("made_from") != made_from:
        return None
    values = content.get("time")
    if not isinstance(values, dict) or set(values) != {entry.name for entry in fields(InferenceTime)}:
        return None
    found = InferenceTime(**values)
    numbers, words = (found.run_ms, found.static_ms), (found.engine, found.static_engine, found.device, found.measured)
    valid = all(type(one) in (int, float) and 0 < one < math.inf for one in numbers)
    valid = valid and all(isinstance(one, str) for one in words) and type(found.images) is int
    return found if valid and (found.threads is None or type(found.threads) is int) else None
