"""Finding `kernels.stage_tuning.TUNINGS` for a device: `python -m codinet.tuning.stages --arch resnet110`.

The whole network is timed under each candidate: without routers, and with them when all blocks, half of them at
random, or none run. The last is what every image costs whatever it skips. Candidates are compiled beforehand by
several processes, into Triton's cache; one that does not compile, or does not fit the device, is listed with the
reason. Needs CUDA and Triton.
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
from typing import Any

import torch

from codinet.checks import require_whole
from codinet.engines.graph import GraphEngine, StaticGraphEngine
from codinet.errors import UserError
from codinet.kernels.stage_tuning import WIDTHS, Tuning, tuning_for
from codinet.model import CoDiNet, RoutedNetwork, create_model, require_network

REPEATS = 5  # launches in a graph
REPLAYS = 4
RUN_RATE = 0.5
WORKERS = 14
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NOTHING = float("nan")


@dataclass(frozen=True)
class Timed:
    """The result of a candidate: milliseconds of a batch, or the reason that there are none."""

    batch: int
    tuning: Tuning
    static_ms: float = _NOTHING  # no routers, all blocks
    all_ms: float = _NOTHING
    half_ms: float = _NOTHING
    none_ms: float = _NOTHING
    problem: str = ""


def candidates(batch: int, processors: int) -> list[Tuning]:
    """The tuning of the table, and the same with other numbers of routers evaluated at once."""
    own = tuning_for(WIDTHS, batch, processors)
    return [own, *(_asking(own, *groups) for groups in ((4, 4, 1), (8, 4, 2), (1, 1, 1)))]


def _asking(tuning: Tuning, *groups: int) -> Tuning:
    cuts = tuple(replace(cut, group=group) for cut, group in zip(tuning.cuts, groups, strict=True))
    return replace(tuning, cuts=cuts)


def tune(
    model: RoutedNetwork, batches: Sequence[int], dtype: torch.dtype, *, size: int = 32, workers: int = WORKERS
) -> list[Timed]:
    """Every candidate for batches of square images, in the order tried."""
    require_network(model)
    device = next(model.parameters()).device
    if device.type != "cuda":
        raise UserError(f"Tunings are found on a CUDA device, and the network is on {device}; move it there.")
    for batch in batches:
        require_whole("A batch", batch, 1)
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    assert isinstance(model, CoDiNet)
    tried = [(batch, tuning) for batch in batches for tuning in candidates(batch, processors)]
    problems = _compile_all(model.config.arch, tried, dtype, size, min(workers, os.cpu_count() or 1))
    static, routed = StaticGraphEngine(model, dtype=dtype), GraphEngine(model, dtype=dtype)
    cases: list[tuple[GraphEngine, float]] = [(static, 1.0), (routed, 1.0), (routed, RUN_RATE), (routed, 0.0)]
    found = []
    for (batch, tuning), problem in zip(tried, problems, strict=True):
        row = Timed(batch, tuning, problem=problem)
        if not problem:
            try:
                static_ms, all_ms, half_ms, none_ms = (
                    _milliseconds(_call(engine, tuning, batch, size, rate)) for engine, rate in cases
                )
                row = Timed(batch, tuning, static_ms, all_ms, half_ms, none_ms)
            except Exception as error:  # compiler and driver may fail in any way
                row = replace(row, problem=_short(error))
        found.append(row)
    return found


def _call(
    engine: GraphEngine, tuning: Tuning, batch: int, size: int, run_rate: float, *, compile_only: bool = False
) -> Callable[[], object]:
    """The network on random images, each with blocks drawn at a run rate."""
    engine.tuning = tuning
    launcher, traffic = next(engine.launchers(batch)), engine.traffic(batch, engine.answer(batch))
    generator = torch.Generator(engine.device).manual_seed(0)
    shape = batch, engine.weights.stem_OI33.shape[1], size, size
    images = torch.randn(shape, generator=generator, device=engine.device).to(engine.dtype)
    drawn = torch.rand(batch, engine.blocks, generator=generator, device=engine.device)
    traffic.force_BN.copy_(drawn < run_rate)
    return lambda: (launcher.require_fit if compile_only else launcher)(images, traffic)


@torch.inference_mode()
def _milliseconds(call: Callable[[], object]) -> float:
    """Of one call, without the host's part of it."""
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


_engines: dict[object, GraphEngine] = {}  # of a worker, which compiles many candidates


def _compile(arch: str, dtype: torch.dtype, size: int, candidate: tuple[type[GraphEngine], int, Tuning]) -> str:
    """In a worker: the problem with a candidate, or nothing."""
    kind, batch, tuning = candidate
    torch.set_num_threads(1)
    try:
        if kind not in _engines:
            _engines[kind] = kind(create_model(arch).cuda(), dtype=dtype)
        # The batch size is not a constant of the kernel, so a few images compile the same kernel as many.
        _call(_engines[kind], tuning, min(batch, 2), size, 1.0, compile_only=True)()
    except Exception as error:  # any of the compiler's
        return _short(error)
    return ""


def _compile_all(
    arch: str, tried: Sequence[tuple[int, Tuning]], dtype: torch.dtype, size: int, workers: int
) -> list[str]:
    if workers < 2:
        return [""] * len(tried)  # then each compiles when it is timed
    task = partial(_compile, arch, dtype, size)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        # Without routers it is one kernel, whatever routers would do.
        wanted = [
            ((GraphEngine, batch, tuning), (StaticGraphEngine, batch, _asking(tuning, *[1] * len(tuning.cuts))))
            for batch, tuning in tried
        ]
        futures = {kernel: pool.submit(task, kernel) for both in wanted for kernel in both}
        found: list[str] = []
        for both in wanted:
            try:
                problems = [futures[kernel].result() for kernel in both]
                found.append(next((problem for problem in problems if problem), ""))
            except Exception as error:  # the worker itself died
                found.append(_short(error))
    return found


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1]}"[:100]


def print_table(rows: Sequence[Timed]) -> None:
    """Per batch, the fastest with half of the blocks run first."""
    for batch in dict.fromkeys(row.batch for row in rows):
        print(
            f"batch {batch}, ms: no routers; all blocks, {RUN_RATE:g} of them, none; gain: best without / {RUN_RATE:g}"
        )
        of_batch = [row for row in rows if row.batch == batch]
        best_ms = min((row.static_ms for row in of_batch if not row.problem), default=_NOTHING)
        for row in sorted(of_batch, key=lambda row: (bool(row.problem), row.half_ms)):
            times = (row.static_ms, row.all_ms, row.half_ms, row.none_ms)
            gain = best_ms / row.half_ms
            print("".join(f"{time:9.4f}" for time in times) + f"  gain {gain:5.3f}  {row.tuning}  {row.problem}")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--arch", default="resnet110")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 1024])
    parser.add_argument("--precision", choices=list(DTYPES), default="bfloat16")
    args: Any = parser.parse_args(words)
    if not torch.cuda.is_available():
        parser.error("tunings are found on a CUDA device, and there is none")
    start = time.perf_counter()
    print_table(tune(create_model(args.arch).cuda(), args.batch, DTYPES[args.precision]))
    print(f"took {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
