"""`codinet eval`: what a trained run does on its test set."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import tyro

from codinet import files
from codinet.commands.shared import figures, print_json, print_table
from codinet.cost import block_costs
from codinet.data import DATA_ROOT
from codinet.data.placing import Placing
from codinet.data.stream import lost_workers
from codinet.environment import pick_device
from codinet.errors import UserError
from codinet.evaluate import evaluate
from codinet.relaxation import hard
from codinet.runs import RunFolder


@dataclass(frozen=True)
class Args:
    run: tyro.conf.Positional[Path]
    """Run folder of `codinet train`."""
    threshold: float = 0.5
    """A block runs where the router's run probability reaches this; lower runs more."""
    paths: Path | None = None
    """Where to write the path table. Default: paths.safetensors in the run folder, at threshold 0.5."""
    batch: int = 250
    """Images at a time."""
    data_root: Path = DATA_ROOT
    """Folder that holds the data sets."""
    device: str | None = None
    """cpu, cuda, mps. Default: the best there is."""
    json: bool = False
    """Print one JSON document."""


def run(args: Args) -> None:
    if not 0 <= args.threshold <= 1:
        raise UserError(f"--threshold {args.threshold:g} is no probability; give a number from 0 to 1.")
    if args.batch < 1:
        raise UserError(f"--batch {args.batch} is too small; use 1 or more.")
    device = pick_device(args.device)
    folder = RunFolder.open(args.run)
    model = folder.load_model(device)
    dataset = folder.load_dataset(args.data_root)
    if dataset.image_shape != folder.data.image_shape or dataset.classes != folder.data.classes:
        raise UserError(f"{args.run} was trained on other data than {dataset.name} holds now; point --data-root to it.")
    loader = Placing(dataset, device).place(dataset.test).batches(args.batch)
    table = block_costs(model, dataset.image_shape)
    with lost_workers():
        evaluation = evaluate(partial(model, decide=partial(hard, threshold=args.threshold)), loader, table)
    target = args.paths or (args.run / "paths.safetensors" if args.threshold == 0.5 else None)
    if target:
        files.save_tensors(target, evaluation.paths._asdict())
    if args.json:
        print_json(evaluation.summary())
    else:
        print_table(f"{args.run} on the {evaluation.n} test images", ["", ""], figures(evaluation.summary()))
