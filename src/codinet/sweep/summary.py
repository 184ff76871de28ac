"""What a sweep came to: a result for each run, a mean and spread for runs that differ in their seed alone."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from codinet.config import RunConfig, to_dict
from codinet.published import Published
from codinet.runs import RunFolder
from codinet.sweep.front import pareto
from codinet.sweep.grid import Planned

FIGURES = ("accuracy", "cost_share", "macs", "paper_gmaccs", "mean_blocks", "distinct_paths", "path_entropy")


@dataclass(frozen=True)
class Result:
    """A finished run."""

    name: str
    group: str
    config: RunConfig
    figures: dict[str, Any]  # of the test set: `Evaluation.summary`
    environment: dict[str, Any]  # versions, device and commit of its training
    paper: Published | None = None


@dataclass(frozen=True)
class Spread:
    """A figure over seeds."""

    mean: float
    spread: float | None  # the sample's standard deviation; None for a single run
    n: int


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone."""

    name: str
    config: RunConfig  # of the first of them
    seeds: tuple[int, ...]
    figures: dict[str, Spread]
    paper: Published | None
    on_front: bool  # whether no other group is both cheaper (in MACs) and more accurate


def read_result(out: Path, run: Planned) -> Result:
    folder = RunFolder.open(out / run.name)
    return Result(run.name, run.group, run.trained(), folder.load_evaluation(), folder.environment, run.paper)


def spread_of(values: Sequence[float]) -> Spread:
    n, mean = len(values), math.fsum(values) / len(values)
    if n == 1:
        return Spread(mean, None, 1)
    return Spread(mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1)), n)


def summarise(results: Sequence[Result]) -> list[Group]:
    """The groups in the order in which their first runs stand."""
    members: dict[str, list[Result]] = {}
    for result in results:
        members.setdefault(result.group, []).append(result)
    figures = {
        name: {key: spread_of([result.figures[key] for result in group]) for key in FIGURES}
        for name, group in members.items()
    }
    front = pareto([(found["macs"].mean, found["accuracy"].mean) for found in figures.values()])
    return [
        Group(
            name=name,
            config=group[0].config,
            seeds=tuple(result.config.seed for result in group),
            figures=figures[name],
            paper=group[0].paper,
            on_front=place in front,
        )
        for place, (name, group) in enumerate(members.items())
    ]


def document(results: Sequence[Result], groups: Sequence[Group], failures: dict[str, str]) -> dict[str, Any]:
    """All of it, ready for JSON."""
    return {
        "format": 1,
        "units": {
            "accuracy": "percent of the test images",
            "macs": "one per multiply-add, a test image's mean",
            "paper_gmaccs": "the paper's: two per multiply-add for 32×32 nets, one for ImageNet nets",
            "cost_share": "of the static network's MACs",
            "spread": "standard deviation of the sample (n - 1)",
        },
        "runs": [
            {
                "name": result.name,
                "group": result.group,
                "seed": result.config.seed,
                "config": to_dict(result.config),
                "figures": result.figures,
                "environment": result.environment,
            }
            for result in results
        ],
        "groups": [
            {
                "name": group.name,
                "seeds": list(group.seeds),
                "figures": {key: asdict(value) for key, value in group.figures.items()},
                "on_front": group.on_front,
                "paper": group.paper._asdict() if group.paper else None,
            }
            for group in groups
        ],
        "failures": [{"name": name, "reason": reason} for name, reason in failures.items()],
    }
