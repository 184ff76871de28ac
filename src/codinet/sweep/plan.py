"""The plan of a sweep: from a grid of settings to a list of named runs.

Configs that would train the same network become one run. Run names are built from the network, the method, the budget
or gamma, and every other setting in which runs of the same method differ. A routed run may start from the static run of
its network and seed, or learn from it; the static run is then part of the plan.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from codinet.config import RunConfig
from codinet.errors import UserError, unknown
from codinet.methods import DEFAULT, NAMES, method_named
from codinet.presets import as_static, as_vanilla
from codinet.published import Published
from codinet.resolving import resolve, unused_settings
from codinet.specs import slug

METHODS: dict[str, Callable[[RunConfig], RunConfig]] = {
    **{name: partial(replace, method=name) for name in NAMES},
    "static": as_static,
    "vanilla": as_vanilla,
    "con": lambda config: replace(config, losses=replace(config.losses, beta=0.0)),
    "div": lambda config: replace(config, losses=replace(config.losses, alpha=0.0)),
    "codinet": lambda config: config,
}
"""The methods, each as a function from a CoDiNet config to a config of that method. Those of the paper's own tables are
settings of CoDiNet."""
if TYPE_CHECKING:
    SweepMethod = str
else:
    SweepMethod = Literal[tuple(METHODS)]

# Settings that appear in a name if runs of the same method differ in them, in this order.
_NAME_PARTS = (
    ("network", "router", "{}"),
    ("network", "relaxation", "{}"),
    ("losses", "alpha", "alpha{}"),
    ("losses", "beta", "beta{}"),
    ("losses", "m_c", "mc{}"),
    ("losses", "m_d", "md{}"),
    ("extra", "start", "from-{}"),
    ("extra", "teacher", "taught-by-{}"),
)
STATIC, NONE = "static", "none"  # values of the axes start and teacher: the static run of the plan; no run
_LINKS = ("start", "teacher")

Row = tuple[RunConfig, Published | None]  # a config, and the paper's row that it reproduces


@dataclass(frozen=True)
class Grid:
    """Values to combine. An axis that is not given keeps the preset's value."""

    arch: tuple[str, ...] = ()
    """Networks: those that `codinet models` lists, timm:NAME, torchvision:NAME or package.module:function."""
    method: tuple[SweepMethod, ...] = ()
    """No routing; routing without extra losses; with the consistency loss, the diversity loss, or both; or another
    method of docs/methods.md."""
    router: tuple[Literal["fc", "cnn", "rnn"], ...] = ()
    """Routers."""
    relaxation: tuple[Literal["gumbel", "straight-through"], ...] = ()
    """Relaxations of stage 1."""
    budget: tuple[float, ...] = ()
    """Target costs, as shares of the static network's MACs."""
    gamma: tuple[float, ...] = ()
    """Fixed weights of the cost loss. These runs are added to those of --budget, not combined with them."""
    alpha: tuple[float, ...] = ()
    """Weights of the consistency loss."""
    beta: tuple[float, ...] = ()
    """Weights of the diversity loss."""
    m_c: tuple[float, ...] = ()
    """Margins of the consistency loss."""
    m_d: tuple[float, ...] = ()
    """Margins of the diversity loss."""
    start: tuple[str, ...] = ()
    """What runs start from: a run folder, zoo:NAME, none, or static: the static run of the network and seed."""
    teacher: tuple[str, ...] = ()
    """What runs learn from, likewise. static applies to routed runs only."""
    seed: tuple[int, ...] = ()
    """Seeds. Runs that differ only in the seed become one row: mean ± standard deviation."""


@dataclass(frozen=True)
class Overrides:
    """Values for every run. A value that is not given is the preset's."""

    epochs: int | None = None
    """Epochs of stage 1."""
    finetune: int | None = None
    """Epochs of stage 2 of routed runs."""
    batch: int | None = None
    """Images per step. Default: 512 on a GPU, 64 elsewhere."""
    views: int | None = None
    """Augmented views of each image in a step."""
    image_size: int | None = None
    """Side in pixels to which images of a folder are resized."""
    holdout: int | None = None
    """Training images to hold out and evaluate on instead of the test set, to choose recipes."""
    watch: Literal["test", "train"] | None = None
    """What each epoch is evaluated on if nothing is held out. With "train" the test set is used once, at the end."""
    cutout: int | None = None
    """Side in pixels of a square that is blanked in every view."""

    def apply(self, config: RunConfig) -> RunConfig:
        """Return the config with the given values."""

        def override(part: Any) -> Any:
            return _replace_given(part, **{name: value for name, value in vars(self).items() if hasattr(part, name)})

        data, schedule, extra = map(override, (config.data, config.schedule, config.extra))
        return replace(config, data=data, schedule=schedule, extra=extra)


