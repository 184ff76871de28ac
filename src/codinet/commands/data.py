"""`codinet data`: list, download and verify data sets."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from codinet.commands.printing import print_json, print_table
from codinet.config import DATA_ROOT
from codinet.errors import UserError

if TYPE_CHECKING:
    from rich.progress import TaskID


@dataclass(frozen=True)
class Args:
    action: tyro.conf.Positional[Literal["list", "download", "verify"]] = "list"
    """list the known data sets, download them from their official address, or verify the files on disk."""
    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Data sets to download or verify."""
    data_root: Path = DATA_ROOT
    """Folder that holds the data sets."""
    json: bool = False
    """Print one JSON document."""


def run(args: Args) -> None:
    """Do the action; files that do not verify are a `UserError`."""
    if args.action == "list":
        _list(args)
        return
    if not args.names:
        raise UserError(f"{args.action} requires a data set, for example codinet data {args.action} cifar10.")
    if args.action == "download":
        _download(args)
    _verify(args)


def _list(args: Args) -> None:
    from codinet.data.catalogue import KNOWN

    if args.names:
        raise UserError(f"list shows all data sets and takes no names, got {' '.join(args.names)!r}.")
    rows = [
        {
            "name": known.name,
            "summary": known.summary,
            "terms": known.terms,
            "page": known.page,
            "present": not known.layouts or known.locate(args.data_root) is not None,
        }
        for known in KNOWN.values()
    ]
    if args.json:
        print_json({"data": rows})
        return
    print_table(
        f"Data sets under {args.data_root}; your own image folder or .npz file works too",
        ["name", "present", "content", "terms"],
        [[str(row["name"]), "yes" if row["present"] else "no", str(row["summary"]), str(row["terms"])] for row in rows],
    )


def _download(args: Args) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from codinet.data.catalogue import lookup
    from codinet.data.download import download

    for name in args.names:
        lookup(name)  # an unknown name is an error before the first download
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        for name in args.names:
            task = bars.add_task(name, total=None)

            def update(done: int, total: int | None, task: "TaskID" = task) -> None:
                bars.update(task, completed=done, total=total)

            download(name, args.data_root, update)


def _verify(args: Args) -> None:
    from codinet.data.download import verify

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
            f"{', '.join(bad)} did not verify; download again with codinet data download {' '.join(args.names)}."
        )
