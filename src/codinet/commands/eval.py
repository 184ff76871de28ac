"""`codinet eval`: results of a trained run on its test set; for a network of the zoo, next to its card."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import tyro

from codinet import files
from codinet.commands.shared import figures, note, print_json, require_probability
from codinet.commands.tables import print_table
from codinet.data import DATA_ROOT, Dataset
from codinet.data.resident import epoch_order
from codinet.environment import pick_device
from codinet.errors import UserError
from codinet.model import CoDiNet
from codinet.records import PathTable
from codinet.runs import DataBrief, RunFolder, measurer
from codinet.thresholds import MISSED, find_threshold, require_budget
from codinet.zoo.card import Card
from codinet.zoo.open_run import ZooRun, open_run
from codinet.zoo.same_images import same_data

CURVE = 0.3, 0.4, 0.6, 0.7  # thresholds beside the one of the evaluation
CALIBRATION_IMAGES = 2000  # on which a threshold is found: their mean cost is known to a thousandth


@dataclass(frozen=True)
class Args:
    run: tyro.conf.Positional[Path]
    """Run folder of `codinet train`, or zoo:NAME (see `codinet zoo`)."""
    threshold: float = 0.5
    """A block runs where the router's run probability reaches this; lower runs more."""
    curve: tuple[float, ...] | None = None
    """Thresholds to evaluate too: accuracy against cost from one set of weights. Without any: 0.3 0.4 0.6 0.7."""
    budget: tuple[float, ...] = ()
    """Costs to meet without training, as shares of the static network's; a threshold for each is found on training
    images, and evaluated like those of the curve."""
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
    thresholds = CURVE if args.curve == () else args.curve or ()
    for threshold in thresholds:
        require_probability("curve", threshold)
    if args.plot and not (thresholds or args.budget):
        raise UserError("--plot draws a curve; add --curve or --budget.")
    if args.batch < 1:
        raise UserError(f"--batch must be 1 or more, got {args.batch}.")
    device = pick_device(args.device)
    folder = open_run(args.run)
    card = folder.card if isinstance(folder, ZooRun) else None
    model = folder.load_model(device)
    for budget in args.budget:
        require_budget(model, budget)
    dataset = same_data(folder, args.data_root) if isinstance(folder, ZooRun) else folder.load_dataset(args.data_root)
    if dataset.image_shape != folder.data.image_shape or dataset.classes != folder.data.classes:
        raise UserError(f"{args.run} was trained on other data than {dataset.name} holds now; point --data-root to it.")
    asked = _thresholds_for(args, model, dataset, device)
    own = card is None and _holds_own_images(dataset, folder)
    measured = measurer(model, dataset, dataset.test, device, batch=args.batch)
    evaluation = measured(args.threshold)
    _keep(evaluation.paths, args, in_run=own and args.threshold == 0.5)
    summary, title = evaluation.summary(), f"{args.run} on the {evaluation.n} test images"
    if thresholds or asked:
        found = {args.threshold: summary}
        for threshold in (*thresholds, *asked):
            if threshold not in found:
                found[threshold] = measured(threshold).summary()
        _curve(args, title, dict(sorted(found.items())), summary, asked)
        return
    if card is not None and args.threshold == card["threshold"]:
        _print_beside(card, summary, title, as_json=args.json)
    elif args.json:
        print_json(summary)
    else:
        print_table(title, ["", ""], figures(summary))


def _thresholds_for(args: Args, model: CoDiNet, dataset: Dataset, device: torch.device) -> dict[float, list[float]]:
    """The budgets that are asked for, by the threshold that meets them on training images."""
    if not args.budget:
        return {}
    order = epoch_order(len(dataset.train), seed=0, epoch=0)  # of all classes, in a folder too
    measured = measurer(model, dataset, dataset.train.subset(order[:CALIBRATION_IMAGES]), device, batch=args.batch)

    @cache  # budgets share looks, the first one at least
    def cost_at(threshold: float) -> float:
        return measured(threshold).cost_share

    found: dict[float, list[float]] = {}
    for budget in args.budget:
        found.setdefault(find_threshold(cost_at, budget), []).append(budget)
    return found


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


def _curve(
    args: Args,
    title: str,
    points: dict[float, dict[str, Any]],
    summary: dict[str, Any],
    asked: dict[float, list[float]],
) -> None:
    """One trained network at many budgets."""
    keys = ("accuracy", "cost_share", "macs", "mean_blocks", "distinct_paths")
    rows = [
        {"threshold": threshold, "budgets": asked.get(threshold, []), **{key: point[key] for key in keys}}
        for threshold, point in points.items()
    ]
    for row in rows:
        for budget in row["budgets"]:
            cost = row["cost_share"]
            if abs(cost - budget) > MISSED:
                note(f"a budget of {budget:g} is missed: at the threshold nearest to it, test images cost {cost:.3f}.")
    if args.json:
        print_json({**summary, "curve": rows})
    else:
        _print_curve(title, rows)
    if args.plot:  # last, lest a picture that cannot be drawn take the figures with it
        from codinet.bench.curve_picture import draw_curve

        draw_curve(rows, args.plot, title)


def _print_curve(title: str, rows: list[dict[str, Any]]) -> None:
    columns = {
        "threshold": [f"{row['threshold']:g}" for row in rows],
        "asked for": [", ".join(f"{budget:g}" for budget in row["budgets"]) for row in rows],
        "accuracy, %": [f"{row['accuracy']:.2f}" for row in rows],
        "share of the\nstatic cost": [f"{row['cost_share']:.4f}" for row in rows],
        "M MACs": [f"{row['macs'] / 1e6:.3f}" for row in rows],
        "blocks": [f"{row['mean_blocks']:.2f}" for row in rows],
        "paths": [f"{row['distinct_paths']}" for row in rows],
    }
    shown = {heading: cells for heading, cells in columns.items() if any(cells)}
    print_table(title, list(shown), [list(cells) for cells in zip(*shown.values(), strict=True)])


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
