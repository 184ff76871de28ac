"""From axes to runs: every combination of the values asked for, each once, each with a name of its own."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from codinet.config import RunConfig, resolve
from codinet.errors import UserError, unknown
from codinet.presets import as_static
from codinet.published import Published
from codinet.sweep.methods import METHODS, canonical
from codinet.sweep.naming import names_of


@dataclass(frozen=True)
class Grid:
    """Values to combine; an axis without any keeps the recipe's own."""

    arch: tuple[str, ...] = ()
    """Networks, of `codinet models`."""
    method: tuple[Literal["static", "vanilla", "con", "div", "codinet"], ...] = ()
    """No routing; routing alone; with the consistency loss, the diversity loss, or both."""
    router: tuple[Literal["fc", "cnn", "rnn"], ...] = ()
    """Routers."""
    relaxation: tuple[Literal["gumbel", "straight-through"], ...] = ()
    """Relaxations of stage 1."""
    budget: tuple[float, ...] = ()
    """Shares of the static network's MACs to meet."""
    gamma: tuple[float, ...] = ()
    """Fixed weights of the cost loss. Beside --budget, these are further runs, not combinations."""
    alpha: tuple[float, ...] = ()
    """Weights of the consistency loss."""
    beta: tuple[float, ...] = ()
    """Weights of the diversity loss."""
    m_c: tuple[float, ...] = ()
    """Margins of the consistency loss."""
    m_d: tuple[float, ...] = ()
    """Margins of the diversity loss."""
    seed: tuple[int, ...] = ()
    """Seeds; runs that differ in nothing else become one row, mean ± spread."""


@dataclass(frozen=True)
class Planned:
    """A run to be trained."""

    name: str  # of its folder
    group: str  # the name without the seed
    config: RunConfig  # resolved
    paper: Published | None = None  # the row of the paper that it should come to
    after: str | None = None  # name of the run of the plan that it starts from and is taught by

    def trained(self, out: Path = Path()) -> RunConfig:
        """The config that is trained in a sweep's folder; without the folder, other runs stand there by name."""
        if self.after is None:
            return self.config
        source = str(out / self.after)
        return resolve(replace(self.config, extra=replace(self.config.extra, start=source, teacher=source)))


def plan(base: RunConfig, grid: Grid | None = None, *, gpu: bool = False) -> list[Planned]:
    """Every combination of the grid's values put into `base`; what would train the same network is one run.

    The order is that of the axes, seeds changing fastest.
    """
    grid = grid or Grid()
    costs = [{"budget": share, "gamma": None} for share in grid.budget]
    costs += [{"budget": None, "gamma": weight} for weight in grid.gamma]
    rows = []
    for arch, method, router, relaxation, cost, alpha, beta, m_c, m_d in product(
        *_axes(grid.arch, grid.method, grid.router, grid.relaxation, costs, grid.alpha, grid.beta, grid.m_c, grid.m_d)
    ):
        if method is not None and method not in METHODS:
            raise unknown("method", method, METHODS)
        config = replace(
            base,
            network=_given(base.network, arch=arch, router=router, relaxation=relaxation),
            losses=_given(replace(base.losses, **(cost or {})), alpha=alpha, beta=beta, m_c=m_c, m_d=m_d),
        )
        rows.append((METHODS[method or "codinet"](config), None))
    return settle(rows, seeds=grid.seed, gpu=gpu)


def settle(
    rows: Iterable[tuple[RunConfig, Published | None]], *, seeds: Sequence[int] = (), gpu: bool = False
) -> list[Planned]:
    """Configs resolved and checked, seeds put in, repetitions left out, the rest named."""
    found: dict[RunConfig, Published | None] = {}
    for row, paper in rows:
        for seed in seeds or (row.seed,):
            found.setdefault(canonical(resolve(replace(row, seed=seed), gpu=gpu)), paper)
    if not found:
        raise UserError("Nothing is left to train; give fewer restrictions.")
    return _named(found)


def from_static(planned: Sequence[Planned]) -> list[Planned]:
    """The plan with every routed run after the static run of its network, seed and recipe.

    Static runs that the plan lacks are put before all others, for much waits for them.
    """
    if any(run.config.extra.start or run.config.extra.teacher for run in planned):
        raise UserError("These runs have a start or a teacher already; leave it out to start them from static runs.")
    static = {run.name: canonical(as_static(run.config)) for run in planned if run.config.network.routed}
    there = {run.config for run in planned}
    added = _named({config: None for config in static.values() if config not in there})
    name_of = {run.config: run.name for run in (*added, *planned)}
    return [*added, *(replace(run, after=name_of[static[run.name]]) if run.name in static else run for run in planned)]


def _named(configs: Mapping[RunConfig, Published | None]) -> list[Planned]:
    groups = names_of(list(configs))
    return [
        Planned(f"{group}-seed{config.seed}", group, config, paper)
        for group, (config, paper) in zip(groups, configs.items(), strict=True)
    ]


def _axes(*axes: Sequence[Any]) -> list[Sequence[Any]]:
    return [axis or (None,) for axis in axes]


def _given(part: Any, **values: Any) -> Any:
    """The part with those of the values that are given."""
    return replace(part, **{name: value for name, value in values.items() if value is not None})
