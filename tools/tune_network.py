"""Measures tunings of the network kernel on a GPU: `python -m tools.tune_network --arch resnet110 --batch 1 1024`.

The whole network is timed under each candidate: without routers, and with routers while all blocks, a random half or
none of them run. The last case is the fixed cost of an image. Worker processes compile the candidates beforehand, into
Triton's cache. Candidates that do not compile or do not fit the device are listed with the reason. Copy the best ones
into `network_tuning.TUNINGS`. Needs CUDA and Triton.
"""

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import torch

from codinet.checks import require_whole
from codinet.create import create_model
from codinet.engines.graph import GraphEngine, StaticGraphEngine
from codinet.errors import UserError
from codinet.kernels.network.network_tuning import Tuning, tunings_for
from codinet.model import CoDiNet, RoutedNetwork, require_network

REPEATS = 5  # launches per graph
REPLAYS = 4
RUN_RATE = 0.5
WORKERS = 14
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NAN = float("nan")


@dataclass(frozen=True)
class Timing:
    """Milliseconds per batch under a tuning, or the problem that prevented the measurement."""

    batch: int
    tuning: Tuning
    static_ms: float = _NAN  # no routers, all blocks run
    all_ms: float = _NAN
    half_ms: float = _NAN
    none_ms: float = _NAN
    problem: str = ""


def candidates(batch: int, processors: int) -> list[Tuning]:
    """Returns the tuning in use, and the same with other numbers of routers evaluated at once."""
    current = tunings_for(batch, processors)[0]
    return [current, *(_with_lookahead(current, *counts) for counts in ((4, 4, 1), (8, 4, 2), (1, 1, 1)))]


def _with_lookahead(tuning: Tuning, *counts: int) -> Tuning:
    cuts = tuple(replace(cut, lookahead=count) for cut, count in zip(tuning.cuts, counts, strict=True))
    return replace(tuning, cuts=cuts)


def tune(
    model: RoutedNetwork, batches: Sequence[int], dtype: torch.dtype, *, size: int = 32, workers: int = WORKERS
) -> list[Timing]:
    """Measures every candidate.

    Args:
        model: A network on a CUDA device.
        batches: Batch sizes.
        dtype: The dtype of the engine.
        size: Height and width of the images.
        workers: Processes that compile kernels.

    Returns:
        One timing per batch size and candidate.
    """
    require_network(model)
    device = next(model.parameters()).device
    if device.type != "cuda":
        raise UserError(f"Tuning requires a network on a CUDA device, got one on {device}.")
    for batch in batches:
        require_whole("The batch size", batch, 1)
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    assert isinstance(model, CoDiNet)
    tried = [(batch, tuning) for batch in batches for tuning in candidates(batch, processors)]
    problems = _compile_all(model.config.arch, tried, dtype, size, min(workers, os.cpu_count() or 1))
    static, routed = StaticGraphEngine(model, dtype=dtype), GraphEngine(model, dtype=dtype)
    cases: list[tuple[GraphEngine, float]] = [(static, 1.0), (routed, 1.0), (routed, RUN_RATE), (routed, 0.0)]
    timings = []
    for (batch, tuning), problem in zip(tried, problems, strict=True):
        timing = Timing(batch, tuning, problem=problem)
        if not problem:
            try:
                static_ms, all_ms, half_ms, none_ms = (
                    _milliseconds(_prepare(engine, tuning, batch, size, rate)) for engine, rate in cases
                )
                timing = Timing(batch, tuning, static_ms, all_ms, half_ms, none_ms)
            except Exception as error:  # compiler and driver may raise anything
                timing = replace(timing, problem=_summary(error))
        timings.append(timing)
    return timings


def _prepare(
    engine: GraphEngine, tuning: Tuning, batch: int, size: int, run_rate: float, *, compile_only: bool = False
) -> Callable[[], object]:
    """Returns a function that launches the network on random images and random paths with this run rate."""
    engine.tuning = tuning
    launcher, buffers = next(engine.launchers(batch)), engine.launch_buffers(batch, engine.new_outputs(batch))
    generator = torch.Generator(engine.device).manual_seed(0)
    shape = batch, engine.weights.stem_OI33.shape[1], size, size
    images = torch.randn(shape, generator=generator, device=engine.device).to(engine.dtype)
    uniform_BN = torch.rand(batch, engine.blocks, generator=generator, device=engine.device)
    buffers.force_BN.copy_(uniform_BN < run_rate)
    return lambda: (launcher.require_fit if compile_only else launcher)(images, buffers)


@torch.inference_mode()
def _milliseconds(call: Callable[[], object]) -> float:
    """Returns the device time of one call."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            call()
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / REPEATS)
    return statistics.median(times)


_engines: dict[object, GraphEngine] = {}  # of a worker process, reused between candidates


def _compile(arch: str, dtype: torch.dtype, size: int, candidate: tuple[type[GraphEngine], int, Tuning]) -> str:
    """Compiles a candidate in a worker process; returns the problem, or an empty string."""
    kind, batch, tuning = candidate
    torch.set_num_threads(1)
    try:
        if kind not in _engines:
            _engines[kind] = kind(create_model(arch).cuda(), dtype=dtype)
        # The batch size is not a constant of the kernel, so a few images compile the same kernel as many.
        _prepare(_engines[kind], tuning, min(batch, 2), size, 1.0, compile_only=True)()
    except Exception as error:  # the compiler may raise anything
        return _summary(error)
    return ""


def _compile_all(
    arch: str, tried: Sequence[tuple[int, Tuning]], dtype: torch.dtype, size: int, workers: int
) -> list[str]:
    """Compiles all candidates in worker processes; returns the problem of each, or an empty string."""
    if workers < 2:
        return [""] * len(tried)  # each is compiled when it is timed
    task = partial(_compile, arch, dtype, size)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        # The kernel without routers is the same for every lookahead.
        kernels = [
            ((GraphEngine, batch, tuning), (StaticGraphEngine, batch, _with_lookahead(tuning, *[1] * len(tuning.cuts))))
            for batch, tuning in tried
        ]
        futures = {kernel: pool.submit(task, kernel) for both in kernels for kernel in both}
        problems: list[str] = []
        for both in kernels:
            try:
                found = [futures[kernel].result() for kernel in both]
                problems.append(next((problem for problem in found if problem), ""))
            except Exception as error:  # the worker died
                problems.append(_summary(error))
    return problems


def _summary(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1]}"[:100]


def print_table(timings: Sequence[Timing]) -> None:
    """Prints the timings of each batch size, sorted by the time with half of the blocks run."""
    for batch in dict.fromkeys(timing.batch for timing in timings):
        print(f"batch {batch}, ms: no routers | all blocks run | {RUN_RATE:g} run | none run")
        rows = [timing for timing in timings if timing.batch == batch]
        best_ms = min((row.static_ms for row in rows if not row.problem), default=_NAN)
        for row in sorted(rows, key=lambda row: (bool(row.problem), row.half_ms)):
            times = (row.static_ms, row.all_ms, row.half_ms, row.none_ms)
            gain = best_ms / row.half_ms  # over the fastest network without routers
            print("".join(f"{time:9.4f}" for time in times) + f"  gain {gain:5.3f}  {row.tuning}  {row.problem}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure tunings of the network kernel on a GPU.")
    parser.add_argument("--arch", default="resnet110")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 1024])
    parser.add_argument("--precision", choices=list(DTYPES), default="bfloat16")
    args = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("tuning requires a CUDA device")
    start = time.perf_counter()
    print_table(tune(create_model(args.arch).cuda(), args.batch, DTYPES[args.precision]))
    print(f"took {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
