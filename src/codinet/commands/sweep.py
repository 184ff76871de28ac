"""`codinet sweep`: train every combination of settings, or the runs of a table or figure of the paper."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro

from codinet import files
from codinet.commands.printing import counted, note, print_json, print_table
from codinet.config import DATA_ROOT
from codinet.errors import UserError, unknown
from codinet.presets import PRESETS
from codinet.sweep import Grid, Group, PlannedRun, from_static, plan, summarise
from codinet.sweep import run as run_sweep
from codinet.sweep.plan import Overrides, with_teacher_views
from codinet.sweep.summary import Spread, images_of, to_document
from codinet.sweep.sweep_folder import is_finished
from codinet.sweep.sweep_progress import ProgressBar
from codinet.sweep.workers import STALL_MINUTES


@dataclass(frozen=True)
class Args:
    source: tyro.conf.Positional[str] = ""
    """A data set by name, an image folder, an .npz file, or a table or figure of the paper (see --list)."""
    grid: Grid = field(default_factory=Grid)
    overrides: Overrides = field(default_factory=Overrides)
    preset: str = "paper"
    """Recipe of all runs: paper, best, quick, demo, small, modern, pretrained, imagenet. Other flags replace its
    values."""
    from_static: bool = False
    """The same as --start static --teacher static, also for a table or figure of the paper."""
    teacher_views: int = 0
    """Fixed views of each image that teachers see once, before the training; see codinet train --help."""
    out: Path | None = None
    """Folder of the sweep. Default: runs/ and a name made from the source. Repeat the command to continue the sweep."""
    workers: int = 1
    """Number of runs to train at the same time, each in its own process. They share the cores."""
    stall_minutes: float = STALL_MINUTES
    """Stop a run that has written nothing to its log and metrics for this long; it counts as failed."""
    data_path: str | None = None
    """Data for a table or figure of the paper, instead of its own. Required for ImageNet."""
    data_root: Path = DATA_ROOT
    """Folder of the data sets."""
    device: tuple[str, ...] = ()
    """cpu, cuda or mps; workers take several (cuda:0 cuda:1) in turn. Default: the fastest available."""
    plot: bool = True
    """Draw pareto.png and pareto.svg. Requires matplotlib."""
    list: bool = False
    """List the tables and figures of the paper and exit."""
    json: bool = False
    """Print one JSON document."""


def run(args: Args) -> dict[str, Path]:
    """Train the unfinished runs and summarise all; report failed runs as an error at the end.

    Returns:
        The folder of the sweep, for the suggested next commands.
    """
    if args.list:
        _list_papers(args.json)
        return {}

    from codinet.environment import pick_device

    if args.plot:
        # Imported here to report a missing matplotlib before training.
        from codinet.sweep.pareto_figure import write_figure
    kinds = {pick_device(device).type for device in args.device or (None,)}
    if len(kinds) > 1:
        raise UserError(f"--device must name devices of one kind, got {' and '.join(sorted(kinds))}.")
    planned = _plan(args, gpu=kinds == {"cuda"})
    if args.from_static:
        if args.grid.start or args.grid.teacher:
            raise UserError("--from-static is --start static --teacher static; leave it or these flags out.")
        planned = from_static(planned)
    if args.teacher_views:
        planned = with_teacher_views(planned, args.teacher_views)
    out = args.out or Path("runs") / _name(args.source)
    _require_readable(args, out, planned)
    try:
        outcome = run_sweep(
            out,
            planned,
            workers=args.workers,
            data_root=args.data_root,
            devices=args.device or (None,),
            progress=ProgressBar(),
            stall_minutes=args.stall_minutes,
        )
    except KeyboardInterrupt:
        note("interrupted; the workers have stopped. Repeat the command to continue.")
        raise SystemExit(130) from None
    groups, trained = summarise(outcome.results), counted(len(outcome.results), "run")
    content = to_document(outcome.results, groups, outcome.failures)
    files.write_json(out / "results.json", content)
    if args.plot and groups:
        write_figure(out, groups, f"{_name(args.source)}: {trained}")
    if args.json:
        print_json({"sweep": str(out), **content})
    elif groups:
        _print_groups(f"{trained} in {out}, on the {images_of(groups)}; ± is the standard deviation over seeds", groups)
    if outcome.failures:
        reasons = "; ".join(f"{name}: {reason.rstrip('.')}" for name, reason in outcome.failures.items())
        raise UserError(
            f"{len(outcome.failures)} of {len(planned)} planned runs failed ({reasons}); the other results and the "
            f".log files are in {out}, and repeating the command retries the failed runs."
        )
    return {"out": out}


def _plan(args: Args, *, gpu: bool) -> list[PlannedRun]:
    from codinet.sweep.papers import PREFIX, plan_paper

    if not args.source:
        raise UserError("SOURCE is required: give a data set, or a table or figure of the paper (see --list).")
    if args.preset not in PRESETS:
        raise unknown("preset", args.preset, PRESETS)
    if args.source.startswith(PREFIX) and not Path(args.source).exists():
        return plan_paper(args.source, args.grid, args.overrides, recipe=args.preset, data_path=args.data_path, gpu=gpu)
    if args.data_path is not None:
        raise UserError("--data-path applies only to tables and figures of the paper; give the data as SOURCE instead.")
    return plan(args.overrides.apply(PRESETS[args.preset](args.source)), args.grid, gpu=gpu)


def _name(source: str) -> str:
    from codinet.sweep.papers import PAPERS

    return source if source in PAPERS else f"{Path(source).stem}-sweep"


def _require_readable(args: Args, out: Path, planned: list[PlannedRun]) -> None:
    """Check data, starts and teachers before every run fails for the same reason. Folders of images may be large, so
    the workers check them."""
    from codinet.data.loading import load_for
    from codinet.train.setup import read_sources

    unfinished = [run.config for run in planned if not is_finished(out, run)]
    for config in {(config.extra.start, config.extra.teacher): config for config in unfinished}.values():
        read_sources(config, out, resume=False)
    if unfinished and not Path(unfinished[0].source).is_dir():
        load_for(unfinished[0].source, args.data_root, unfinished[0].data)


def _list_papers(as_json: bool) -> None:
    from codinet.sweep.papers import PAPERS, plan_paper

    rows: list[dict[str, Any]] = []
    for name, paper in PAPERS.items():
        runs = len(plan_paper(name, data_path=None if paper.source else "."))
        rows.append({"name": name, "makes": paper.makes, "source": paper.source, "runs": runs, "then": paper.then})
    if as_json:
        print_json({"presets": rows})
        return
    for row in rows:
        data = row["source"] or "the folder given with --data-path"
        print(f"{row['name']}\n    {row['makes']}\n    {row['runs']} runs on {data}; result: {row['then']}")


def _print_groups(title: str, groups: list[Group]) -> None:
    headings = ["runs", "n", "accuracy, %", "cost share", "G, paper's unit", "paths", "on front"]
    rows = []
    for group in groups:
        figures = group.figures
        row = [
            group.name,
            str(len(group.seeds)),
            _cell(figures["accuracy"], 2),
            _cell(figures["cost_share"], 3),
            _cell(figures["paper_gmaccs"], 4),
            _cell(figures["distinct_paths"], 0),
            "yes" if group.on_front else "",
        ]
        if any(other.paper for other in groups):
            row.append(_paper_cell(group))
        rows.append(row)
    print_table(title, headings + (["paper: %, G, paths"] if len(rows[0]) > len(headings) else []), rows)


def _cell(value: Spread, digits: int) -> str:
    return f"{value.mean:.{digits}f}" + ("" if value.spread is None else f" ± {value.spread:.{digits}f}")


def _paper_cell(group: Group) -> str:
    row = group.paper
    if row is None:
        return ""
    return ", ".join("–" if value is None else f"{value:g}" for value in (row.accuracy, row.gmaccs, row.paths))
