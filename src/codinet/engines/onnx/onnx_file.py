"""Write an ONNX file after checking that it reproduces the network's output.

The file contains everything needed to use it without codinet: classes, normalisation, image shape, cost table and
threshold. A file that disagrees with the network raises `UserError` and is not written.
"""

import copy
import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch

import codinet
from codinet import files
from codinet.checks import (
    require_choice,
    require_finite,
    require_image_shape,
    require_kind,
    require_number,
    require_tensor,
    require_whole,
    shown,
)
from codinet.cost import block_costs
from codinet.engines.contract import require_finite as require_finite_weights
from codinet.engines.onnx.build_graph import Kind, build
from codinet.engines.onnx.network_graph import Usual
from codinet.engines.onnx.routing_nodes import router_writer
from codinet.engines.onnx.runtime import OnnxEngine
from codinet.errors import UserError
from codinet.model import RoutedNetwork, require_network
from codinet.records import RoutedOutput
from codinet.relaxation import hard, margin_limit, require_threshold

TOLERANCE = 1e-4  # of logits, and of the margin within which a decision may differ


@dataclasses.dataclass(frozen=True)
class ExportInfo:
    """The data that a network was trained on; stored in the file."""

    classes: Sequence[str]
    mean: Sequence[float]  # per channel, of bytes (0..255)
    std: Sequence[float]
    image_shape: tuple[int, int, int]
    crop: float = 1.0  # fraction of the shorter side of an image that is kept, at the centre

    def __post_init__(self) -> None:
        channels = require_image_shape(self.image_shape)[0]
        require_number("crop", self.crop, 0, 1, above=True)
        _require_list("classes", self.classes, str, "names")
        for name, values in (("mean", self.mean), ("std", self.std)):
            _require_list(name, values, int | float, "numbers")
            if len(values) != channels:
                raise UserError(f"{name} must have a number for each of the {channels} channels, got {shown(values)}.")
            for value in values:
                require_number(f"An entry of {name}", value, 0, above=name == "std")


def export(
    model: RoutedNetwork,
    out: Path,
    data: ExportInfo,
    *,
    kind: Kind = "routed",
    path: Sequence[int] | None = None,
    threshold: float = 0.5,
    opset: int | None = None,
    usual: Usual | None = None,
    images_BCHW: torch.Tensor | None = None,
) -> int:
    """Write the file `out`, checked on random images and on `images_BCHW`.

    Args:
        model: The network.
        out: The file to write.
        data: The classes and normalisation to store in the file.
        kind: "routed" (one image, skips blocks), "masked" or "static" (any batch).
        path: The blocks that a static file runs (0 or 1 for each). Default: all.
        threshold: The default of the file's `threshold` input.
        opset: The version of the ONNX operators. Default: 17, or 18 for an adopted network.
        usual: The decisions that nearly all images share (`usual_decisions`), for a routed file that is faster for
            images which decide so, and has the weights twice.
        images_BCHW: Normalised images to check the file on, in addition to random ones.

    Returns:
        The number of images that the file was checked on.
    """
    require_network(model)
    require_kind("out", out, Path, "a Path")
    require_kind("data", data, ExportInfo, "an ExportInfo")
    require_choice("kind", kind, get_args(Kind))
    require_threshold(threshold)
    if opset is not None:
        require_whole("opset", opset, 1, 100)
    require_finite_weights(model)
    if images_BCHW is not None:
        require_tensor("images", images_BCHW, ("B", *data.image_shape))
        require_finite("images", images_BCHW)
    if path is not None and kind != "static":
        raise UserError(f"path is for the kind static, got the kind {kind}; leave --path out, or choose --kind static.")
    if path is not None:
        _require_list("path", path, int, "0 or 1 for each block")
        if len(path) != len(model.blocks) or set(path) - {0, 1}:
            raise UserError(
                f"path must have {len(model.blocks)} digits, 0 or 1, one for each block, got {len(path)} digits."
            )
    if usual is not None:
        _require_list("usual", usual, int | None, "0, 1 or None for each block")
        if len(usual) != len(model.blocks) or set(usual) - {0, 1, None}:
            raise UserError(f"usual must have 0, 1 or None for each of {len(model.blocks)} blocks, got {shown(usual)}.")
    model = copy.deepcopy(model).to("cpu", torch.float32).eval()  # as the file computes
    proto = build(model, data.image_shape, kind=kind, path=path, threshold=threshold, opset=opset, usual=usual)
    number = proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value
    if len(data.classes) != number:
        raise UserError(f"classes must name the {number} classes of the network, got {len(data.classes)} names.")
    metadata = _metadata(model, data, kind, path, threshold)
    for key, value in (metadata if usual is None else metadata | {"usual": list(usual)}).items():
        proto.metadata_props.add(key=key, value=files.to_json(value))
    content = proto.SerializeToString()
    random = torch.randn(8, *data.image_shape, generator=torch.Generator().manual_seed(0))
    checked = random if images_BCHW is None else torch.cat([random, images_BCHW.cpu().float()])
    engine = OnnxEngine(content, threads=1, portable=True)
    check(model, engine, checked, path=path, threshold=threshold)
    if usual is not None:  # the images above may all be usual
        for other in (0.0, 1.0):
            check(model, engine, random, threshold=other)
    files.write(out, content)
    return len(checked)