@dataclass(frozen=True)
class PlannedRun:
    """A run to train."""

    name: str  # of its folder
    group: str  # the name without the seed
    config: RunConfig  # resolved
    paper: Published | None = None  # the paper's row that this run reproduces
    depends_on: str | None = None  # name of the planned run that is trained first
    links: tuple[str, ...] = ()  # what it is for this run: start, teacher or both

    def training_config(self, out: Path = Path()) -> RunConfig:
        """The config to train with in the sweep folder `out`. Without `out`, other runs are given by name only."""
        if self.depends_on is None:
            return self.config
        linked = dict.fromkeys(self.links, str(out / self.depends_on))
        return resolve(_with_extra(self.config, **linked))


def plan(base: RunConfig, grid: Grid | None = None, *, gpu: bool = False) -> list[PlannedRun]:
    """Plan every combination of the grid's values.

    Args:
        base: The config that the values are put into.
        grid: The values. By default the plan is `base` alone.
        gpu: Whether to use the default batch size of a GPU.

    Returns:
        The runs in the order of the grid's axes; the seed changes fastest.
    """
    grid = grid or Grid()
    costs: list[dict[str, float | None]] = [{"budget": share, "gamma": None} for share in grid.budget]
    costs += [{"budget": None, "gamma": weight} for weight in grid.gamma]
    axes: tuple[Sequence[Any], ...] = (
        *(grid.arch, grid.method, grid.router, grid.relaxation, costs),
        *(grid.alpha, grid.beta, grid.m_c, grid.m_d, grid.start, grid.teacher),
    )
    rows: list[Row] = []
    for values in product(*(axis or (None,) for axis in axes)):
        arch, method, router, relaxation, cost, alpha, beta, m_c, m_d, start, teacher = values
        if method is not None and method not in METHODS:
            raise unknown("method", method, METHODS)
        config = replace(
            base,
            network=_replace_given(base.network, arch=arch, router=router, relaxation=relaxation),
            losses=_replace_given(replace(base.losses, **(cost or {})), alpha=alpha, beta=beta, m_c=m_c, m_d=m_d),
        )
        config = METHODS[method or "codinet"](config)
        # A static run cannot start from itself.
        sources = {name: source for name, source in zip(_LINKS, (start, teacher), strict=True) if source is not None}
        absent = (NONE,) if config.network.routed else (NONE, STATIC)
        sources = {name: None if source in absent else source for name, source in sources.items()}
        rows.append((_with_extra(config, **sources), None))
    return _linked(plan_rows(rows, seeds=grid.seed, gpu=gpu))


def _with_extra(config: RunConfig, **values: Any) -> RunConfig:
    return replace(config, extra=replace(config.extra, **values))


def _replace_given(part: Any, **values: Any) -> Any:
    return replace(part, **{name: value for name, value in values.items() if value is not None})


def plan_rows(rows: Iterable[Row], *, seeds: Sequence[int] = (), gpu: bool = False) -> list[PlannedRun]:
    """Resolve and check configs, add the seeds, remove duplicates and name the rest."""
    found: dict[RunConfig, Published | None] = {}
    for row, paper in rows:
        for seed in seeds or (row.seed,):
            found.setdefault(canonical(resolve(replace(row, seed=seed), gpu=gpu)), paper)
    if not found:
        raise UserError("The plan contains no runs; give fewer restrictions.")
    return _name_runs(found)


