"""Imports timm or torchvision, and explains how to repair an installation that does not work.

On Linux, PyPI's torchvision is built for CUDA. Next to a torch without CUDA its operators cannot be loaded, and
importing it fails with "operator torchvision::nms does not exist". Only object detection uses these operators.
"""

import importlib
import logging
from importlib import metadata
from types import ModuleType

import torch

from codinet.checks import require_choice
from codinet.errors import UserError, first_line

LIBRARIES = ("timm", "torchvision")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
_MISSING = ("nms", "qnms")  # the operators that torchvision looks up when it is imported
_declared: list[torch.library.Library] = []  # operators are removed with their library, so it is kept
_log = logging.getLogger(__name__)


def import_vision(name: str) -> ModuleType:
    """Import timm or torchvision, even if torchvision's operators do not fit the installed torch.

    In that case a warning states how to install a torchvision that fits, and the operators are declared without
    code. Classifiers do not use them.

    Args:
        name: "timm" or "torchvision".

    Returns:
        The package. `UserError` with the command that repairs the installation if it cannot be imported.
    """
    require_choice("library", name, LIBRARIES)
    try:
        return _import(name)
    except ImportError as error:
        raise UserError(
            f"{name} cannot be imported ({first_line(error)}); install it with pip install timm torchvision."
        ) from error
    except RuntimeError as error:
        if "torchvision::" not in str(error) or _declared:
            raise UserError(f"{name} cannot be imported ({first_line(error)}); {repair_command()}.") from error
    _declare_operators()
    _log.warning(f"The operators of torchvision do not fit this torch; classifiers work. To repair it: {_command()}")
    try:
        return _import(name)
    except Exception as error:
        raise UserError(f"{name} cannot be imported ({first_line(error)}); {repair_command()}.") from error


def _import(name: str) -> ModuleType:
    module = importlib.import_module(name)
    if name == "torchvision":
        importlib.import_module("torchvision.models")
    return module


def _declare_operators() -> None:
    """Declare the operators that torchvision looks up. Calling one raises NotImplementedError."""
    library = torch.library.Library("torchvision", "DEF")
    for name in _MISSING:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)


def repair_command() -> str:
    """How to install a torchvision that fits the installed torch, as part of a sentence."""
    return f"install the torchvision that fits your torch: {_command()}"


def _command() -> str:
    try:
        version = metadata.version("torchvision").partition("+")[0]
    except metadata.PackageNotFoundError:
        return "pip install timm torchvision"
    if torch.version.cuda is None:
        return f"pip install --force-reinstall --no-deps --index-url {CPU_INDEX} torchvision=={version}+cpu"
    return "pip install --force-reinstall torch torchvision"
