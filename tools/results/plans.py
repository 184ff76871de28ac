"""The plans of runs whose results are published, and which of their runs have no result yet."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from codinet.config import RunConfig, flat, from_dict, to_dict
from codinet.errors import unknown
from codinet.presets import best, paper
from codinet.sweep.plan import (
    METHODS,
    Grid,
    Overrides,
    PlannedRun,
    Row,
    SweepMethod,
    canonical,
    method_of,
    plan,
    plan_rows,
    with_teacher_views,
)
from tools.results.record import Record

SEEDS = 0, 1, 2
_SHORT = Overrides(epochs=30, finetune=4, watch="train")
_COMPARED = "codinet", "vanilla", "convaig", "skipnet", "blockdrop", "act", "sact", "random", "fixed"


@dataclass(frozen=True)
class Plan:
    """Runs, and the table of `docs/results.md` that lists them."""

    table: str
    make: Callable[[], list[PlannedRun]]


def _methods() -> list[PlannedRun]:
    """Every method on ResNet-32 at 0.40 and 0.65, and on ResNet-110 at 0.57 with one seed."""
    base = _SHORT.apply(best("cifar10"))
    settings = [("resnet32", budget, seed) for budget in (0.4, 0.65) for seed in SEEDS] + [("resnet110", 0.57, 0)]
    rows: list[Row] = []
    for arch, budget, seed in settings:
        config = replace(base, seed=seed, network=replace(base.network, arch=arch))
        routed = replace(config, losses=replace(config.losses, budget=budget))
        rows += [(METHODS[method](routed), None) for method in _COMPARED]
        gates = replace(routed, network=replace(routed.network, router="cnn"))  # SkipNet's feed-forward ones
        rows.append((METHODS["skipnet"](gates), None))
        rows.append((METHODS["static"](Overrides(epochs=34).apply(config)), None))  # as many as the others in all
    return plan_rows(rows, gpu=True)


def _starts() -> list[PlannedRun]:
    """Whether a static start helps or hurts, with and without a teacher; one seed after the other."""
    grid = Grid(("resnet32",), ("vanilla", "codinet"), budget=(0.4,), start=("none", "static"), seed=SEEDS)
    runs = plan(_SHORT.apply(best("cifar10")), replace(grid, teacher=("none", "static")), gpu=True)
    return sorted(runs, key=lambda run: run.config.seed)


_PAPER = {
    "cifar10": (("resnet32", 0.65, SEEDS), ("resnet74", 0.55, (0,)), ("resnet110", 0.57, (0,))),
    "cifar100": (("resnet32", 0.64, (0,)), ("resnet110", 0.47, (0,))),
}


def _paper(source: str) -> list[PlannedRun]:
    """The paper's own recipe: static, vanilla routing and CoDiNet, from scratch, 250 + 20 epochs."""
    base = Overrides(watch="train").apply(paper(source))
    methods = "static", "vanilla", "codinet"
    grids = [Grid((arch,), methods, budget=(budget,), seed=seeds) for arch, budget, seeds in _PAPER[source]]
    return [run for grid in grids for run in plan(base, grid, gpu=True)]


class _Point(NamedTuple):
    """A routed network on the frontier."""

    arch: str
    budget: float
    equal: str | None  # a static network of about the same cost, unless another point has it
    start: str | None = None  # a network of the zoo, which has been trained already; otherwise from scratch


# The most important first.
_POINTS = {
    "cifar10": (
        _Point("resnet110", 0.57, "resnet62", start="zoo:cifar10-resnet110-057"),
        _Point("resnet26", 0.905, "resnet26"),
        _Point("resnet56", 0.39, None),
    ),
    "cifar100": (
        _Point("resnet110", 0.47, "resnet56", start="zoo:cifar100-resnet110-047-v2"),
        _Point("resnet32", 0.64, "resnet20"),
    ),
}
_SCRATCH, _STARTED = 216, 110  # epochs in all
_VIEWS = 32  # of an image that the teacher sees


def _frontier(source: str) -> list[PlannedRun]:
    """Routed networks near the best cost for their accuracy, and static networks of equal cost with the same teacher.

    Stage 2 has half of the epochs and the learning rate of stage 1, which held-out images favour (docs/log.md,
    2026-11-20). Vanilla routing is trained where both start from scratch, because the networks of the zoo were trained
    with the path losses.
    """

    def one(
        epochs: int, arch: str, method: SweepMethod, budget: float | None = None, start: str | None = None
    ) -> PlannedRun:
        config = Overrides(epochs=epochs, watch="train", cutout=8).apply(best(source))
        if budget is not None:
            schedule = replace(
                config.schedule, epochs=epochs // 2, finetune=epochs // 2, finetune_lr=config.schedule.lr
            )
            config = replace(config, schedule=schedule)
        if start is not None:  # with the decay that the network was trained with
            config = replace(config, losses=replace(config.losses, score_decay=1e-4))
        grid = Grid((arch,), (method,), budget=(budget,) if budget else (), start=(start,) if start else ())
        (run,) = plan(config, grid, gpu=True)
        return run

    teacher, routed, static = one(80, "resnet32x4", "static"), [], []
    for point in _POINTS[source]:
        if point.start is not None:
            routed.append(one(_STARTED, point.arch, "codinet", point.budget, point.start))
        else:
            routed += [one(_SCRATCH, point.arch, method, point.budget) for method in ("codinet", "vanilla")]
        if point.equal is not None:
            static.append(one(_SCRATCH, point.equal, "static"))
    taught = [replace(run, depends_on=teacher.name, links=("teacher",)) for run in (*routed, *reversed(static))]
    return with_teacher_views([teacher, *taught], _VIEWS)


PLANS = {
    "methods": Plan("methods", _methods),
    "starts": Plan("starts", _starts),
    "paper": Plan("results", partial(_paper, "cifar10")),
    "paper-cifar100": Plan("results", partial(_paper, "cifar100")),
    "frontier": Plan("results", partial(_frontier, "cifar10")),
    "frontier-cifar100": Plan("results", partial(_frontier, "cifar100")),
}


def plan_named(name: str) -> Plan:
    """The plan of a name."""
    if name not in PLANS:
        raise unknown("plan", name, PLANS)
    return PLANS[name]


def without_result(planned: Iterable[PlannedRun], records: Sequence[Record], table: str) -> list[PlannedRun]:
    """The runs that no record of a table has, and the runs that they depend on."""
    known = [_training(from_dict(record["config"])) for record in records if table in record["tables"]]
    runs = list(planned)
    missing = {run.name for run in runs if _training(run.training_config()) not in known}
    for run in reversed(runs):  # a run is after the one that it depends on
        if run.name in missing and run.depends_on:
            missing.add(run.depends_on)
    return [run for run in runs if run.name in missing]


def listed_elsewhere(planned: Iterable[PlannedRun], records: Iterable[Record], table: str) -> list[Record]:
    """The records of planned runs that only other tables list, except for runs that use another run's weights."""
    wanted = [_training(run.training_config()) for run in planned if not run.links]
    others = (record for record in records if table not in record["tables"])
    return [record for record in others if _training(from_dict(record["config"])) in wanted]


def _training(config: RunConfig) -> dict[str, Any]:
    """What determines a training, apart from which run it starts or learns from."""
    settings = flat(to_dict(canonical(config))) | {"method": method_of(config)}  # which two configs can give
    for link in ("start", "teacher"):
        settings[link] = settings[link] is not None
        del settings[f"{link}_sha256"]
    return settings
