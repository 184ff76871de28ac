"""`codinet eval`: what a trained run does on its test set; for a network of the zoo, beside what its card says."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from codinet import files
from codinet.commands.shared import figures, note, print_json, require_probability
from codinet.commands.tables import print_table
from codinet.data import DATA_ROOT, Dataset
from codinet.environment import pick_device
from codinet.errors import UserError
from codinet.records import PathTable
from codinet.runs import DataBrief, RunFolder, measure
from codinet.zoo.card import Card
from codinet.zoo.open_run import ZooRun, open_run
from codinet.zoo.same_images import same_data

CURVE = 0.3, 0.4, 0.6, 0.7  # thresholds beside the one of the evaluation


@dataclass(frozen=True)
class Args:
    run: tyro.conf.Positional[Path]
    """Run folder of `codinet train`, or zoo:NAME (see `codinet zoo`)."""
    threshold: float = 0.5
    """A block runs where the router's run probability reaches this; lower runs more."""
    curve: tuple[float, ...] | None = None
    """Thresholds to evaluate too: accuracy against cost from one set of weights. Without any: 0.3 0.4 0.6 0.7."""
    plot: Path | None = None
    """Picture of the curve to write, which needs matplotlib."""
    paths: Path | None = None
    """Where to write the path table. Default: paths.safetensors in the run folder, at threshold 0.5 and on the images
    that the run was trained on; nowhere for the zoo."""
    batch: int = 250
    """Images at a time."""
    data_root: Path = DATA_ROOT
    """Folder that holds the data sets."""
    device: str | None = None
    """cpu, cuda, mps. Default: the best there is."""
    json: bool = False
    """Print one JSON document."""


def run(args: Args) -> None:
    require_probability("threshold", args.threshold)
    thresholds = CURVE if args.curve == () else args.curve
    for threshold in thresholds or ():
        require_probability("curve", threshold)
    if args.plot and thresholds is None:
        raise UserError("--plot draws the curve, and there is none; ask for it with --curve.")
    if args.batch < 1:
        raise UserError(f"--batch {args.batch} is too small; use 1 or more.")
    device = pick_device(args.device)
    folder = open_run(args.run)
    card = folder.card if isinstance(folder, ZooRun) else None
    model = folder.load_model(device)
    dataset = same_data(folder, args.data_root) if isinstance(folder, ZooRun) else folder.load_dataset(args.data_root)
    if dataset.image_shape != folder.data.image_shape or dataset.classes != folder.data.classes:
        raise UserError(f"{args.run} was trained on other data than {dataset.name} holds now; point --data-root to it.")
    own = card is None and _holds_own_images(dataset, folder)
    evaluation = measure(model, dataset, device, batch=args.batch, threshold=args.threshold)
    _keep(evaluation.paths, args, in_run=own and args.threshold == 0.5)
    summary, title = evaluation.summary(), f"{args.run} on the {evaluation.n} test images"
    if thresholds is not None:
        found = {args.threshold: evaluation}
        for threshold in thresholds:
            if threshold not in found:
                found[threshold] = measure(model, dataset, device, batch=args.batch, threshold=threshold)
        _curve(args, title, {threshold: found[threshold].summary() for threshold in sorted(found)}, summary)
        return
    if card is not None and args.threshold == card["threshold"]:
        _print_beside(card, summary, title, as_json=args.json)
    elif args.json:
        print_json(summary)
    else:
        print_table(title, ["", ""], figures(summary))


def _holds_own_images(dataset: Dataset, folder: RunFolder) -> bool:
    """Whether the images are those of the run; where they are not, that is said."""
    same = DataBrief.of(dataset).same_images(folder.data)
    if not same:
        note(
            f"{dataset.name} holds other images now than {folder.path} was trained on; these figures are of those it "
            "holds now, and the run's own path table stays as it is."
        )
    return same


def _keep(paths: PathTable, args: Args, *, in_run: bool) -> None:
    """Write the path table where it was asked for, or else into the run, whose folder may be for reading only."""
    if args.paths is not None:
        files.save_tensors(args.paths, paths._asdict())
    elif in_run:
        try:
            files.save_tensors(args.run / "paths.safetensors", paths._asdict())
        except UserError as error:
            note(f"the path table is not kept: {error}")


def _curve(args: Args, title: str, points: dict[float, dict[str, Any]], summary: dict[str, Any]) -> None:
    """One trained network at many budgets."""
    keys = ("accuracy", "cost_share", "macs", "mean_blocks", "distinct_paths")
    rows = [{"threshold": threshold, **{key: point[key] for key in keys}} for threshold, point in points.items()]
    if args.json:
        print_json({**summary, "curve": rows})
    else:
        _print_curve(title, rows)
    if args.plot:  # last, lest a picture that cannot be drawn take the figures with it
        from codinet.bench.curve_picture import draw_curve

        draw_curve(rows, args.plot, title)


def _print_curve(title: str, rows: list[dict[str, Any]]) -> None:
    headings = ["threshold", "accuracy, %", "share of the\nstatic cost", "M MACs", "blocks", "paths"]
    cells = [
        [
            f"{row['threshold']:g}",
            f"{row['accuracy']:.2f}",
            f"{row['cost_share']:.4f}",
            f"{row['macs'] / 1e6:.3f}",
            f"{row['mean_blocks']:.2f}",
            f"{row['distinct_paths']}",
        ]
        for row in rows
    ]
    print_table(title, headings, cells)


def _print_beside(card: Card, summary: dict[str, Any], title: str, *, as_json: bool) -> None:
    # The loss is left out: it is a sum of floats, and another processor may round it otherwise.
    said = {key: value for key, value in card.figures().items() if key != "loss"}
    same = all(summary[key] == value for key, value in said.items())
    if as_json:
        print_json({**summary, "card": said, "same_as_card": same})
        return
    rows = [[*row, on_card[1]] for row, on_card in zip(figures(summary), figures(said), strict=True)]
    print_table(title, ["", "measured", "card"], rows)
    print("Measured is what the card says." if same else "Measured is not quite what the card says.")
