"""codinet: image classifiers that decide, per image, which residual blocks to run."""

from codinet.adopt import make_dynamic
from codinet.cost import CostTable, block_costs
from codinet.engines import compile_engine
from codinet.errors import UserError
from codinet.model import CoDiNet, ModelConfig, create_model, list_models
from codinet.records import PathTable, RoutedOutput
from codinet.thresholds import threshold_for
from codinet.zoo.pretrained import list_pretrained

__version__ = "0.1.0"

__all__ = [
    "CoDiNet",
    "CostTable",
    "ModelConfig",
    "PathTable",
    "RoutedOutput",
    "UserError",
    "block_costs",
    "compile_engine",
    "create_model",
    "list_models",
    "list_pretrained",
    "make_dynamic",
    "threshold_for",
]
