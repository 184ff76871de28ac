"""ONNX: export a network to a file, and run it in ONNX Runtime or OpenVINO. Needs the extra `onnx`."""

from codinet.engines.onnx.network_graph import usual_decisions
from codinet.engines.onnx.onnx_file import ExportInfo, export
from codinet.engines.onnx.openvino_runtime import OpenVinoEngine
from codinet.engines.onnx.runtime import OnnxEngine

__all__ = ["ExportInfo", "OnnxEngine", "OpenVinoEngine", "export", "usual_decisions"]
