"""`codinet eval`: evaluate a trained run on its test set; a network of the zoo is compared with its card."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from codinet.commands.printing import evaluation_rows, note, print_json, print_table
from codinet.config import DATA_ROOT
from codinet.errors import UserError
from codinet.flags import require_probability

if TYPE_CHECKING:
    import torch

    from codinet.data import Dataset
    from codinet.model import RoutedNetwork
    from codinet.records import PathTable
    from codinet.run_reader import RunReader
    from codinet.zoo.card import Card

_CURVE = 0.3, 0.4, 0.6, 0.7  # default thresholds of --curve
_THRESHOLD_IMAGES = 2000  # training images used to find a threshold; their mean cost is accurate to about 0.001


@dataclass(frozen=True)
class Args:
    run: tyro.conf.Positional[Path]
    """Run folder of `codinet train`, or zoo:NAME (see `codinet models`)."""
    threshold: float = 0.5
    """A block runs if the router's run probability is at least this; a lower threshold runs more blocks."""
    curve: tuple[float, ...] | None = None
    """More thresholds to evaluate: accuracy against cost from one set of weights. Without values: 0.3 0.4 0.6 0.7."""
    budget: tuple[float, ...] | None = None
    """Target costs to meet without training, as shares of the static network's cost. The threshold of each is found on
    training images and evaluated like those of --curve."""
    plot: Path | None = None
    """Figure of the curve to write; requires matplotlib."""
    paths: Path | None = None
    """File for the path table. Default: paths.safetensors in the run folder, if the threshold is 0.5 and the images are
    those of the run; none for the zoo."""
    batch: int = 250
    """Images per batch."""
    data_root: Path = DATA_ROOT
    """Folder that holds the data sets."""
    device: str | None = None
    """cpu, cuda, mps. Default: the best available."""
    json: bool = False
    """Print one JSON document."""


def run(args: Args) -> None:
    """Evaluate at one threshold, or at several, and print the results."""
    require_probability("threshold", args.threshold)
    curve = _CURVE if args.curve == () else args.curve or ()
    for threshold in curve:
        require_probability("curve", threshold)
    if args.budget == ():
        raise UserError("--budget requires a value, such as 0.6.")
    if args.plot and not (curve or args.budget):
        raise UserError("--plot requires --curve or --budget.")
    if args.batch < 1:
        raise UserError(f"--batch must be 1 or more, got {args.batch}.")

    from codinet.checks import require_number
    from codinet.environment import pick_device
    from codinet.evaluate import threshold_evaluator
    from codinet.runs import open_run
    from codinet.zoo.zoo_run import ZooRun

    device = pick_device(args.device)
    run = open_run(args.run)
    card = run.card if isinstance(run, ZooRun) else None
    model = run.load_model(device)
    if curve or args.budget:
        _require_routing(model, "--curve" if curve else "--budget", args.run)
    for budget in args.budget or ():
        require_number("--budget", budget, 0, 1, above=True)
    dataset = _load_dataset(run, args)
    budgets = _thresholds_for(args, model, dataset, device)
    same_images = card is None and _has_same_images(dataset, run)
    evaluate_at = threshold_evaluator(model, dataset, dataset.test, device, batch=args.batch)
    evaluation = evaluate_at(args.threshold)
    _save_paths(evaluation.paths, args, in_run=same_images and args.threshold == 0.5)
    summary, title = evaluation.summary(), f"{args.run} on the {evaluation.n} test images"
    if curve or budgets:
        points = {args.threshold: summary}
        for threshold in (*curve, *budgets):
            if threshold not in points:
                points[threshold] = evaluate_at(threshold).summary()
        _print_curve(args, title, dict(sorted(points.items())), summary, budgets)
    elif card is not None and args.threshold == card["threshold"]:
        _print_with_card(card, summary, title, as_json=args.json)
    elif args.json:
        print_json(summary)
    else:
        print_table(title, ["", ""], evaluation_rows(summary))


def _require_routing(model: "RoutedNetwork", flag: str, run: Path) -> None:
    """Refuse a flag for several thresholds if the paths do not depend on the threshold."""
    from codinet.methods.fixed import BiasRouters

    if model.routers is None:
        raise UserError(f"{flag} applies to routed networks only, and {run} is static.")
    if isinstance(model.routers, BiasRouters):
        raise UserError(f"{flag} applies to networks that route images, and {run} runs the same blocks for all images.")


def _load_dataset(run: "RunReader", args: Args) -> "Dataset":
    """The data of the run. Those of a network of the zoo must be the same images, because its card is about them."""
    from codinet.data.loading import MissingDataError
    from codinet.zoo.zoo_run import ZooRun

    try:
        return run.load_own_dataset(args.data_root) if isinstance(run, ZooRun) else run.load_dataset(args.data_root)
    except MissingDataError as error:
        source = Path(run.config.source)
        raise UserError(
            f"The images of {args.run} were in {source}, which does not exist; move them back, or set --data-root to "
            f"the folder that contains {source.name}."
        ) from error


