"""Inference engines that skip blocks. They share one contract: `engine(images) -> RoutedOutput`.

`codinet.engines.onnx` (`OnnxEngine`, `export`) needs the extra `onnx`, so it is not imported here.
"""

from codinet.engines.branch import BranchEngine
from codinet.engines.choose import compile_engine
from codinet.engines.contract import Engine
from codinet.engines.folded_network import fold
from codinet.engines.gather import GatherEngine
from codinet.engines.graph import GraphEngine, StaticGraphEngine
from codinet.engines.reference import MaskedEngine, StaticEngine
from codinet.engines.switch import SwitchEngine

__all__ = [
    "BranchEngine",
    "Engine",
    "GatherEngine",
    "GraphEngine",
    "MaskedEngine",
    "StaticEngine",
    "StaticGraphEngine",
    "SwitchEngine",
    "compile_engine",
    "fold",
]
