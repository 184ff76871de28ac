"""Checks of arguments: a wrong one is a `UserError`, one line with the rule and the value.

Everything but `require_finite` looks at types, shapes, dtypes and devices only. The host knows these, so a check may
be part of a compiled function or a captured CUDA graph, and it never waits for a GPU. Knows nothing of networks.
"""

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from codinet import errors
from codinet.errors import UserError, unknown

LARGEST_SIDE = 65_536  # of an image, in pixels; also the most channels
_LARGEST_INT = 2**63 - 1  # that torch takes
LARGEST_COUNT = 2**31 - 1  # of epochs, steps, images, …


def shown(value: object) -> str:
    """A value in one short line; of a tensor its shape, dtype and device."""
    if isinstance(value, torch.Tensor):
        size = "×".join(map(str, value.shape)) or "one number"
        return f"a tensor of {size} ({str(value.dtype).removeprefix('torch.')} on {value.device})"
    try:
        return errors.shown(value)
    except Exception:  # an integer too long for Python to print, or a fault in a foreign __repr__
        return f"a value of type {type(value).__name__}"


def require_number(
    name: str, value: Any, low: float = -math.inf, high: float = math.inf, *, above: bool = False, below: bool = False
) -> None:
    """A finite number from `low` to `high`; with `above` or `below`, that end is not included."""
    if type(value) in (float, int) or isinstance(value, np.floating | np.integer):
        number = value if type(value) in (float, int) else value.item()
        inside = (low < number if above else low <= number) and (number < high if below else number <= high)
        most = sys.float_info.max if type(number) is float else _LARGEST_INT
        if inside and abs(number) <= most:  # false for NaN and infinity
            return
    raise UserError(f"{name} must be {_range('a finite number', low, high, above, below)}, got {shown(value)}.")


def require_whole(name: str, value: Any, low: int, high: int | None = None) -> None:
    """A whole number from `low` to `high`."""
    whole = type(value) is int or isinstance(value, np.integer)
    if whole and low <= value and (high is None or value <= high):
        return
    ends = f"of {low} or more" if high is None else f"from {low} to {high}"
    raise UserError(f"{name} must be a whole number {ends}, got {shown(value)}.")


def _range(what: str, low: float, high: float, above: bool, below: bool) -> str:
    ends = []
    if low > -math.inf:
        ends.append(f"above {low:g}" if above else f"of at least {low:g}")
    if high < math.inf:
        ends.append(f"below {high:g}" if below else f"of at most {high:g}")
    if len(ends) == 2 and not above and not below:
        ends = [f"from {low:g} to {high:g}"]
    return " ".join([what, " and ".join(ends)]).rstrip()


def require_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise UserError(f"{name} must be True or False, got {shown(value)}.")


def require_choice(what: str, value: Any, known: Iterable[str]) -> None:
    """One of the known names."""
    names = list(known)
    if not isinstance(value, str):
        raise UserError(f"The {what} must be one of {', '.join(names)}, got {shown(value)}.")
    if value not in names:
        raise unknown(what, value, names)


def require_kind(name: str, value: Any, kind: type, what: str) -> None:
    """An object of this class; `what` says how to get one."""
    if not isinstance(value, kind):
        raise UserError(f"{name} must be {what}, got {shown(value)}.")


def require_callable(name: str, value: Any) -> None:
    if not callable(value):
        raise UserError(f"{name} must be a function, got {shown(value)}.")


def require_tensor(name: str, value: Any, shape: Sequence[int | str], *, floating: bool = True) -> None:
    """A tensor of this shape: a number is a size, a letter stands for any size from 1 on."""
    if isinstance(value, torch.Tensor) and len(value.shape) == len(shape):
        pairs = zip(value.shape, shape, strict=True)
        fits = all(size > 0 if isinstance(wanted, str) else size == wanted for size, wanted in pairs)
        if fits and (not floating or value.dtype.is_floating_point):
            return
    sizes, kind = "×".join(map(str, shape)), "floats" if floating else "numbers"
    raise UserError(f"{name} must be a tensor of {kind}, {sizes} and not empty, got {shown(value)}.")


def require_same_place(name: str, value: torch.Tensor, other_name: str, other: torch.Tensor) -> None:
    """Two tensors of one dtype on one device."""
    if value.device != other.device or value.dtype != other.dtype:
        raise UserError(
            f"{name} and {other_name} must have the same dtype and device, got {value.dtype} on {value.device} and "
            f"{other.dtype} on {other.device}."
        )


def is_autocast(tensor: torch.Tensor) -> bool:
    """Whether autocast is on for the device of a tensor, so that dtypes may differ."""
    return tensor.device.type != "meta" and torch.is_autocast_enabled(tensor.device.type)


def require_finite(name: str, value: torch.Tensor) -> None:
    """No NaN or infinity. Reads the values, so it waits for the device."""
    if value.is_meta or not bool(value.isfinite().all()):
        what = "no values: it is on the meta device" if value.is_meta else "NaN or infinity"
        raise UserError(f"{name} must hold finite numbers, got {what}.")


def require_image_shape(shape: Any) -> tuple[int, int, int]:
    """Channels, height and width."""
    if not isinstance(shape, Sequence) or isinstance(shape, str) or len(shape) != 3:
        raise UserError(f"image_shape must be (channels, height, width), got {shown(shape)}.")
    for name, size in zip(("channels", "height", "width"), shape, strict=True):
        require_whole(f"{name} of image_shape", size, 1, LARGEST_SIDE)
    channels, height, width = shape
    return int(channels), int(height), int(width)
