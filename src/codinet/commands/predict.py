"""`codinet predict`: class, confidence and path of image files."""

import math
from dataclasses import dataclass
from pathlib import Path

import tyro

from codinet.commands.shared import print_json, require_probability
from codinet.commands.tables import print_table
from codinet.environment import pick_device
from codinet.errors import UserError
from codinet.predict import Prediction, Predictor, image_files
from codinet.zoo.open_run import open_run


@dataclass(frozen=True)
class Args:
    run: tyro.conf.Positional[Path]
    """Run folder of `codinet train`, or zoo:NAME (see `codinet zoo`)."""
    images: tyro.conf.Positional[tuple[Path, ...]]
    """Image files of any size and common format, or folders of them."""
    threshold: float = 0.5
    """A block runs where the router's run probability reaches this; lower runs more."""
    device: str | None = None
    """cpu, cuda, mps. Default: the best there is."""
    json: bool = False
    """Print one JSON document."""


def run(args: Args) -> None:
    """Answer for every file that is an image; name the files that are not, and end with an error."""
    if not args.images:
        raise UserError("There is nothing to predict; give one image file or more.")
    require_probability("threshold", args.threshold)
    images = image_files(args.images)
    predictor = Predictor(open_run(args.run), pick_device(args.device))
    answered: list[tuple[Path, Prediction]] = []
    refused: list[tuple[Path, str]] = []
    for file in images:
        try:
            if file.is_dir():
                raise UserError(f"{file} contains no images; give a folder with images, or image files.")
            answer = predictor.predict(file, threshold=args.threshold)
            if not math.isfinite(answer.confidence):
                raise UserError(f"The network computes NaN or infinity for {file}; restore its weights or train again.")
            answered.append((file, answer))
        except UserError as error:
            refused.append((file, str(error)))
    if args.json:
        print_json(
            {
                "threshold": args.threshold,
                "predictions": [{"file": str(file), **answer.summary()} for file, answer in answered],
                "refused": [{"file": str(file), "why": why} for file, why in refused],
            }
        )
    elif answered:
        print_table("", ["file", "class", "confidence", "blocks run", "share of cost", "path"], _rows(answered))
    if refused:
        number = f"{len(refused)} of {len(images)} files"
        raise UserError(f"{number} refused: {' '.join(why for _, why in refused)}")


def _rows(answered: list[tuple[Path, Prediction]]) -> list[list[str]]:
    return [
        [
            str(file),
            answer.label,
            f"{answer.confidence:.3f}",
            f"{answer.blocks_run} of {len(answer.path)}",
            f"{answer.cost_share:.3f}",
            "".join("█" if ran else "·" for ran in answer.path),
        ]
        for file, answer in answered
    ]
