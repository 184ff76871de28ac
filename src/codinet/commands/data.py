"""`codinet data`: list, download and verify data sets, and pack image folders into shards."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from codinet.commands.printing import note, print_json, print_table
from codinet.config import DATA_ROOT
from codinet.errors import UserError

if TYPE_CHECKING:
    from rich.progress import TaskID


@dataclass(frozen=True)
class Args:
    action: tyro.conf.Positional[Literal["list", "download", "verify", "pack"]] = "list"
    """list the known data sets, download them from their official address, verify the files on disk, or pack an image
    folder."""
    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Data sets to download or verify; to pack: the image folder, and the folder or address (s3://…) to write."""
    data_root: Path = DATA_ROOT
    """Folder that holds the data sets."""
    shard_mb: int = 32
    """Size of a packed file in megabytes."""
    shorter_side: int | None = None
    """Scale larger images down to this length of their shorter side when packing. Default: files stay as they are."""
    on_damaged: Literal["stop", "skip"] = "stop"
    """What to do with image files that cannot be packed: stop, or leave them out and say which."""
    json: bool = False
    """Print one JSON document."""


def run(args: Args) -> None:
    """Do the action; files that do not verify are a `UserError`."""
    if args.action == "list":
        _list(args)
        return
    if args.action == "pack":
        _pack(args)
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


def _pack(args: Args) -> None:
    from rich.console import Console
    from rich.progress import Progress

    from codinet.data.packing import pack

    if len(args.names) != 2:
        raise UserError(
            "pack requires an image folder and a place to write, for example codinet data pack photos shards or "
            "codinet data pack photos s3://bucket/photos."
        )
    source, out = args.names
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(f"Packing {source}", total=None)
        packed = pack(
            Path(source).expanduser(),
            out,
            shard_mb=args.shard_mb,
            shorter_side=args.shorter_side,
            on_damaged=args.on_damaged,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    for name in packed.damaged:
        note(f"{name} is damaged and was left out.")
    if args.json:
        print_json({"out": out, **packed._asdict()})
        return
    print(
        f"Packed {packed.train:,} training and {packed.test:,} test images of {packed.classes} classes into "
        f"{packed.shards:,} files, {packed.bytes / 1e6:,.0f} MB, in {out}"
    )


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
