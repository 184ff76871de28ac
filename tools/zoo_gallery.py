"""Gives the zoo what the explorer shows without a data set: `python -m tools.zoo_gallery --data-root DIR`.

For each data set of the zoo it writes 30 test images (DATA.samples.npz). To the card of each routed network it adds
`curve`: accuracy and cost at several thresholds, measured on the first test images in the canonical order.
"""

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch

from codinet import files
from codinet.cli import guarded
from codinet.data import DATA_ROOT, Dataset
from codinet.data.views import normalise
from codinet.engines.choose import compile_engine
from codinet.environment import pick_device
from codinet.errors import UserError
from codinet.evaluate import evaluate
from codinet.run_reader import CurvePoint, SampleImages
from codinet.zoo.card import BATCH, CURVE, Card
from codinet.zoo.sample_images import choose_samples, sample_file, save_samples
from codinet.zoo.shelf import cards, zoo_folder
from codinet.zoo.zoo_run import ZooRun, open_card

SAMPLES = 30
CURVE_IMAGES = 2000
STEP = 0.01  # of the explorer's slider
LARGE = 2.0  # a difference in accuracy, in points, between which another threshold is measured
# Closer at the ends, where most run probabilities are.
THRESHOLDS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)


def write_samples(run: ZooRun, dataset: Dataset, folder: Path) -> Path:
    """Write the sample images of a network's data set.

    Args:
        run: A network of the zoo.
        dataset: Its data set, from `ZooRun.aligned`.
        folder: Folder of the zoo.

    Returns:
        The file.
    """
    file = sample_file(run.card["data"], folder)
    index_S = choose_samples(dataset.test.labels_N, min(SAMPLES, len(dataset.test)))
    save_samples(file, SampleImages(dataset.test.subset(index_S), index_S), run.card["test_sha256"])
    return file


def measure_curve(run: ZooRun, dataset: Dataset, device: torch.device, *, images: int) -> Iterator[CurvePoint]:
    """Evaluate a network at several thresholds on the first test images. Points that its card has are kept.

    Args:
        run: A network of the zoo.
        dataset: Its data set, from `ZooRun.aligned`.
        device: Device to evaluate on.
        images: How many test images to use.

    Yields:
        The points of the curve, in no particular order.
    """
    model = run.load_model(device)
    engine = compile_engine(model, batch=BATCH, image_shape=run.data.image_shape, measure=device.type != "cpu")
    mean_C, std_C = torch.tensor(run.data.mean), torch.tensor(run.data.std)
    test = dataset.test.subset(torch.arange(min(images, len(dataset.test))))
    batches = [
        (normalise(part, mean_C, std_C).to(device), labels.to(device))
        for part, labels in zip(test.images_NCHW.split(BATCH), test.labels_N.split(BATCH), strict=True)
    ]
    known = {point.threshold: point for point in run.threshold_curve() if point.n == len(test)}
    yield from known.values()
    while (threshold := next_threshold(known)) is not None:
        found = evaluate(partial(engine, threshold=threshold), batches, run.card.table())
        known[threshold] = CurvePoint(threshold, round(found.accuracy, 3), round(found.cost_share, 5), found.n)
        yield known[threshold]


def next_threshold(known: dict[float, CurvePoint]) -> float | None:
    """The next threshold to measure: first `THRESHOLDS`, then the middle of any interval with a large difference.

    None if all neighbours are similar, or only `STEP` apart.
    """
    missing = [threshold for threshold in THRESHOLDS if threshold not in known]
    if missing:
        return missing[0]
    for low, high in pairwise(sorted(known)):
        if abs(known[low].accuracy - known[high].accuracy) > LARGE and high - low > 1.5 * STEP:
            return round((low + high) / 2, 2)
    return None


def add_curve(card: Card, points: list[CurvePoint], folder: Path) -> None:
    """Write a card again, with a curve."""
    file = folder / f"{card.name}.json"
    files.write_json(file, Card.of(card.content | {CURVE: [list(point) for point in points]}, file).content)


def main(argv: list[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.zoo_gallery", description=__doc__)
    parser.add_argument("--data-root", type=Path, default=DATA_ROOT, help="folder that holds the data sets")
    parser.add_argument(
        "--images", type=int, default=CURVE_IMAGES, help="test images per threshold; 0 keeps the curves"
    )
    parser.add_argument("--network", help="name of one network; by default all of them")
    parser.add_argument("--device", default="cpu", help="device to evaluate on")
    args = parser.parse_args(argv)
    return guarded(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    folder, device = zoo_folder(), pick_device(args.device)
    chosen = [card for card in cards(folder) if args.network in (None, card.name)]
    if not chosen:
        raise UserError(f"The zoo has no network {args.network!r}; codinet models lists them.")
    for card in chosen:
        run = open_card(card, folder)
        dataset = run.aligned(run.load_dataset(args.data_root))
        if dataset is None:
            raise UserError(f"{args.data_root} holds other test images than {card.name} was measured on.")
        print(write_samples(run, dataset, folder), flush=True)
        if card["routed"] and args.images > 0:
            points = []
            for point in measure_curve(run, dataset, device, images=args.images):
                print(f"{card.name}: threshold {point.threshold:g}, accuracy {point.accuracy:.1f} %", flush=True)
                points.append(point)
            add_curve(card, sorted(points), folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
