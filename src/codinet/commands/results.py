"""`codinet results`: the results of finished runs, kept as files, and the page that shows them next to the paper."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from codinet import files
from codinet.commands.shared import counted, print_json
from codinet.errors import UserError


@dataclass(frozen=True)
class Args:
    action: tyro.conf.Positional[Literal["add", "render"]]
    """add finished runs to the results, or render the page from all of them."""
    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """add: run folders, or folders of them, such as a sweep's."""
    table: tuple[str, ...] = ("results",)
    """add: the tables for the runs: results, ablation, trade-off, margin, routers, relaxations,
    routing (needs codinet analyze)."""
    replace: bool = False
    """add: replace an earlier outcome of the same run."""
    results: Path = Path("results")
    """Folder of the result files."""
    out: Path = Path("docs/results.md")
    """render: the page to write."""
    json: bool = False
    """Print one JSON document."""


def run(args: Args) -> None:
    from codinet.results.record import find_runs, keep, read_all, record_of
    from codinet.results.render import render

    if args.action == "add":
        if not args.table:
            raise UserError("--table must name one table or more, e.g. --table results.")
        # All are read before any is written, so that a run that is refused leaves nothing half-done.
        records = [record_of(folder, args.table) for folder in find_runs(args.runs)]
        written = keep(records, args.results, replace=args.replace)
        if args.json:
            print_json({"results": [str(file) for file in written]})
        else:
            print(f"{counted(len(written), 'result')} in {args.results}; codinet results render shows what is there.")
        return
    if args.runs:
        raise UserError("render takes no runs: it shows all that is in --results; add them first.")
    records = read_all(args.results)
    files.write(args.out, render(records).encode())
    if args.json:
        print_json({"page": str(args.out), "results": len(records)})
    else:
        print(f"{args.out} shows {counted(len(records), 'result')}.")
