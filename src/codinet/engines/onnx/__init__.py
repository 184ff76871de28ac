"""ONNX: export a network to a file and run it in ONNX Runtime. Needs the extra `onnx`."""

from codinet.engines.onnx.onnx_file import ExportInfo, export
from codinet.engines.onnx.runtime import OnnxEngine

__all__ = ["ExportInfo", "OnnxEngine", "export"]
