"""Run an exported network in OpenVINO on the CPU, as an engine. Needs the extra `openvino`.

The file is used as it is. OpenVINO takes an input that has a default for a constant, so `threshold` is fixed when the
file is compiled; a call with another threshold compiles it again.
"""

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from codinet.engines.onnx.runtime import OnnxEngine
from codinet.errors import UserError, first_line


class OpenVinoEngine(OnnxEngine):
    """A network of an exported file in OpenVINO, or of a network directly (`OpenVinoEngine.of`).

    Args:
        source: The file, or its content.
        threshold: The run probability from which a block runs. Default: the file's.
        threads: CPU threads. Default: as many as torch uses.
    """

    name: ClassVar[str] = "openvino"

    def __init__(
        self,
        source: Path | bytes,
        *,
        threshold: float | None = None,
        threads: int | None = None,
        portable: bool = True,
    ) -> None:
        super().__init__(source, threshold=threshold, threads=threads, portable=True)  # checks the file
        del self.session
        try:
            import openvino
        except ImportError as error:
            raise UserError("The openvino engine requires OpenVINO; install it with pip install openvino.") from error
        self.core = openvino.Core()
        self.proto = onnx.load_from_string(source if isinstance(source, bytes) else source.read_bytes())
        self.settings = {
            "INFERENCE_NUM_THREADS": threads or torch.get_num_threads(),
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32",  # otherwise bfloat16 where the CPU has it, and paths differ
        }
        self.lock, self.requests = threading.Lock(), threading.local()
        self.compiled = self.threshold, self._compile(self.threshold)

    def _compile(self, threshold: float) -> Any:
        for constant in self.proto.graph.initializer:
            if constant.name == "threshold":
                constant.CopyFrom(numpy_helper.from_array(np.array(threshold, np.float32), "threshold"))
        try:
            model = self.core.read_model(self.proto.SerializeToString())
            with keep_signal_stack():
                return self.core.compile_model(model, "CPU", self.settings)
        except RuntimeError as error:
            raise UserError(f"OpenVINO cannot compile this graph ({first_line(error)}); export it again.") from error

    def run_graph(self, images: np.ndarray, threshold: float) -> list[np.ndarray]:
        request = self._request(threshold if self.one_by_one or self.about["kind"] == "masked" else self.threshold)
        try:
            return [*request.infer({"images": images}).values()]
        except RuntimeError as error:
            raise UserError(f"OpenVINO cannot run this graph ({first_line(error)}); export it again.") from error

    def _request(self, threshold: float) -> Any:
        """This thread's request at a threshold. Requests cannot be shared between threads."""
        mine = getattr(self.requests, "mine", None)
        if mine is None or mine[0] != threshold:
            with self.lock:
                if self.compiled[0] != threshold:
                    self.compiled = threshold, self._compile(threshold)
                mine = self.requests.mine = threshold, self.compiled[1].create_infer_request()
        return mine[1]


class _SignalStack(ctypes.Structure):
    """`stack_t` of Linux."""

    _fields_ = (("memory", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def keep_signal_stack() -> Iterator[None]:
    """Restore the stack on which signal handlers of this thread run.

    Compiling a model replaces it, and deleting the model puts back the one from before. If two models are deleted in
    the order in which they were compiled, the stack of the first stays in use after it is freed, and Ctrl-C crashes.
    """
    if sys.platform != "linux":
        yield
        return
    sigaltstack, before = ctypes.CDLL(None).sigaltstack, _SignalStack()
    sigaltstack(None, ctypes.byref(before))
    try:
        yield
    finally:
        sigaltstack(ctypes.byref(before), None)
