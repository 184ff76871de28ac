"""An exported network in ONNX Runtime, behind the engines' contract.

Reads what `codinet export` writes; any other ONNX file is a `UserError`. A routed graph takes one image, so a batch is
a loop; masked and static graphs take any batch. Paths cannot be forced: decisions are inside the graph. Needs the extra
`onnx`.

A routed graph is rewritten in memory for this machine where that is possible (`onnx_layout`): ONNX Runtime does the
same by itself for a static graph. `portable` leaves the graph as it is in the file.
"""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import onnxruntime
import torch

from codinet.engines.contract import Engine, Takes
from codinet.engines.onnx_graph import Kind, build
from codinet.engines.onnx_session import open_blocked, open_session
from codinet.errors import UserError, first_line, shown
from codinet.files import parse_json
from codinet.model import RoutedNetwork
from codinet.records import RoutedOutput


class OnnxEngine(Engine):
    """A session over an exported file, or over a network exported on the spot (`OnnxEngine.of`)."""

    name: ClassVar[str] = "onnx"

    def __init__(
        self,
        source: Path | bytes,
        *,
        threshold: float | None = None,
        threads: int | None = None,
        portable: bool = False,
    ) -> None:
        self.session = open_session(source, threads=threads)
        self.about = _read_about(self.session.get_modelmeta().custom_metadata_map)
        foreign = _foreign(self.session, self.about)
        if foreign is not None:
            raise UserError(f"This ONNX file was not written by codinet export: {foreign}; export the run again.")
        self.image_shape: list[int] = self.session.get_inputs()[0].shape[1:]
        takes = Takes(self.image_shape[0], dtype=None, blocks=None)
        super().__init__(takes, threshold=float(self.about.get("threshold", 0.5)) if threshold is None else threshold)
        self.one_by_one = self.about["kind"] == "routed"
        if self.one_by_one and not portable:
            self.session = open_blocked(source, self.session, threads=threads) or self.session
        # Of a static graph. Made once, because making it from a list takes 30 µs.
        self.path_N = torch.tensor(self.about.get("path", []), dtype=torch.float32)

    @classmethod
    def of(
        cls,
        model: RoutedNetwork,
        image_shape: tuple[int, int, int],
        *,
        kind: Kind = "routed",
        threshold: float = 0.5,
        threads: int | None = None,
    ) -> "OnnxEngine":
        proto = build(model, image_shape, kind=kind)
        about: dict[str, Any] = {"kind": kind}
        if kind == "static":
            about["path"] = [1] * len(model.blocks)
        for key, value in about.items():
            proto.metadata_props.add(key=key, value=json.dumps(value))
        return cls(proto.SerializeToString(), threshold=threshold, threads=threads)

    def classify(self, images_BCHW: torch.Tensor, threshold: float, force: torch.Tensor | None) -> RoutedOutput:
        if list(images_BCHW.shape[1:]) != self.image_shape:
            found, wanted = ("×".join(map(str, shape)) for shape in (images_BCHW.shape[1:], self.image_shape))
            raise UserError(
                f"This ONNX graph takes images of {wanted}, not of {found}; make another engine with "
                "compile_engine(…, image_shape=…)."
            )
        images = np.ascontiguousarray(images_BCHW.float().cpu().numpy())
        if self.one_by_one and len(images) > 1:
            rows = [self._run(images[i : i + 1], threshold) for i in range(len(images))]
            parts = [np.concatenate(column) for column in zip(*rows, strict=True)]
        else:
            parts = self._run(images, threshold)
        if any(len(part) != len(images) for part in parts):
            raise UserError("This ONNX graph does not give one row per image; export the run again.")
        logits_BK = torch.from_numpy(parts[0])
        if len(parts) == 1:
            path_BN = self.path_N.repeat(len(images), 1)
            return RoutedOutput(logits_BK, torch.zeros(*path_BN.shape, 2), path_BN)
        return RoutedOutput(logits_BK, torch.from_numpy(parts[1]), torch.from_numpy(parts[2]))

    def _run(self, images: np.ndarray, threshold: float) -> list[np.ndarray]:
        feeds = {"images": images}
        if self.about["kind"] != "static":
            feeds["threshold"] = np.array(threshold, np.float32)
        try:
            return self.session.run(None, feeds)
        except Exception as error:  # those of ONNX Runtime have no common base class
            raise UserError(f"ONNX Runtime cannot run this graph ({first_line(error)}); export it again.") from error


def _read_about(metadata: Mapping[str, str]) -> dict[str, Any]:
    """The entries in JSON, as `codinet export` writes them; other text, which other programs may add, is ignored."""
    about: dict[str, Any] = {}
    for key, value in metadata.items():
        with suppress(ValueError):
            about[key] = parse_json(value)
    return about


def _foreign(session: onnxruntime.InferenceSession, about: Mapping[str, Any]) -> str | None:
    """The first difference from a graph of ours, in words; None where there is none."""
    kind = about.get("kind")
    if not isinstance(kind, str) or kind not in get_args(Kind):
        return f"its kind is {shown(kind)}"
    inputs, outputs = session.get_inputs(), session.get_outputs()
    wanted = ["logits"] if kind == "static" else ["logits", "scores", "path"]
    optional = [] if kind == "static" else ["threshold"]
    if [one.name for one in inputs] != ["images"] or [one.name for one in outputs] != wanted:
        return f"its inputs are {shown([one.name for one in inputs])}, its outputs {shown([o.name for o in outputs])}"
    if [one.name for one in session.get_overridable_initializers()] != optional:
        return "its threshold is not an input with a default"
    if any(one.type != "tensor(float)" for one in (*inputs, *outputs)):
        return "its inputs and outputs are not float32"
    shape = inputs[0].shape
    if len(shape) != 4 or any(type(side) is not int or side < 1 for side in shape[1:]):
        return f"its images have the shape {shown(shape)}"
    ranks = [len(one.shape) for one in outputs]
    if ranks != [2, 3, 2][: len(ranks)] or (kind == "routed" and shape[0] != 1):
        return "its outputs have other shapes"
    threshold, path = about.get("threshold", 0.5), about.get("path", [])
    if type(threshold) not in (int, float) or not math.isfinite(threshold) or not 0 <= threshold <= 1:
        return f"its threshold is {shown(threshold)}"
    if not isinstance(path, list) or any(type(block) is not int or block not in (0, 1) for block in path):
        return f"its path is {shown(path)}"
    return None
