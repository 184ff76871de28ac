"""`python -m tools.results`: adds finished runs to the result files, renders the page and its figures from all of them,
or trains the runs of a plan that have no result yet.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from codinet import files
from codinet.cli import guarded, parse
from codinet.commands.printing import counted, print_json
from codinet.errors import UserError
from codinet.sweep.sweep_progress import ProgressBar
from tools.results.plans import PLANS
from tools.results.record import find_runs, make_record, read_records, save_records
from tools.results.render import render, render_figures
from tools.results.train_plan import train_plan


@dataclass(frozen=True)
class Args:
    action: tyro.conf.Positional[Literal["add", "render", "train"]]
    """add finished runs to the result files; render the page from all of them; train what a plan lacks."""
    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """add: run folders, or folders of them, such as a sweep's. train: one plan of tools/results/plans.py."""
    table: tuple[str, ...] = ("results",)
    """add: tables to list the runs in: results, ablation, trade-off, margin, routers, relaxations, starts,
    photographs, methods and routing (these two require codinet analyze)."""
    replace: bool = False
    """add: replace an earlier result of the same run."""
    results: Path = Path("results")
    """Folder of the result files."""
    out: Path = Path("docs/results.md")
    """render: page to write; its figure goes to images/ beside it."""
    folder: Path | None = None
    """train: folder of the runs. Default: runs/ and the name of the plan."""
    workers: int = 1
    """train: how many runs to train at the same time."""
    data_root: Path = Path("data")
    """train: folder of the data sets."""
    device: tuple[str, ...] = ()
    """train: devices, which workers use in turn. Default: the best one."""
    json: bool = False
    """Print one JSON document."""


def main(argv: list[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    words = sys.argv[1:] if argv is None else argv

    def call() -> int:
        args = parse(Args, words, prog="python -m tools.results")
        if args is not None:
            {"add": _add, "render": _render, "train": _train}[args.action](args)
        return 0

    return guarded(call)


def _add(args: Args) -> None:
    if not args.table:
        raise UserError("--table requires at least one table, e.g. --table results.")
    # All runs are read before any file is written, so that a rejected run leaves nothing half-done.
    records = [make_record(folder, args.table) for folder in find_runs(args.runs)]
    written = save_records(records, args.results, replace=args.replace)
    if args.json:
        print_json({"results": [str(file) for file in written]})
    else:
        print(f"Wrote {counted(len(written), 'result')} to {args.results}; now run python -m tools.results render.")


def _train(args: Args) -> None:
    if len(args.runs) != 1:
        raise UserError(f"train requires one plan, got {len(args.runs)}; choose from {', '.join(PLANS)}.")
    name = str(args.runs[0])
    outcome = train_plan(
        name,
        args.folder or Path("runs") / name,
        args.results,
        workers=args.workers,
        data_root=args.data_root,
        devices=args.device or (None,),
        progress=None if args.json else ProgressBar(),
    )
    finished = [result.name for result in outcome.results]
    if args.json:
        print_json({"finished": finished, "failed": outcome.failures})
    else:
        print(f"{counted(len(finished), 'run')} of the plan {name} finished; now run python -m tools.results render.")
    if outcome.failures:
        reasons = "; ".join(f"{run}: {why}" for run, why in outcome.failures.items())
        raise UserError(f"{counted(len(outcome.failures), 'run')} failed: {reasons}.")


def _render(args: Args) -> None:
    if args.runs:
        raise UserError("render takes no runs: it shows every file in --results. Use add first.")
    records = read_records(args.results)
    page, figures = render(records), {args.out.parent / place: svg for place, svg in render_figures(records).items()}
    files.write(args.out, page.encode())
    for figure, svg in figures.items():
        figure.parent.mkdir(parents=True, exist_ok=True)
        files.write(figure, svg.encode())
    written = [str(path) for path in (args.out, *figures)]
    if args.json:
        print_json({"page": written[0], "figures": written[1:], "results": len(records)})
    else:
        print(f"Wrote {', '.join(written)} with {counted(len(records), 'result')}.")


if __name__ == "__main__":
    sys.exit(main())
