"""`python -m tools.results`: add finished runs to the result files, or render the page and its figure from all."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from codinet import files
from codinet.cli import guarded, parse
from codinet.commands.printing import counted, print_json
from codinet.errors import UserError
from tools.results.record import find_runs, make_record, read_records, save_records
from tools.results.render import render, render_figures


@dataclass(frozen=True)
class Args:
    action: tyro.conf.Positional[Literal["add", "render"]]
    """add finished runs to the result files, or render the page from all of them."""
    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """add: run folders, or folders of them, such as a sweep's."""
    table: tuple[str, ...] = ("results",)
    """add: tables to list the runs in: results, ablation, trade-off, margin, routers, relaxations, photographs,
    methods and routing (these two require codinet analyze)."""
    replace: bool = False
    """add: replace an earlier result of the same run."""
    results: Path = Path("results")
    """Folder of the result files."""
    out: Path = Path("docs/results.md")
    """render: page to write; its figure goes to images/ beside it."""
    json: bool = False
    """Print one JSON document."""


def main(argv: list[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    words = sys.argv[1:] if argv is None else argv

    def call() -> int:
        args = parse(Args, words, prog="python -m tools.results")
        if args is not None:
            _add(args) if args.action == "add" else _render(args)
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
