"""Time CPU engines next to plain torch: `python -m tools.cpu_speed resnet50 timm:convnext_atto --batch 1 32`.

Each network has random weights, and each block is run by half of random images. Three take turns: the network as its
library builds it (torch's modules, channels_last, inference mode), the static engine, and the routed engine that
`codinet predict` uses, `branch` for one image and `gather` for more. Ratios are medians over rounds of elapsed time, so
the machine should be idle. Prints a row per network, batch and number of threads, in Markdown.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import torch
import tyro
from torch import nn

from codinet.adopt import import_vision
from codinet.bench import settle, with_run_rate
from codinet.bench.by_name import create_untrained
from codinet.cost import block_costs
from codinet.engines import BranchEngine, GatherEngine, StaticEngine
from codinet.environment import torch_threads
from codinet.specs import TIMM, TORCHVISION, parse_spec

COLUMNS = (
    *("network", "batch", "threads", "static engine over torch"),
    *("fewer MACs", "routed over static", "realised", "routed over torch"),
)
Call = Callable[[torch.Tensor], object]


class Row(NamedTuple):
    """Speeds relative to each other."""

    static: float  # over torch
    macs: float
    routed: float  # over static

    def cells(self) -> list[str]:
        return [f"{value:.2f}" for value in (*self, self.routed / self.macs, self.routed * self.static)]


def as_torch_runs_it(name: str) -> nn.Module:
    """The static network as its library builds it."""
    spec = parse_spec(name)
    if spec.library == TIMM:
        network = import_vision(TIMM).create_model(spec.name)
    elif spec.library == TORCHVISION:
        network = import_vision(TORCHVISION).models.get_model(spec.name)
    else:
        network = create_untrained(name, routed=False).model
    return network.eval().to(memory_format=torch.channels_last)


def measure(name: str, *, batch: int, threads: int, images: int, rounds: int) -> Row:
    """Time a network; `images` is how many each round has, at least one batch."""
    torch.manual_seed(0)
    untrained, shape, _ = create_untrained(name)
    images_TCHW = torch.randn(max(images, batch), *shape) + torch.randn(max(images, batch), 3, 1, 1)
    model = with_run_rate(settle(untrained, images_TCHW[:16]), images_TCHW[:32], 0.5).eval()
    routed = (BranchEngine if batch == 1 else GatherEngine)(model)
    calls: list[Call] = [as_torch_runs_it(name), StaticEngine(model), routed]
    batches = images_TCHW.contiguous(memory_format=torch.channels_last).split(batch)
    times: list[list[float]] = [[], [], []]
    with torch.inference_mode(), torch_threads(threads):
        path_TN = torch.cat([routed(each).path_BN for each in batches])
        for _ in range(rounds + 1):  # the first one warms up
            for call, taken in zip(calls, times, strict=True):
                start = time.perf_counter()
                for each in batches:
                    call(each)
                taken.append(time.perf_counter() - start)
    plain, static, ours = (taken[1:] for taken in times)
    share = block_costs(model, shape).share(path_TN).mean().item()
    ratios = ([a / b for a, b in zip(*pair, strict=True)] for pair in ((plain, static), (static, ours)))
    static_ratio, routed_ratio = map(median, ratios)
    return Row(static_ratio, 1 / share, routed_ratio)


def main(
    networks: tyro.conf.Positional[tuple[str, ...]],
    /,
    *,
    batch: tuple[int, ...] = (1, 32),
    threads: tuple[int, ...] = (1,),
    images: int = 32,
    rounds: int = 5,
) -> None:
    """Print the table.

    Args:
        networks: Networks by name, as for codinet bench.
        batch: Images at a time.
        threads: Threads of torch.
        images: Images per round, at least one batch.
        rounds: Rounds.
    """
    print(f"| {' | '.join(COLUMNS)} |\n|---|{'---:|' * (len(COLUMNS) - 1)}")
    for name in networks:
        for number in batch:
            for count in threads:
                row = measure(name, batch=number, threads=count, images=images, rounds=rounds)
                print(f"| `{name}` | {number} | {count} | {' | '.join(row.cells())} |", flush=True)


if __name__ == "__main__":
    tyro.cli(main)