def _metadata(
    model: RoutedNetwork, data: ExportInfo, kind: Kind, path: Sequence[int] | None, threshold: float
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "codinet": codinet.__version__,
        "kind": kind,
        "arch": type(model).__name__ if model.config is None else model.config.arch,
        **dataclasses.asdict(data),
        "cost_table": dataclasses.asdict(block_costs(model, data.image_shape)),
    }
    if kind == "static":
        return found | {"path": [1] * len(model.blocks) if path is None else list(path)}
    assert model.routers is not None
    return found | {"router": router_writer(model.routers).name, "threshold": threshold}


@torch.inference_mode()
def check(
    model: RoutedNetwork,
    engine: OnnxEngine,
    images_BCHW: torch.Tensor,
    *,
    path: Sequence[int] | None = None,
    threshold: float = 0.5,
) -> None:
    """Raise `UserError` unless the file reproduces the network's paths, classes and logits on these images."""
    for images in images_BCHW.split(64):
        if engine.about["kind"] == "static":
            fixed = torch.ones(len(model.blocks)) if path is None else torch.tensor(path)
            reference = model(images, force=fixed)
        else:
            reference = model(images, decide=partial(hard, threshold=threshold))
        routed = engine.about["kind"] != "static"
        difference = _difference(engine(images, threshold=threshold), reference, margin_limit(threshold), routed=routed)
        if difference:
            raise UserError(f"The exported graph disagrees with the network ({difference}); no file was written.")


def _difference(ours: RoutedOutput, theirs: RoutedOutput, limit: float, *, routed: bool) -> str | None:
    """A difference beyond rounding, as a clause; None if there is none."""
    alike_B = torch.ones(len(theirs.path_BN), dtype=torch.bool)
    if routed:
        close_BN = (theirs.scores_BN2[..., 1] - theirs.scores_BN2[..., 0] - limit).abs() <= TOLERANCE
        differs_BN = ours.path_BN != theirs.path_BN
        # Only the first difference counts, because it changes the input of later blocks.
        first_B = differs_BN.int().argmax(dim=1)
        alike_B = ~differs_BN.any(dim=1)
        if bool((~alike_B & ~close_BN.gather(1, first_B[:, None]).squeeze(1)).any()):
            return "paths differ"
        if not alike_B.any():
            return None
    ours_BK, theirs_BK = ours.logits_BK[alike_B], theirs.logits_BK[alike_B]
    allowed = TOLERANCE * max(1.0, theirs_BK.abs().max().item())
    worst = (ours_BK - theirs_BK).abs().max().item()
    if not worst <= allowed:  # also if NaN
        return f"logits differ by {worst:.2g}"
    best_B2 = theirs_BK.topk(min(2, theirs_BK.shape[1]), dim=1).values
    clear_B = best_B2[:, 0] - best_B2[:, -1] > 2 * allowed
    if bool((clear_B & (ours_BK.argmax(dim=1) != theirs_BK.argmax(dim=1))).any()):
        return "classes differ"
    return None


def _require_list(name: str, values: Any, kind: Any, what: str) -> None:
    if not isinstance(values, list | tuple) or not values or not all(isinstance(value, kind) for value in values):
        raise UserError(f"{name} must be a list of {what}, got {shown(values)}.")
