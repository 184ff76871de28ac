"""codinet: image classifiers that decide, per image, which residual blocks to run."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codinet.adopt import make_dynamic
    from codinet.config import ModelConfig
    from codinet.cost import CostTable, block_costs
    from codinet.create import create_model, list_models, list_pretrained
    from codinet.engines import compile_engine
    from codinet.errors import UserError
    from codinet.model import CoDiNet
    from codinet.records import PathTable, RoutedOutput
    from codinet.runs import open_run
    from codinet.saving import load, save
    from codinet.specs import allow_code
    from codinet.thresholds import threshold_for

__version__ = "0.1.0"

__all__ = [
    "CoDiNet",
    "CostTable",
    "ModelConfig",
    "PathTable",
    "RoutedOutput",
    "UserError",
    "allow_code",
    "block_costs",
    "compile_engine",
    "create_model",
    "list_models",
    "list_pretrained",
    "load",
    "make_dynamic",
    "open_run",
    "save",
    "threshold_for",
]

# The module of each public name. It is imported at first use, so that `codinet --help` does not wait for torch.
_MODULES = {
    "CoDiNet": "codinet.model",
    "CostTable": "codinet.cost",
    "ModelConfig": "codinet.config",
    "PathTable": "codinet.records",
    "RoutedOutput": "codinet.records",
    "UserError": "codinet.errors",
    "allow_code": "codinet.specs",
    "block_costs": "codinet.cost",
    "compile_engine": "codinet.engines",
    "create_model": "codinet.create",
    "list_models": "codinet.create",
    "list_pretrained": "codinet.create",
    "load": "codinet.saving",
    "make_dynamic": "codinet.adopt",
    "open_run": "codinet.runs",
    "save": "codinet.saving",
    "threshold_for": "codinet.thresholds",
}


if not TYPE_CHECKING:  # so that mypy reports names that do not exist

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'codinet' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
