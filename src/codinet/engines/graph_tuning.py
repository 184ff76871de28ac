"""Finding `kernels.stage_tuning.TUNINGS` for a device: `python -m codinet.engines.graph_tuning --arch resnet110`.

Each stage is timed by itself under each candidate, with every block run and with half of them run at random.
Candidates are compiled beforehand by several processes, into Triton's cache; one that does not compile, or does not
fit the device, is listed with the reason. Needs CUDA and Triton.
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

from codinet.engines.graph import GraphEngine
from codinet.errors import UserError
from codinet.kernels.stage_tuning import Tuning
from codinet.model import CoDiNet, RoutedNetwork, create_model

REPEATS = 5  # launches in a graph
REPLAYS = 4
RUN_RATE = 0.5
WORKERS = 12
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Timed:
    """What came of a candidate: milliseconds with all blocks run and with half of them, or why there are none."""

    channels: int
    batch: int
    tuning: Tuning
    all_ms: float
    half_ms: float
    problem: str = ""


def candidates(channels: int, batch: int, processors: int) -> list[Tuning]:
    """What is worth a try at a width."""
    many: dict[int, list[Tuning]] = {
        16: [
            *(Tuning("pairs", 64, 1, 4, registers=cap) for cap in (None, 168, 128)),
            *(Tuning("pairs", 64, 2, 4, registers=cap) for cap in (None, 168)),
            *(Tuning("pairs", 128, stages, 8, registers=cap) for stages, cap in ((1, None), (1, 128), (2, None))),
            *(Tuning("pairs", 32, stages, 2) for stages in (1, 2)),
            *(Tuning("rows", 64, stages, 4) for stages in (1, 2)),
            Tuning("rows", 128, 1, 4),
        ],
        32: [
            *(Tuning("rows", 64, 1, 4, registers=cap) for cap in (None, 168, 128)),
            *(Tuning("rows", 64, 2, 4, registers=cap) for cap in (None, 168)),
            *(Tuning("rows", 128, stages, 8, registers=cap) for stages, cap in ((1, None), (1, 128), (2, None))),
            Tuning("rows", 256, 1, 16),
            *(Tuning("pairs", 64, stages, 8) for stages in (1, 2)),
            *(Tuning("taps", 128, stages, 4) for stages in (1, 3)),
        ],
        64: [
            *(Tuning("taps", 64, 1, 4, registers=cap) for cap in (None, 128)),
            *(Tuning("taps", 64, stages, 4) for stages in (2, 3, 4)),
            Tuning("taps", 64, 3, 4, registers=128),
            *(Tuning("taps", 64, stages, 4, channels=32) for stages in (1, 3)),
            *(Tuning("taps", 64, stages, 8) for stages in (1, 2, 3, 4)),
        ],
    }
    few: dict[int, list[Tuning]] = {
        16: [
            *(Tuning("pairs", 64, 1, 4, split=split) for split in (2, 4, 8)),
            Tuning("pairs", 64, 2, 4, split=2),
            Tuning("pairs", 32, 1, 4, split=16),
            *(Tuning("pairs", 128, 1, 8, split=split) for split in (2, 4)),
            *(Tuning("pairs", 256, 1, warps) for warps in (8, 16)),
            Tuning("pairs", 512, 1, 16),
        ],
        32: [
            *(Tuning("rows", 64, 1, 4, split=split) for split in (2, 4)),
            Tuning("rows", 32, 1, 4, split=8),
            *(Tuning("rows", 128, 1, 8, split=split) for split in (1, 2)),
            Tuning("rows", 256, 1, 16),
            Tuning("taps", 64, 3, 4, channels=16, split=8),
            Tuning("taps", 64, 3, 4, split=4),
        ],
        64: [
            *(Tuning("taps", 64, stages, 4, channels=16, split=4) for stages in (2, 3, 4)),
            *(Tuning("taps", 64, stages, 4, channels=32, split=2) for stages in (3, 4)),
            Tuning("taps", 32, 4, 4, channels=16, split=8),
            *(Tuning("taps", 64, stages, warps) for stages, warps in ((3, 8), (4, 8), (3, 4))),
        ],
    }
    if batch * 2 > processors:
        return many.get(channels, [Tuning("taps", 64, 2, 4)])
    return [tuning for tuning in few.get(channels, []) if tuning.split * batch <= processors]


def tune(
    model: RoutedNetwork, batch: int, dtype: torch.dtype, *, size: int = 32, workers: int = WORKERS
) -> list[Timed]:
    """Every candidate of every stage for a batch of square images, in the order tried."""
    device = next(model.parameters()).device
    if device.type != "cuda":
        raise UserError("Tunings are found on a CUDA device; move the network there.")
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    engine = GraphEngine(model, dtype=dtype)
    tried = [
        (place, tuning)
        for place, stage in enumerate(engine.stages)
        for tuning in candidates(stage.channels, batch, processors)
    ]
    assert isinstance(model, CoDiNet)
    problems = _compile_all(model.config.arch, tried, batch, dtype, size, min(workers, os.cpu_count() or 1))
    found = []
    for (place, tuning), problem in zip(tried, problems, strict=True):
        channels = engine.stages[place].channels
        row = Timed(channels, batch, tuning, float("nan"), float("nan"), problem)
        if not problem:
            try:
                times = [_milliseconds(_call(engine, place, tuning, batch, size, rate)) for rate in (1.0, RUN_RATE)]
                row = replace(row, all_ms=times[0], half_ms=times[1])
            except Exception as error:  # a candidate may fail in any of the compiler's and the driver's ways
                row = replace(row, problem=_short(error))
        found.append(row)
    return found


def _call(
    engine: GraphEngine,
    place: int,
    tuning: Tuning,
    batch: int,
    size: int,
    run_rate: float,
    *,
    compile_only: bool = False,
) -> Callable[[], object]:
    """A stage on random features, at a run rate."""
    from codinet.kernels.stage_launch import Traffic

    launch = engine.stage(place, tuning)
    sides = -(-size // max(2 ** (place - 1), 1))  # of the features that enter: the first stage keeps them
    generator = torch.Generator(engine.device).manual_seed(place)

    def draw(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, device=engine.device)

    x_BHWC = draw(batch, sides, sides, launch.channels_in).to(engine.dtype)
    shape = batch, engine.blocks
    force_BN = (draw(*shape) < run_rate).to(torch.int8)
    traffic = Traffic(
        torch.zeros(1, device=engine.device),
        force_BN,
        torch.empty(*shape, 2, device=engine.device),
        torch.empty(shape, device=engine.device),
    )
    pooled_BC = draw(batch, launch.channels_in)
    ticket_B = torch.zeros(batch, dtype=torch.int32, device=engine.device)

    def call() -> object:
        ticket_B.zero_()
        return launch(x_BHWC.clone(), pooled_BC, traffic, ticket_B, pools=True, compile_only=compile_only)

    return call


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


_engines: dict[tuple[str, torch.dtype], GraphEngine] = {}  # of a worker, which compiles many candidates


def _compile(arch: str, batch: int, dtype: torch.dtype, size: int, candidate: tuple[int, Tuning]) -> str:
    """In a worker: the problem with a candidate, or nothing."""
    torch.set_num_threads(1)
    try:
        if (arch, dtype) not in _engines:
            _engines[arch, dtype] = GraphEngine(create_model(arch).cuda(), dtype=dtype)
        # Compiled for few images just as for many: the batch is no constant of the kernel.
        _call(_engines[arch, dtype], *candidate, min(batch, 2), size, 1.0, compile_only=True)()
    except Exception as error:  # any of the compiler's
        return _short(error)
    return ""


def _compile_all(
    arch: str, tried: Sequence[tuple[int, Tuning]], batch: int, dtype: torch.dtype, size: int, workers: int
) -> list[str]:
    if workers < 2:
        return [""] * len(tried)  # then each compiles when it is timed
    task = partial(_compile, arch, batch, dtype, size)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(task, candidate) for candidate in tried]
        found: list[str] = []
        for future in futures:
            try:
                found.append(future.result())
            except Exception as error:  # the worker itself died
                found.append(_short(error))
    return found


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1]}"[:100]


def print_table(rows: Sequence[Timed]) -> None:
    """Per width and batch, the fastest with half of the blocks run first."""
    groups = dict.fromkeys((row.batch, row.channels) for row in rows)
    for batch, channels in groups:
        print(f"batch {batch}, {channels} channels: ms with all blocks run, with {RUN_RATE:g} of them")
        of_group = [row for row in rows if (row.batch, row.channels) == (batch, channels)]
        for row in sorted(of_group, key=lambda row: (bool(row.problem), row.half_ms)):
            print(f"  {row.all_ms:9.4f} {row.half_ms:9.4f}  {row.tuning}  {row.problem}")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--arch", default="resnet110")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 1024])
    parser.add_argument("--precision", choices=list(DTYPES), default="bfloat16")
    args: Any = parser.parse_args(words)
    if not torch.cuda.is_available():
        parser.error("tunings are found on a CUDA device, and there is none")
    model = create_model(args.arch).cuda()
    for batch in args.batch:
        start = time.perf_counter()
        print_table(tune(model, batch, DTYPES[args.precision]))
        print(f"batch {batch} took {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
