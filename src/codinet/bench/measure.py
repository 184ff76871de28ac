"""Timing engines against each other on one machine, so that its noise hits all alike.

Work is cut into rounds. In each round every engine answers the same images, one call after the other, and the
order of the engines turns from round to round. A speed-up is the median over rounds of the static net's time over
the engine's: what slows a whole round cancels out. The first calls are not counted.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from codinet.bench.contest import Call, Contestant
from codinet.bench.memory import peak_mb
from codinet.cost import CostTable

WARM_UP = 2  # calls


@dataclass(frozen=True)
class Setting:
    """What all rows of a measurement share."""

    batch: int
    threads: int
    device: torch.device
    precision: str


def measure(
    contest: Sequence[Contestant],
    images_TCHW: torch.Tensor,
    table: CostTable,
    setting: Setting,
    *,
    rounds: int,
) -> list[dict[str, Any]]:
    """One row per contestant. All batches of `setting.batch` that the images give are answered in each round."""
    batches = [part for part in images_TCHW.split(setting.batch) if len(part) == setting.batch]
    first = batches[0]
    memory = {entry.name: peak_mb(lambda entry=entry: entry.call(first), setting.device) for entry in contest}  # type: ignore[misc]
    macs = {entry.name: _mean_macs(entry, batches, table) for entry in contest}
    for entry in contest:
        for _ in range(WARM_UP):
            entry.call(first)
    calls: dict[str, list[float]] = {entry.name: [] for entry in contest}
    totals: dict[str, list[float]] = {entry.name: [] for entry in contest}
    for number in range(rounds):
        turn = number % len(contest)
        for entry in [*contest[turn:], *contest[:turn]]:
            times = [_seconds(entry.call, part, setting.device) for part in batches]
            calls[entry.name] += times
            totals[entry.name].append(sum(times))
    best = {
        family: min((entry.name for entry in contest if entry.static and entry.family == family), key=_by(totals))
        for family in {entry.family for entry in contest}
    }
    rows = []
    for entry in contest:
        base = best[entry.family]
        ratios = [one / own for one, own in zip(totals[base], totals[entry.name], strict=True)]
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
                "images_per_s": setting.batch * len(batches) / statistics.median(totals[entry.name]),
                "mac_speedup": mac_speedup,
                "speedup": speedup,
                "realised": speedup / mac_speedup,
                "against": base,
                "peak_mb": memory[entry.name],
            }
        )
    return rows


def _by(totals: dict[str, list[float]]) -> Any:
    return lambda name: statistics.median(totals[name])


def _mean_macs(entry: Contestant, batches: Sequence[torch.Tensor], table: CostTable) -> float:
    """Of an image, routers included where there are any. The reference is judged by what it could have saved."""
    if entry.static:
        return table.static_macs
    paths_TN = torch.cat([entry.call(part).path_BN.cpu() for part in batches])
    return table.path_macs(paths_TN).mean().item()


def _seconds(call: Call, images_BCHW: torch.Tensor, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    call(images_BCHW)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
