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

    from codinet.engines.onnx.network_graph import Usual
    from codinet.model import RoutedNetwork
    from codinet.run_reader import RunReader

_CHECKED_IMAGES = 64  # test images on which the file is compared with the network
_MAX_WEIGHTS_TWICE = 16_000_000  # 64 MB; the branches of larger networks cost little in proportion


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
    threshold: float | None = None
    """Default of the file's `threshold` input; a lower one runs more blocks. Default: 0.5."""
    opset: int | None = None
    """Version of the ONNX operators: from 13 to 22, default 17; for networks of other libraries from 18 to 20, default
    18."""
    usual: tyro.conf.DisallowNone[bool | None] = None
    """Whether a routed file has a second part for images that decide as nearly all test images do: faster for small
    blocks, with the weights twice. Default: up to 16 million weights, if a quarter of the blocks is decided so."""
    data_root: Path = DATA_ROOT
    """Folder that holds the data sets, for the check on test images."""
    json: bool = False
    """Print one JSON document."""


def run(args: Args) -> None:
    """Write the file and compare it with the network on random images and test images."""
    threshold = 0.5 if args.threshold is None else args.threshold
    require_probability("threshold", threshold)
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
    if args.usual and kind != "routed":
        raise UserError(f"--usual applies to the kind routed, got {kind}; remove it.")
    if args.threshold is not None and kind == "static":
        raise UserError("--threshold applies to the kinds routed and masked, got static; use --path, or remove it.")
    images_BCHW = _test_images(folder, args.data_root)
    checked = export(
        model,
        args.out,
        ExportInfo(data.classes, data.mean, data.std, data.image_shape, data.crop),
        kind=kind,
        path=None if args.path is None else [int(digit) for digit in args.path],
        threshold=threshold,
        opset=args.opset,
        usual=usual_of(folder, model, threshold, wanted=args.usual) if kind == "routed" else None,
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


def usual_of(
    folder: "RunReader", model: "RoutedNetwork", threshold: float, *, wanted: bool | None = None
) -> "Usual | None":
    """The decisions that nearly all test images shared when a run was evaluated.

    Args:
        folder: The run.
        model: Its network.
        threshold: The threshold of the file.
        wanted: Whether the file shall use them. Default: if it is worth it.

    Returns:
        The decisions; None if they are not to be used, or unknown and not asked for.
    """
    from codinet.engines.onnx import usual_decisions

    large = sum(weight.numel() for weight in model.parameters()) > _MAX_WEIGHTS_TWICE
    if wanted is False or (wanted is None and large):
        return None
    try:
        usual = usual_decisions(folder.load_paths().run_probability_TN, threshold)
    except UserError:
        if wanted:
            raise
        return None
    if usual is None and wanted:
        raise UserError(f"Test images share too few decisions at the threshold {threshold}; remove --usual.")
    return usual
