"""Run an exported network in ONNX Runtime on the CPU, as an engine.

Reads files of `codinet export`; other ONNX files raise `UserError`. A routed graph takes one image, so a batch is a
loop; masked and static graphs take any batch. Paths cannot be forced, because decisions are made inside the graph.

A routed graph is rewritten in memory for this machine where possible (`blocked_layout`). ONNX Runtime does the same by
itself for a static graph. `portable` keeps the graph of the file, and so does a file with usual decisions
(`network_graph`).
"""

import math
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Self, get_args

import numpy as np
import onnx
import onnxruntime
import torch

from codinet.engines.contract import Engine, InputSpec
from codinet.engines.onnx.blocked_layout import keep_blocked
from codinet.engines.onnx.build_graph import Kind, build
from codinet.engines.onnx.network_graph import Usual
from codinet.errors import UserError, first_line, shown
from codinet.files import open_regular, parse_json, to_json, unreadable
from codinet.model import RoutedNetwork
from codinet.records import RoutedOutput

TOLERANCE = 1e-4  # between the outputs of a graph and of its rewritten form, relative to the largest


class OnnxEngine(Engine):
    """An ONNX Runtime session for an exported file, or for a network directly (`OnnxEngine.of`).

    Args:
        source: The file, or its content.
        threshold: The run probability from which a block runs. Default: the file's.
        threads: CPU threads. Default: as many as torch uses.
        portable: Do not rewrite the graph for this machine.
    """

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
        problem = _format_problem(self.session, self.about)
        if problem is not None:
            raise UserError(f"This ONNX file was not written by codinet export: {problem}; export the run again.")
        self.image_shape: list[int] = self.session.get_inputs()[0].shape[1:]
        spec = InputSpec(self.image_shape[0], dtype=None, blocks=None)
        super().__init__(spec, threshold=float(self.about.get("threshold", 0.5)) if threshold is None else threshold)
        self.one_by_one = self.about["kind"] == "routed"
        if self.one_by_one and not portable and "usual" not in self.about:  # the rewriting gains less than that
            self.session = open_blocked(source, self.session, threads=threads) or self.session
        # The path of a static graph. Converting the list takes 30 µs, so it is done once.
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
        usual: Usual | None = None,
        portable: bool = False,
        thorough: bool = True,
    ) -> Self:
        """The engine of a network, without a file.

        Args:
            model: The network.
            image_shape: Channels, height and width.
            kind: routed, masked or static.
            threshold: The run probability from which a block runs.
            threads: CPU threads. Default: as many as torch uses.
            usual: See `build_graph.build`.
            portable: Do not rewrite the graph for this machine.
            thorough: See `build_graph.build`.
        """
        proto = build(model, image_shape, kind=kind, usual=usual, thorough=thorough)
        about: dict[str, Any] = {"kind": kind} if usual is None else {"kind": kind, "usual": usual}
        if kind == "static":
            about["path"] = [1] * len(model.blocks)
        for key, value in about.items():
            proto.metadata_props.add(key=key, value=to_json(value))
        return cls(proto.SerializeToString(), threshold=threshold, threads=threads, portable=portable)

    def classify(self, images_BCHW: torch.Tensor, threshold: float, force: torch.Tensor | None) -> RoutedOutput:
        if list(images_BCHW.shape[1:]) != self.image_shape:
            found, expected = ("×".join(map(str, shape)) for shape in (images_BCHW.shape[1:], self.image_shape))
            raise UserError(
                f"This ONNX graph takes images of {expected}, got {found}; make another engine with "
                "compile_engine(…, image_shape=…)."
            )
        images = np.ascontiguousarray(images_BCHW.float().cpu().numpy())
        if self.one_by_one and len(images) > 1:
            rows = [self.run_graph(images[i : i + 1], threshold) for i in range(len(images))]
            parts = [np.concatenate(column) for column in zip(*rows, strict=True)]
        else:
            parts = self.run_graph(images, threshold)
        if any(len(part) != len(images) for part in parts):
            raise UserError("This ONNX graph does not return one row per image; export the run again.")
        logits_BK = torch.from_numpy(parts[0])
        if len(parts) == 1:
            path_BN = self.path_N.repeat(len(images), 1)
            return RoutedOutput(logits_BK, torch.zeros(*path_BN.shape, 2), path_BN)
        return RoutedOutput(logits_BK, torch.from_numpy(parts[1]), torch.from_numpy(parts[2]))

    def run_graph(self, images: np.ndarray, threshold: float) -> list[np.ndarray]:
        """Logits and, unless the graph is static, scores and path of images that the graph takes at once."""
        feeds = {"images": images}
        if self.about["kind"] != "static":
            feeds["threshold"] = np.array(threshold, np.float32)
        try:
            return self.session.run(None, feeds)
        except Exception as error:  # ONNX Runtime's exceptions have no common base class
            raise UserError(f"ONNX Runtime cannot run this graph ({first_line(error)}); export it again.") from error