def _thresholds_for(
    args: Args, model: "RoutedNetwork", dataset: "Dataset", device: "torch.device"
) -> dict[float, list[float]]:
    """For each threshold found on training images, the values of --budget that it meets."""
    if not args.budget:
        return {}
    from codinet.data.batches import image_order
    from codinet.evaluate import threshold_evaluator
    from codinet.thresholds import find_threshold, search_steps

    order = image_order(dataset.train.images_NCHW, seed=0, epoch=0)  # shuffled, because a folder is sorted by class
    images = dataset.train.subset(order[:_THRESHOLD_IMAGES])
    evaluate_at = threshold_evaluator(model, dataset, images, device, batch=args.batch)

    @cache  # the searches for several budgets try some of the same thresholds
    def cost_at(threshold: float) -> float:
        return evaluate_at(threshold).cost_share

    found: dict[float, list[float]] = {}
    for budget in args.budget:
        found.setdefault(find_threshold(cost_at, budget, steps=search_steps(model)), []).append(budget)
    return found


def _has_same_images(dataset: "Dataset", run: "RunReader") -> bool:
    """Whether the images are those of the run; prints a note if not."""
    same = run.aligned(dataset) is not None
    if not same:
        note(
            f"{dataset.name} has other images now than {run.path} was trained on; the results are for the current "
            "images, and the path table in the run folder is not changed."
        )
    return same


def _save_paths(paths: "PathTable", args: Args, *, in_run: bool) -> None:
    """Write the path table to --paths, or into the run folder, which may be read-only."""
    from codinet import files

    if args.paths is not None:
        files.save_tensors(args.paths, paths._asdict())
    elif in_run:
        try:
            files.save_tensors(args.run / "paths.safetensors", paths._asdict())
        except UserError as error:
            note(f"the path table is not saved: {error}")


def _print_curve(
    args: Args,
    title: str,
    points: dict[float, dict[str, Any]],
    summary: dict[str, Any],
    budgets: dict[float, list[float]],
) -> None:
    """Print the results of one network at several thresholds."""
    from codinet.thresholds import MISSED

    keys = ("accuracy", "top5_accuracy", "cost_share", "macs", "mean_blocks", "distinct_paths")
    rows = [
        {
            "threshold": threshold,
            "budgets": budgets.get(threshold, []),
            **{key: point[key] for key in keys if key in point},
        }
        for threshold, point in points.items()
    ]
    for row in rows:
        for budget in row["budgets"]:
            cost = row["cost_share"]
            if abs(cost - budget) > MISSED:
                note(f"a budget of {budget:g} is missed: at the nearest threshold, test images cost {cost:.3f}.")
    if args.json:
        print_json({**summary, "curve": rows})
    else:
        _print_curve_table(title, rows)
    if args.plot:  # last, so that a failure does not lose the numbers
        from codinet.bench.bench_figures import write_curve

        write_curve(rows, args.plot, title)


def _print_curve_table(title: str, rows: list[dict[str, Any]]) -> None:
    columns = {
        "threshold": [f"{row['threshold']:g}" for row in rows],
        "budget": [", ".join(f"{budget:g}" for budget in row["budgets"]) for row in rows],
        "accuracy, %": [f"{row['accuracy']:.2f}" for row in rows],
        "top-5, %": [f"{row['top5_accuracy']:.2f}" if "top5_accuracy" in row else "" for row in rows],
        "share of the\nstatic cost": [f"{row['cost_share']:.4f}" for row in rows],
        "M MACs": [f"{row['macs'] / 1e6:.3f}" for row in rows],
        "blocks": [f"{row['mean_blocks']:.2f}" for row in rows],
        "paths": [f"{row['distinct_paths']}" for row in rows],
    }
    filled = {heading: cells for heading, cells in columns.items() if any(cells)}
    print_table(title, list(filled), [list(cells) for cells in zip(*filled.values(), strict=True)])


def _print_with_card(card: "Card", summary: dict[str, Any], title: str, *, as_json: bool) -> None:
    """Print the results next to those on the card.

    The loss is not compared: it is a sum of floats, which another processor may round differently.
    """
    expected = {key: value for key, value in card.figures().items() if key != "loss"}
    same = all(summary[key] == value for key, value in expected.items())
    if as_json:
        print_json({**summary, "card": expected, "same_as_card": same})
        return
    on_card = dict(evaluation_rows(expected))  # older cards lack the top-5 accuracy
    rows = [[name, text, on_card.get(name, "–")] for name, text in evaluation_rows(summary)]
    print_table(title, ["", "measured", "card"], rows)
    print("The results are those on the card." if same else "The results differ from those on the card.")
