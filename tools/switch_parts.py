"""Times the parts of the `switch` engine on a GPU: `python -m tools.switch_parts resnet50 --batch 1 64`.

The stem, each router, each shortcut, the head and each block at some numbers of images are recorded as CUDA graphs of
their own and timed. Then whole calls are timed with no block run, half of them and all of them. Needs CUDA.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from codinet.bench.by_name import create_untrained
from codinet.cuda_graphs import capture
from codinet.cuda_switch import Body, Decisions, Result
from codinet.engines.switch import SwitchEngine
from codinet.kernels.rows import Listed

REPEATS, REPLAYS = 10, 5
DEVICE = torch.device("cuda")


def microseconds(function: Callable[[], Any]) -> float:
    """The time of one call among calls that follow each other in a CUDA graph."""

    def repeated() -> None:
        for _ in range(REPEATS):
            function()

    graph, _ = capture(repeated, DEVICE, warm_ups=1, benchmark=True)
    return replayed(graph.replay) / REPEATS


def replayed(launch: Callable[[], None]) -> float:
    """Microseconds of a graph among launches of it that follow each other."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    launch()
    start.record()
    for _ in range(REPLAYS):
        launch()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1000 / REPLAYS


def kernels(function: Callable[[], Any]) -> list[tuple[str, float]]:
    """The kernels of one call, with their microseconds."""
    function()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        function()
        torch.cuda.synchronize()
    events = [(event.name[:60], round(event.device_time_total, 1)) for event in profile.events()]
    return [(name, us) for name, us in events if us]  # calls of the driver take none


class Timer:
    """A recorder that times each part instead of recording it."""

    def __init__(self, details: bool, listed: Listed | None) -> None:
        self.rows: list[dict[str, Any]] = []
        self.details, self.listed = details, listed

    def _add(self, name: str, function: Callable[[], Any]) -> None:
        row: dict[str, Any] = {"part": name, "us": round(microseconds(function), 1)}
        self.rows.append(row | ({"kernels": kernels(function)} if self.details else {}))

    def record(self, function: Callable[[], Result]) -> Result:
        result = function()
        inner = function.func if isinstance(function, partial) else function
        self._add(getattr(inner, "__qualname__", type(inner).__name__), function)
        return result

    def switch(self, block: int, parts_PB2: torch.Tensor, decisions: Decisions, body: Body) -> None:
        if self.listed is not None:
            assert self.listed.number is not None
            for number in sorted({0, decisions.batch // 2, decisions.batch}):
                self.listed.number.fill_(number)
                self._add(f"block {block}, {number} images", partial(body, self.listed))
            return
        decisions.index.copy_(torch.arange(len(decisions.index), device=DEVICE).clamp(max=decisions.batch - 1))
        for size in sorted({decisions.sizes[len(decisions.sizes) // 2 - 1], decisions.sizes[-1]}):
            self._add(f"block {block}, {size} images", partial(body, Listed(decisions.index[:size])))


def calls(engine: SwitchEngine, images: torch.Tensor, share: float, rounds: int = 30) -> tuple[float, float, float]:
    """Microseconds of a call on a forced path with a share of the blocks, of the host alone, and of the graph alone."""
    number = len(engine.net.blocks)
    path = (torch.arange(number, device=DEVICE) * share % 1 + share >= 1).float() if share else torch.zeros(number)
    path_BN = path.to(DEVICE).expand(len(images), number)
    engine(images, force=path_BN)
    torch.cuda.synchronize()
    host, whole = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        engine(images, force=path_BN)
        middle = time.perf_counter()
        torch.cuda.synchronize()
        host.append(middle - start)
        whole.append(time.perf_counter() - start)
    launch = engine.ready[tuple(images.shape)].launch
    assert launch is not None
    return sorted(whole)[rounds // 2] * 1e6, sorted(host)[rounds // 2] * 1e6, replayed(launch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", help="as for codinet bench, e.g. resnet50 or timm:convnext_tiny")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--details", action="store_true", help="name the kernels of each part")
    parser.add_argument("--json", action="store_true", help="print one JSON document per batch")
    args = parser.parse_args()
    network = create_untrained(args.network)
    engine = SwitchEngine(network.model.to(DEVICE, torch.bfloat16).eval())
    for batch in args.batch:
        images = torch.randn(batch, *network.image_shape, device=DEVICE, dtype=torch.bfloat16)
        with torch.inference_mode():
            engine(images)
            plan = engine.ready[tuple(images.shape)]
            timer = Timer(args.details, None if plan.listing is None else plan.listing.listed)
            timer._add("fill", partial(plan.stem.fill, images))
            plan._forward(timer)
            whole = {share: [round(us, 1) for us in calls(engine, images, share)] for share in (0.0, 0.5, 1.0)}
        if args.json:
            print(json.dumps({"batch": batch, "parts": timer.rows, "calls": whole}))
            continue
        for row in timer.rows:
            print(f"{batch:5} {row['us']:9.1f}  {row['part']}")
            for name, us in row.get("kernels", []):
                print(f"{'':16} {us:8.1f}  {name}")
        for share, (us, host, graph) in whole.items():
            print(f"{batch:5} {us:9.1f}  a call with {share} of the blocks; the host takes {host}, the graph {graph}")


if __name__ == "__main__":
    main()