def _read_about(metadata: Mapping[str, str]) -> dict[str, Any]:
    """The metadata that `codinet export` writes as JSON; text that other programs added is ignored."""
    about: dict[str, Any] = {}
    for key, value in metadata.items():
        with suppress(ValueError):
            about[key] = parse_json(value)
    return about


def _format_problem(session: onnxruntime.InferenceSession, about: Mapping[str, Any]) -> str | None:
    """The first difference from a graph of `codinet export`, as a clause; None if there is none."""
    kind = about.get("kind")
    if not isinstance(kind, str) or kind not in get_args(Kind):
        return f"its kind is {shown(kind)}"
    inputs, outputs = session.get_inputs(), session.get_outputs()
    expected = ["logits"] if kind == "static" else ["logits", "scores", "path"]
    optional = [] if kind == "static" else ["threshold"]
    if [one.name for one in inputs] != ["images"] or [one.name for one in outputs] != expected:
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
        return "its outputs have unexpected shapes"
    threshold, path = about.get("threshold", 0.5), about.get("path", [])
    if type(threshold) not in (int, float) or not math.isfinite(threshold) or not 0 <= threshold <= 1:
        return f"its threshold is {shown(threshold)}"
    if not isinstance(path, list) or any(type(block) is not int or block not in (0, 1) for block in path):
        return f"its path is {shown(path)}"
    return None


def open_session(
    source: Path | bytes, *, threads: int | None = None, save_optimized: Path | None = None
) -> onnxruntime.InferenceSession:
    """Open a graph on the CPU with this many threads (default: as many as torch uses); `UserError` if that fails."""
    if isinstance(source, Path):
        try:
            open_regular(source).close()  # ONNX Runtime would block on a named pipe
        except OSError as error:
            raise unreadable(source, error) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.inter_op_num_threads = 1
    # Otherwise its threads keep spinning after a call and take the cores from other work.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = 4  # warnings are about missed optimizations, and errors are raised
    if save_optimized is not None:
        options.optimized_model_filepath = str(save_optimized)
    content = source if isinstance(source, bytes) else str(source)
    try:
        # A fallback would print a message, and there is no other provider.
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        name = "The graph" if isinstance(source, bytes) else str(source)
        raise UserError(f"{name} cannot be opened by ONNX Runtime ({first_line(error)}); export it again.") from error


def open_blocked(
    source: Path | bytes, plain: onnxruntime.InferenceSession, *, threads: int | None = None
) -> onnxruntime.InferenceSession | None:
    """A routed graph rewritten for this machine; None unless its outputs are those of `plain`.

    It consists of internal nodes of ONNX Runtime, which another version may reject or interpret differently.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            optimized = Path(folder) / "optimized.onnx"
            open_session(source, threads=threads, save_optimized=optimized)
            model = onnx.load(optimized)
        keep_blocked(model)
        session = open_session(model.SerializeToString(), threads=threads)
        return session if _agree(session, plain) else None
    except Exception:  # in any case the graph of the file can be used
        return None


def _agree(one: onnxruntime.InferenceSession, other: onnxruntime.InferenceSession) -> bool:
    """Whether two routed graphs have the same outputs with all blocks run and with all blocks skipped.

    Together these cover all branches, and rounding cannot change a decision.
    """
    images = np.random.default_rng(0).standard_normal(other.get_inputs()[0].shape).astype(np.float32)
    for threshold in (0.0, 1.0):
        feeds = {"images": images, "threshold": np.array(threshold, np.float32)}
        for ours, theirs in zip(one.run(None, feeds), other.run(None, feeds), strict=True):
            if not np.abs(ours - theirs).max() <= TOLERANCE * max(1.0, np.abs(theirs).max()):
                return False  # also if one is NaN
    return True
