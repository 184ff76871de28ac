"""Opening graphs in ONNX Runtime, on the CPU. Does not know engines."""

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch

from codinet.engines.onnx_layout import keep_blocked
from codinet.errors import UserError, first_line
from codinet.files import open_regular, unreadable

TOLERANCE = 1e-4  # between the outputs of a graph and of its rewritten form, relative to the largest


def open_session(
    source: Path | bytes, *, threads: int | None = None, save_optimized: Path | None = None
) -> onnxruntime.InferenceSession:
    """A session on the CPU with this many threads, or as many as torch uses; `UserError` where it cannot be opened."""
    if isinstance(source, Path):
        try:
            open_regular(source).close()  # ONNX Runtime would wait for a named pipe
        except OSError as error:
            raise unreadable(source, error) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or torch.get_num_threads()
    options.inter_op_num_threads = 1
    # Otherwise its threads keep spinning after an answer, and take the cores from other work.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = 4  # warnings are about missed optimizations, errors are raised as well
    if save_optimized is not None:
        options.optimized_model_filepath = str(save_optimized)
    content = source if isinstance(source, bytes) else str(source)
    try:
        # A fallback would print, and there is no other provider.
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except Exception as error:  # those of ONNX Runtime have no common base class
        what = "The graph" if isinstance(source, bytes) else str(source)
        raise UserError(f"{what} cannot be opened by ONNX Runtime ({first_line(error)}); export it again.") from error


def open_blocked(
    source: Path | bytes, plain: onnxruntime.InferenceSession, *, threads: int | None = None
) -> onnxruntime.InferenceSession | None:
    """A routed graph rewritten for this machine; see `onnx_layout`. None unless its outputs are those of `plain`.

    It consists of internal nodes of ONNX Runtime; another version may refuse them or give them another meaning.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            optimized = Path(folder) / "optimized.onnx"
            open_session(source, threads=threads, save_optimized=optimized)
            model = onnx.load(optimized)
        keep_blocked(model)
        session = open_session(model.SerializeToString(), threads=threads)
        return session if _agree(session, plain) else None
    except Exception:  # whatever went wrong, the graph of the file can be used
        return None


def _agree(one: onnxruntime.InferenceSession, other: onnxruntime.InferenceSession) -> bool:
    """Whether two routed graphs have the same outputs with every block run and with every block skipped.

    Together these use all branches, and no decision is so close that rounding could change it.
    """
    images = np.random.default_rng(0).standard_normal(other.get_inputs()[0].shape).astype(np.float32)
    for threshold in (0.0, 1.0):
        feeds = {"images": images, "threshold": np.array(threshold, np.float32)}
        for ours, theirs in zip(one.run(None, feeds), other.run(None, feeds), strict=True):
            if not np.abs(ours - theirs).max() <= TOLERANCE * max(1.0, np.abs(theirs).max()):
                return False  # also for NaN
    return True
