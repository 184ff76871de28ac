"""Opening graphs in ONNX Runtime, on the CPU. Knows nothing of engines."""

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch

from codinet.engines.onnx_layout import keep_blocked
from codinet.errors import UserError

TOLERANCE = 1e-4  # of what a graph and its rewritten form give, relative to its largest


def open_session(
    source: Path | bytes, *, threads: int | None = None, save_optimized: Path | None = None
) -> onnxruntime.InferenceSession:
    """A session on the CPU with this many threads, or as many as torch uses."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.inter_op_num_threads = 1
    # Else its threads go on spinning after an answer, and take the cores from whoever computes next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = 3  # its warnings are about optimizations it did not find
    if save_optimized is not None:
        options.optimized_model_filepath = str(save_optimized)
    content = source if isinstance(source, bytes) else str(source)
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common base but this
        what = "The graph" if isinstance(source, bytes) else str(source)
        raise UserError(f"{what} cannot be opened by ONNX Runtime: {str(error).splitlines()[0]}") from error


def open_blocked(
    source: Path | bytes, plain: onnxruntime.InferenceSession, *, threads: int | None = None
) -> onnxruntime.InferenceSession | None:
    """A routed graph rewritten for this machine; see `onnx_layout`. None unless it gives what `plain` gives.

    It is made of nodes that ONNX Runtime keeps to itself, so another version may refuse it or mean something else.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            optimized = Path(folder) / "optimized.onnx"
            open_session(source, threads=threads, save_optimized=optimized)
            model = onnx.load(optimized)
        keep_blocked(model)
        session = open_session(model.SerializeToString(), threads=threads)
        return session if _agree(session, plain) else None
    except Exception:  # whatever it was, the graph as it is written can be used
        return None


def _agree(one: onnxruntime.InferenceSession, other: onnxruntime.InferenceSession) -> bool:
    """Whether two routed graphs give the same with every block run and with every block skipped.

    Between them these read all branches, and no decision is near enough to its limit to fall either way.
    """
    images = np.random.default_rng(0).standard_normal(other.get_inputs()[0].shape).astype(np.float32)
    for threshold in (0.0, 1.0):
        feeds = {"images": images, "threshold": np.array(threshold, np.float32)}
        for ours, theirs in zip(one.run(None, feeds), other.run(None, feeds), strict=True):
            if not np.abs(ours - theirs).max() <= TOLERANCE * max(1.0, np.abs(theirs).max()):
                return False  # not a number is a difference too
    return True
