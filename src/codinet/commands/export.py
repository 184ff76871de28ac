"""`codinet export`: a trained run as an ONNX file that needs neither codinet nor torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import tyro

from codinet.commands.shared import note, print_json, require_probability
from codinet.data import DATA_ROOT
from codinet.errors import UserError
from codinet.runs import RunFolder
from codinet.zoo.open_run import open_run

CHECKED = 64  # real images that the file is compared on


@dataclass(frozen=True)
class Args:
    run: tyro.conf.Positional[Path]
    """Run folder of `codinet train`, or zoo:NAME (see `codinet zoo`)."""
    out: Path
    """File to write, ending in .onnx."""
    kind: Literal["routed", "masked", "static"] | None = None
    """routed: skips for real, one image at a time. masked: any batch, computes everything. static: one fixed path, any
    batch. Default: routed, or static for a run without routers or with --path."""
    path: str | None = None
    """Blocks that a static file runs, as digits: 0101…; by default all."""
    threshold: float = 0.5
    """Default of the file's `threshold` input: lower runs more blocks."""
    opset: int = 17
    """Version of the ONNX operators, from 13 to 22."""
    data_root: Path = DATA_ROOT
    """Folder that holds the data sets, for the check on real images."""
    json: bool = False
    """Print one JSON document."""


def run(args: Args) -> None:
    """Write the file, compare it with the network on random and on test images, and say so."""
    require_probability("threshold", args.threshold)
    if args.out.suffix != ".onnx":
        raise UserError(f"{args.out} does not end in .onnx; give --out such a name.")
    if args.path is not None and set(args.path) - set("01"):
        raise UserError(f"--path must have one digit per block, 1 to run it and 0 to skip it; got {args.path}.")
    try:
        from codinet.engines.export import About, export
    except ImportError as error:
        raise UserError(f"Export needs {error.name}; install it with pip install 'codinet[onnx]'.") from error
    folder = open_run(args.run)
    model, data = folder.load_model(), folder.data
    kind = args.kind or ("static" if args.path is not None or model.routers is None else "routed")
    images_BCHW = _test_images(folder, args.data_root)
    checked = export(
        model,
        args.out,
        About(data.classes, data.mean, data.std, data.image_shape),
        kind=kind,
        path=None if args.path is None else [int(digit) for digit in args.path],
        threshold=args.threshold,
        opset=args.opset,
        images_BCHW=images_BCHW,
    )
    real = 0 if images_BCHW is None else len(images_BCHW)
    if args.json:
        size = args.out.stat().st_size
        found = {"file": str(args.out), "kind": kind, "bytes": size, "checked": checked, "checked_real": real}
        print_json(found)
    else:
        print(f"{args.out} holds the {kind} network; it agrees with the run on {checked} images, {real} of them real.")


def _test_images(folder: RunFolder, root: Path) -> torch.Tensor | None:
    """Some test images to check the file on; None, with a note, where the data is missing."""
    try:
        return folder.test_images(root, CHECKED)
    except UserError as error:
        note(f"checked on random images only, because the run's data is missing: {error}")
        return None