def from_static(planned: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Make every routed run start from the static run of the same network, seed and recipe, and learn from it.

    Static runs that are missing from the plan are added in front, because other runs wait for them.
    """
    for run in planned:
        if run.depends_on is None and (run.config.extra.start or run.config.extra.teacher):
            raise UserError(f"--from-static requires runs without a start or a teacher; {run.name} already has one.")
    return _depending(planned, {run.name: _LINKS for run in planned if run.config.network.routed})


def with_teacher_views(planned: Sequence[PlannedRun], views: int) -> list[PlannedRun]:
    """Let every teacher answer for this many fixed views of an image once, before the training (`--teacher-views`)."""
    runs = []
    for run in planned:
        teacher = run.config.extra.teacher or (STATIC if "teacher" in run.links else None)
        if teacher is not None:
            resolve(_with_extra(run.config, teacher=teacher, teacher_views=views))  # checks the number
            run = replace(run, config=_with_extra(run.config, teacher_views=views))
        runs.append(run)
    if all(run.config.extra.teacher_views == 0 for run in runs):
        raise UserError("--teacher-views requires runs with a teacher; add --teacher or --from-static.")
    return runs


def _linked(planned: Sequence[PlannedRun]) -> list[PlannedRun]:
    """The plan in which runs with STATIC as start or teacher depend on that run."""
    links, runs = {}, []
    for run in planned:
        static = tuple(name for name in _LINKS if getattr(run.config.extra, name) == STATIC)
        if static:
            links[run.name] = static
            unlinked: dict[str, Any] = dict.fromkeys(static)
            distill = {"distill": None} if "teacher" in static else {}  # which follows from having a teacher
            run = replace(run, config=_with_extra(run.config, **unlinked, **distill))
        runs.append(run)
    return _depending(runs, links)


def _depending(planned: Sequence[PlannedRun], links: Mapping[str, tuple[str, ...]]) -> list[PlannedRun]:
    """The plan in which the named runs use their static runs; these are added in front if they are missing."""
    fresh = {"start": None, "teacher": None, "distill": None}
    static = {run.name: canonical(as_static(_with_extra(run.config, **fresh))) for run in planned if run.name in links}
    existing = [run.config for run in planned]
    missing = {config: None for config in static.values() if config not in set(existing)}
    added = _name_runs(missing, among=[*missing, *existing])
    _require_unique_names([*added, *planned])
    names = {run.config: run.name for run in (*added, *planned)}
    chained = [
        replace(run, depends_on=names[static[run.name]], links=links[run.name]) if run.name in links else run
        for run in planned
    ]
    return [*added, *chained]


def method_of(config: RunConfig) -> str:
    """The key in `METHODS` of a config's method."""
    if config.method != DEFAULT:
        return config.method
    if not config.network.routed:
        return "static"
    uses_losses = (config.losses.alpha > 0, config.losses.beta > 0)
    return {(False, False): "vanilla", (True, False): "con", (False, True): "div"}.get(uses_losses, "codinet")


def canonical(config: RunConfig) -> RunConfig:
    """The config with unused values set to their defaults, so that equal trainings have equal configs."""
    unused = unused_settings(config)

    def reset(part: Any) -> Any:
        return replace(part, **{entry.name: entry.default for entry in fields(part) if entry.name in unused})

    # finetune_lr is kept: plans of earlier versions have it, and must stay equal.
    schedule = replace(config.schedule, finetune=0) if "finetune" in unused else config.schedule
    config = replace(config, network=reset(config.network), losses=reset(config.losses), schedule=schedule)
    return method_named(config.method).configure(config)  # a training does the same


def _name_runs(
    configs: Mapping[RunConfig, Published | None], *, among: Iterable[RunConfig] | None = None
) -> list[PlannedRun]:
    """Names configs by the settings in which they differ from others of their method, by default from each other."""
    values: dict[tuple[str, str], set[Any]] = {}  # method and setting → the values that occur
    for config in configs if among is None else among:
        for part, setting, _ in _NAME_PARTS:
            values.setdefault((method_of(config), setting), set()).add(getattr(getattr(config, part), setting))
    runs = []
    for config, paper in configs.items():
        method = method_of(config)
        words = [slug(config.network.arch), method]
        for setting in ("budget", "gamma"):
            if (number := getattr(config.losses, setting)) is not None:
                words.append(f"{setting}{_format_value(number)}")
        words += [
            form.format(_format_value(getattr(getattr(config, part), setting)))
            for part, setting, form in _NAME_PARTS
            if len(values[method, setting]) > 1
        ]
        group = "-".join(words)
        runs.append(PlannedRun(f"{group}-seed{config.seed}", group, config, paper))
    _require_unique_names(runs)
    return runs


def _require_unique_names(runs: Sequence[PlannedRun]) -> None:
    if len({run.name for run in runs}) < len(runs):
        raise UserError("Two values of --start or --teacher have the same name; rename one of the run folders.")


def _format_value(value: Any) -> str:
    if value is None:
        return NONE
    if isinstance(value, str):
        return slug(Path(value).name)
    short = f"{value:g}"
    # Different numbers must have different names.
    return short if float(short) == value else repr(value)
