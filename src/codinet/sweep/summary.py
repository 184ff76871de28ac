"""The results of a sweep: one per run, mean and standard deviation over seeds, and the Pareto front."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from codinet.config import RunConfig, to_dict
from codinet.errors import UserError
from codinet.published import Published
from codinet.sweep.plan import PlannedRun


@dataclass(frozen=True)
class Result:
    """A finished run."""

    name: str
    group: str
    config: RunConfig
    figures: dict[str, Any]  # `Evaluation.summary` of the test images, or of the held-out ones of the last epoch
    environment: dict[str, Any]  # versions, device and commit of the training
    paper: Published | None = None


@dataclass(frozen=True)
class Spread:
    """A figure over seeds."""

    mean: float
    spread: float | None  # sample standard deviation; None for a single run
    n: int


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed."""

    name: str
    config: RunConfig  # of the first run
    seeds: tuple[int, ...]
    figures: dict[str, Spread]
    paper: Published | None
    on_front: bool  # whether the group is on the Pareto front of accuracy and MACs


def read_result(out: Path, run: PlannedRun) -> Result:
    """Read the result of a finished run from the sweep folder `out`."""
    from codinet.evaluate import COMPARED_FIGURES
    from codinet.runs import open_run

    folder = open_run(out / run.name)
    figures = folder.load_evaluation()
    if run.config.data.holdout:
        last = next(iter(folder.metrics()[-1:]), {})
        if not last.keys() >= {*COMPARED_FIGURES, "n"}:
            raise UserError(f"{folder.path}/metrics.jsonl lacks the figures of the held-out images; train again.")
        last["loss"] = last.get("held_loss")  # its own one is that of the training
        figures = {name: last[name] for name in figures if last.get(name) is not None}
    return Result(run.name, run.group, run.training_config(), figures, folder.environment, run.paper)


def images_of(groups: Sequence[Group]) -> str:
    """Which images the figures of a sweep's groups are of."""
    return "held-out images" if any(group.config.data.holdout for group in groups) else "test images"


def spread_of(values: Sequence[float]) -> Spread:
    """Mean and sample standard deviation of at least one value."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), deviation, len(values))


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """The Pareto front of (cost, accuracy) points.

    A point dominates another if it costs no more, is at least as accurate, and is better in one of the two. Equal
    points do not dominate each other.

    Returns:
        The indices of the points that no other dominates, cheapest first.
    """
    order = sorted(range(len(points)), key=lambda index: (points[index][0], -points[index][1]))
    front: list[int] = []
    last = (math.inf, -math.inf)  # the last point on the front so far
    for index in order:
        if points[index][1] > last[1] or tuple(points[index]) == last:
            front.append(index)
            last = (points[index][0], points[index][1])
    return front


def summarise(results: Sequence[Result]) -> list[Group]:
    """Group the results by everything but the seed.

    Returns:
        The groups, in the order of their first results.
    """
    from codinet.evaluate import COMPARED_FIGURES

    members: dict[str, list[Result]] = {}
    for result in results:
        members.setdefault(result.group, []).append(result)
    figures = {
        name: {key: spread_of([result.figures[key] for result in group]) for key in COMPARED_FIGURES}
        for name, group in members.items()
    }
    front = pareto([(values["macs"].mean, values["accuracy"].mean) for values in figures.values()])
    return [
        Group(
            name=name,
            config=group[0].config,
            seeds=tuple(result.config.seed for result in group),
            figures=figures[name],
            paper=group[0].paper,
            on_front=index in front,
        )
        for index, (name, group) in enumerate(members.items())
    ]


def to_document(results: Sequence[Result], groups: Sequence[Group], failures: dict[str, str]) -> dict[str, Any]:
    """The content of `results.json`."""
    return {
        "format": 1,
        "units": {
            "accuracy": f"percent of the {images_of(groups)}",
            "macs": f"one per multiply-add, mean over the {images_of(groups)}",
            "paper_gmaccs": "the paper's: two per multiply-add for 32×32 networks, one for ImageNet networks",
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
