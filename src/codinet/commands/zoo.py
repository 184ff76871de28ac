"""`codinet zoo`: the trained networks that come with codinet; adding to them, and run folders of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from codinet.commands.shared import figures, print_json
from codinet.commands.tables import print_table
from codinet.data import DATA_ROOT
from codinet.environment import pick_device
from codinet.errors import UserError
from codinet.runs import ZOO, RunFolder


@dataclass(frozen=True)
class Args:
    action: tyro.conf.Positional[Literal["list", "add", "unpack"]] = "list"
    """list them, add a finished run, or unpack one into a run folder, for analyze and report."""
    what: tyro.conf.Positional[str] = ""
    """add: the run folder. unpack: the network's name."""
    name: str = ""
    """add: what to call it, e.g. cifar10-resnet32-065."""
    replace: bool = False
    """add: put it in the place of the one of that name."""
    out: Path | None = None
    """unpack: folder to write."""
    data_root: Path = DATA_ROOT
    """Folder that holds the data sets."""
    device: str = "cpu"
    """What to evaluate on; cards are to be found true on a CPU."""
    json: bool = False
    """Print one JSON document."""


def run(args: Args) -> None:
    {"list": _list, "add": _add, "unpack": _unpack}[args.action](args)


def _list(args: Args) -> None:
    from codinet.zoo.shelf import cards

    if args.what:
        raise UserError(f"list shows all there are, and does not take {args.what!r}; leave it out.")
    found = cards()
    if args.json:
        print_json({"zoo": [card.content for card in found]})
    else:
        print_zoo()


def print_zoo() -> None:
    """The table of the zoo's networks."""
    from codinet.zoo.shelf import listed

    rows = [
        [
            entry["name"],
            entry["data"],
            entry["arch"],
            f"{entry['accuracy']:.2f}",
            f"{entry['cost_share']:.3f}",
            f"{entry['distinct_paths']}",
        ]
        for entry in listed()
    ]
    if rows:
        headings = ["trained network", "data", "network", "accuracy, %", "cost share", "paths"]
        print_table(f"The zoo: use as {ZOO}NAME, or create_model(…, pretrained=NAME)", headings, rows)
    else:
        print("The zoo holds no trained networks yet; codinet zoo add RUN --name NAME adds one.")


def _add(args: Args) -> None:
    from codinet.zoo.add import add

    if not args.what or not args.name:
        raise UserError("Say which run to add and what to call it: codinet zoo add RUN --name cifar10-resnet32-065.")
    device = pick_device(args.device)
    card = add(RunFolder.open(Path(args.what)), args.name, args.data_root, device=device, replace=args.replace)
    if args.json:
        print_json(card.content)
    else:
        title = f"{card.name} is in the zoo ({card['bytes'] / 1e6:.2f} MB); as trained, and as it is loaded"
        before, after = figures(card["as_trained"]), figures(card.figures())
        print_table(title, ["", "trained", "zoo"], [[*row, new[1]] for row, new in zip(before, after, strict=True)])


def _unpack(args: Args) -> None:
    from codinet.zoo.open_run import open_entry
    from codinet.zoo.shelf import find
    from codinet.zoo.unpack import unpack

    if not args.what or args.out is None:
        raise UserError("Say which network to unpack and where: codinet zoo unpack NAME --out DIR.")
    entry = open_entry(find(args.what.removeprefix(ZOO)))
    folder = unpack(entry, args.out, args.data_root, pick_device(args.device))
    if args.json:
        print_json({"run": str(folder.path), **folder.load_evaluation()})
    else:
        print(f"{folder.path} is a run folder of {entry.path}; analyze, report and explore take it.")
