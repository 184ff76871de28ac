"""Inference that skips: engines with one contract, `engine(images) -> RoutedOutput`.

`OnnxEngine` (in `codinet.engines.onnx`) and `export` need the extra `onnx` and are not imported from here.
"""

from codinet.engines.branch import BranchEngine
from codinet.engines.choose import compile_engine
from codinet.engines.contract import Engine
from codinet.engines.folding import fold
from codinet.engines.gather import GatherEngine
from codinet.engines.graph import GraphEngine, StaticGraphEngine
from codinet.engines.masked import MaskedEngine
from codinet.engines.static import StaticEngine

__all__ = [
    "BranchEngine",
    "Engine",
    "GatherEngine",
    "GraphEngine",
    "MaskedEngine",
    "StaticEngine",
    "StaticGraphEngine",
    "compile_engine",
    "fold",
]
