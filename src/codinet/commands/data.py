"""`codinet data`: what data sets there are, getting them, checking them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from codinet.commands.shared import print_json
from codinet.commands.tables import print_table
from codinet.data import DATA_ROOT
from codinet.data.catalogue import download, list_known, verify
from codinet.data.official import lookup
from codinet.errors import UserError


@dataclass(frozen=True)
class Args:
    action: tyro.conf.Positional[Literal["list", "download", "verify"]] = "list"
    """list what is known, download from the official address, or verify what is on disk."""
    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Data sets to download or verify."""
    data_root: Path = DATA_ROOT
    """Folder that holds the data sets."""
    json: bool = False
    """Print one JSON document."""


def run(args: Args) -> None:
    if args.action == "list":
        _list(args)
        return
    if not args.names:
        raise UserError(f"Say what to {args.action}, e.g. codinet data {args.action} cifar10.")
    if args.action == "download":
        _download(args)
    _verify(args)


def _list(args: Args) -> None:
    if args.names:
        raise UserError(f"list shows all there are, and does not take {' '.join(args.names)!r}; leave it out.")
    rows = [
        {
            "name": known.name,
            "summary": known.summary,
            "terms": known.terms,
            "page": known.page,
            "present": not known.layouts or known.locate(args.data_root) is not None,
        }
        for known in list_known()
    ]
    if args.json:
        print_json({"data": rows})
        return
    print_table(
        f"Data sets (under {args.data_root}); an image folder or an .npz file of yours works too",
        ["name", "here", "what", "terms"],
        [[str(row["name"]), "yes" if row["present"] else "no", str(row["summary"]), str(row["terms"])] for row in rows],
    )


def _download(args: Args) -> None:
    for name in args.names:
        lookup(name)  # a wrong name is told before anything is fetched
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        for name in args.names:
            task = bars.add_task(name, total=None)

            def show(done: int, total: int | None, task: TaskID = task) -> None:
                bars.update(task, completed=done, total=total)

            download(name, args.data_root, show)


def _verify(args: Args) -> None:
    found = {name: verify(name, args.data_root) for name in args.names}
    if args.json:
        print_json({name: [verdict._asdict() for verdict in verdicts] for name, verdicts in found.items()})
    else:
        rows = [
            [name, verdict.file, "yes" if verdict.ok else "no", verdict.detail]
            for name in found
            for verdict in found[name]
        ]
        print_table(f"Files under {args.data_root}", ["data set", "file", "official", "found"], rows)
    bad = [verdict.file for verdicts in found.values() for verdict in verdicts if not verdict.ok]
    if bad:
        raise UserError(
            f"{', '.join(bad)} did not verify; fetch again with codinet data download {' '.join(args.names)}."
        )
