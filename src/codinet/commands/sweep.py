"""`codinet sweep`: train every combination of settings, or what a table or figure of the paper needs."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tyro

from codinet import files
from codinet.commands.shared import counted, note, print_json
from codinet.commands.tables import print_table
from codinet.data import DATA_ROOT, load
from codinet.environment import pick_device
from codinet.errors import UserError, unknown
from codinet.presets import PRESETS
from codinet.sweep import Grid, Group, Outcome, Planned, from_static, plan, summarise
from codinet.sweep import run as carry_out
from codinet.sweep.common import Common
from codinet.sweep.fleet import STALL_MINUTES
from codinet.sweep.folder import is_finished
from codinet.sweep.narrowing import plan_paper
from codinet.sweep.papers import PAPERS, PREFIX
from codinet.sweep.progress import Bar
from codinet.sweep.summary import Spread, document


@dataclass(frozen=True)
class Args:
    source: tyro.conf.Positional[str] = ""
    """A data set by name, an image folder, an .npz file; or a table or figure of the paper (see --list)."""
    grid: Grid = field(default_factory=Grid)
    common: Common = field(default_factory=Common)
    preset: str = "paper"
    """Recipe of all runs, whose values the other flags replace: paper, best, quick, demo."""
    from_static: bool = False
    """Start routed runs from the static run of their network and seed, which teaches them too; add it if need be."""
    out: Path | None = None
    """Folder of the sweep. Default: runs/ and a name made of the source. The same command goes on with it."""
    workers: int = 1
    """Runs trained at the same time, each in its own process; they share the cores."""
    stall_minutes: float = STALL_MINUTES
    """Stop a run that has written nothing to its log and metrics for this long; it counts as failed."""
    data_path: str | None = None
    """Data for a table or figure of the paper in place of its own; ImageNet's must be named."""
    data_root: Path = DATA_ROOT
    """Folder that holds the data sets."""
    device: tuple[str, ...] = ()
    """cpu, cuda, mps; of several (cuda:0 cuda:1) workers take one each in turn. Default: the best there is."""
    plot: bool = True
    """Draw pareto.png and pareto.svg, which needs matplotlib."""
    list: bool = False
    """Show the tables and figures of the paper that can be made, and train nothing."""
    json: bool = False
    """Print one JSON document."""


def run(args: Args) -> None:
    """Train the runs that are not finished, then summarise all; failed runs are an error after the rest is kept."""
    if args.list:
        _list_papers(args.json)
        return
    if args.plot:
        # Imported now, so that a missing matplotlib is found before hours of training.
        from codinet.sweep.picture import write_picture
    kinds = {pick_device(device).type for device in args.device or (None,)}
    if len(kinds) > 1:
        raise UserError("--device must name devices of one kind, because runs of different kinds do not compare.")
    planned = _plan(args, gpu=kinds == {"cuda"})
    if args.from_static:
        planned = from_static(planned)
    out = args.out or Path("runs") / _name(args.source)
    _require_data(args, out, planned)
    outcome = _carry_out(args, out, planned)
    groups, trained = summarise(outcome.results), counted(len(outcome.results), "run")
    content = document(outcome.results, groups, outcome.failures)
    files.write_json(out / "results.json", content)
    if args.plot and groups:
        write_picture(out, groups, f"{_name(args.source)}: {trained}")
    if args.json:
        print_json({"sweep": str(out), **content})
    elif groups:
        _print_groups(f"{trained} in {out}; ± is the spread over seeds", groups)
    if outcome.failures:
        raise UserError(_sum_up(out, len(planned), outcome.failures))


def _plan(args: Args, *, gpu: bool) -> list[Planned]:
    if not args.source:
        raise UserError("There is nothing to sweep; give a data set, or a table or figure of the paper (see --list).")
    if args.preset not in PRESETS:
        raise unknown("preset", args.preset, PRESETS)
    if args.source.startswith(PREFIX) and not Path(args.source).exists():
        return plan_paper(args.source, args.grid, args.common, recipe=args.preset, data_path=args.data_path, gpu=gpu)
    if args.data_path is not None:
        raise UserError("--data-path is for tables and figures of the paper; name the data in place of them.")
    return plan(args.common.put_into(PRESETS[args.preset](args.source)), args.grid, gpu=gpu)


def _name(source: str) -> str:
    return source if source in PAPERS else f"{Path(source).stem}-sweep"


def _require_data(args: Args, out: Path, planned: list[Planned]) -> None:
    """Check once that the data can be read, before every run fails for the same reason. Folders are left to the
    workers, because they may be large."""
    config = planned[0].config
    if not Path(config.source).is_dir() and not all(is_finished(out, run) for run in planned):
        load(config.source, args.data_root, image_size=config.data.image_size)


def _carry_out(args: Args, out: Path, planned: list[Planned]) -> Outcome:
    try:
        return carry_out(
            out,
            planned,
            workers=args.workers,
            data_root=args.data_root,
            devices=args.device or (None,),
            progress=Bar(),
            stall_minutes=args.stall_minutes,
        )
    except KeyboardInterrupt:
        note("interrupted, and the workers stopped; the same command goes on from here.")
        raise SystemExit(130) from None


def _sum_up(out: Path, runs: int, failures: dict[str, str]) -> str:
    each = "; ".join(f"{name}: {reason.rstrip('.')}" for name, reason in failures.items())
    return (
        f"{len(failures)} of {runs} planned runs failed ({each}); the rest is kept in {out}, the output of the failed "
        "runs is in their .log there, and the same command tries them again."
    )


def _list_papers(as_json: bool) -> None:
    rows: list[dict[str, Any]] = []
    for name, paper in PAPERS.items():
        runs = len(plan_paper(name, data_path=None if paper.source else "."))
        rows.append({"name": name, "makes": paper.makes, "source": paper.source, "runs": runs, "then": paper.then})
    if as_json:
        print_json({"presets": rows})
        return
    for row in rows:
        data = row["source"] or "the folder named with --data-path"
        print(f"{row['name']}\n    {row['makes']}\n    {row['runs']} runs on {data}; read off {row['then']}")


def _print_groups(title: str, groups: list[Group]) -> None:
    headings = ["runs", "n", "accuracy, %", "cost share", "G, paper's unit", "paths", "on front"]
    rows = []
    for group in groups:
        found = group.figures
        row = [
            group.name,
            str(len(group.seeds)),
            _cell(found["accuracy"], 2),
            _cell(found["cost_share"], 3),
            _cell(found["paper_gmaccs"], 4),
            _cell(found["distinct_paths"], 0),
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
