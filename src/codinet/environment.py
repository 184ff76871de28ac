"""Where a figure was made: versions, device, commit. Goes into every run folder and results file."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import codinet
from codinet.errors import UserError


def describe(device: torch.device) -> dict[str, Any]:
    """What every figure carries with it: versions, commit, device."""
    return {
        "codinet": codinet.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
    }


def device_name(device: torch.device) -> str:
    """A GPU's model; of others the kind."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def commit() -> str | None:
    """The source checkout's commit, marked when files differ from it; None for an installed package.

    CODINET_COMMIT names it for a copy of the sources that has no history.
    """
    if "CODINET_COMMIT" in os.environ:
        return os.environ["CODINET_COMMIT"]
    root = Path(codinet.__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        said = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
        )
    except OSError:
        return None
    return said.stdout.strip() or None


def is_out_of_memory(error: BaseException) -> bool:
    """torch has a class for a GPU's memory, and only words for the machine's."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def pick_device(name: str | None) -> torch.device:
    """The device asked for, or the best one there is."""
    if name is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.ones(1, device=device).item()  # a device that cannot give a number back is of no use
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"There is no device {name!r} here; use --device cpu, or leave it out.") from error
    return device
