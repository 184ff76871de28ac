"""An exported network in ONNX Runtime, behind the engines' contract.

Reads what `codinet export` writes. A routed graph takes one image, so a batch is looped; masked and static ones
take any batch. Paths cannot be forced: decisions are inside the graph. Needs the extra `onnx`.

A routed graph is rewritten in memory for the machine at hand where that can be done (`onnx_layout`): ONNX Runtime
does as much by itself for a static one. `portable` leaves it as it is written.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import torch

from codinet.engines.contract import Engine, Takes
from codinet.engines.onnx_graph import Kind, build
from codinet.engines.onnx_session import open_blocked, open_session
from codinet.errors import UserError
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
        if self.about.get("kind") not in get_args(Kind):
            raise UserError("This ONNX file was not written by codinet export: it does not say what it holds.")
        self.image_shape: list[int] = self.session.get_inputs()[0].shape[1:]
        takes = Takes(self.image_shape[0], dtype=None, blocks=None)
        super().__init__(takes, threshold=float(self.about.get("threshold", 0.5)) if threshold is None else threshold)
        self.one_by_one = self.about["kind"] == "routed"
        if self.one_by_one and not portable:
            self.session = open_blocked(source, self.session, threads=threads) or self.session
        # Of a static graph. Made once: from a list, for each image, it took 30 µs.
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
                f"This ONNX graph takes images of {wanted}, not of {found}; compile_engine(…, image_shape=…) makes one "
                "for them."
            )
        images = np.ascontiguousarray(images_BCHW.float().cpu().numpy())
        if self.one_by_one and len(images) > 1:
            rows = [self._run(images[i : i + 1], threshold) for i in range(len(images))]
            parts = [np.concatenate(column) for column in zip(*rows, strict=True)]
        else:
            parts = self._run(images, threshold)
        logits_BK = torch.from_numpy(parts[0])
        if len(parts) == 1:
            path_BN = self.path_N.repeat(len(images), 1)
            return RoutedOutput(logits_BK, torch.zeros(*path_BN.shape, 2), path_BN)
        return RoutedOutput(logits_BK, torch.from_numpy(parts[1]), torch.from_numpy(parts[2]))

    def _run(self, images: np.ndarray, threshold: float) -> list[np.ndarray]:
        feeds = {"images": images}
        if self.about["kind"] != "static":
            feeds["threshold"] = np.array(threshold, np.float32)
        return self.session.run(None, feeds)


def _read_about(metadata: Mapping[str, str]) -> dict[str, Any]:
    """What a file tells in JSON, as `codinet export` writes it; what others added in words of theirs is left out."""
    about: dict[str, Any] = {}
    for key, value in metadata.items():
        with suppress(json.JSONDecodeError):
            about[key] = json.loads(value)
    return about
