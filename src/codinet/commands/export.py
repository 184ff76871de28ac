"""`codinet export`: write a trained run as an ONNX file that needs neither codinet nor torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from codinet.commands.printing import note, print_json
from codinet.config import DATA_ROOT
from codinet.errors import UserError
from codinet.flags import require_probability

if TYPE_CHECKING:
    import torch

    from codinet.run_reader import RunReader

_CHECKED_IMAGES = 64  # test images on which the file is compared with the network


@dataclass(frozen=True)
class Args:
    run: tyro.conf.Positional[Path]
    """Run folder of `codinet train`, or zoo:NAME (see `codinet models`)."""
    out: Path
    """File to write, ending in .onnx."""
    kind: Literal["routed", "masked", "static"] | None = None
    """routed: really skips blocks, one image at a time. masked: any batch size, computes all blocks. static: one fixed
    path, any batch size. Default: routed, or static for a run without routers or with --path."""
    path: str | None = None
    """Blocks that a static file runs, as digits: 0101…. Default: all."""
    threshold: float = 0.5
    """Default of the file's `threshold` input; a lower one runs more blocks."""
    opset: int | None = None
    """Version of the ONNX operators: from 13 to 22, default 17; for networks of other libraries from 18 to 20, default
    18."""
    data_root: Path = DATA_ROOT
    """Folder that holds the data sets, for the check on test images."""
    json: bool = False
    """Print one JSON document."""


def run(args: Args) -> None:
    """Write the file and compare it with the network on random images and test images."""
    require_probability("threshold", args.threshold)
    if args.out.suffix != ".onnx":
        raise UserError(f"--out must end in .onnx, got {args.out}.")
    if args.path is not None and set(args.path) - set("01"):
        raise UserError(f"--path must have one digit per block, 1 to run it and 0 to skip it, got {args.path}.")
    try:
        from codinet.engines.onnx import ExportInfo, export
    except ImportError as error:
        raise UserError(f"Export requires {error.name}; install it with pip install onnx onnxruntime.") from error
    from codinet.runs import open_run

    folder = open_run(args.run)
    model, data = folder.load_model(), folder.data
    kind = args.kind or ("static" if args.path is not None or model.routers is None else "routed")
    images_BCHW = _test_images(folder, args.data_root)
    checked = export(
        model,
        args.out,
        ExportInfo(data.classes, data.mean, data.std, data.image_shape, data.crop),
        kind=kind,
        path=None if args.path is None else [int(digit) for digit in args.path],
        threshold=args.threshold,
        opset=args.opset,
        images_BCHW=images_BCHW,
    )
    real = 0 if images_BCHW is None else len(images_BCHW)
    if args.json:
        size = args.out.stat().st_size
        result = {"file": str(args.out), "kind": kind, "bytes": size, "checked": checked, "checked_real": real}
        print_json(result)
    else:
        print(f"{args.out} holds the {kind} network; it agrees with the run on {checked} images, {real} of them real.")


def _test_images(folder: "RunReader", root: Path) -> "torch.Tensor | None":
    """Test images to check the file on; None, with a note, if the data is missing."""
    try:
        return folder.test_images(root, _CHECKED_IMAGES)
    except UserError as error:
        note(f"checked on random images only, because the run's data is missing: {error}")
        return None
