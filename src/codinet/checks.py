"""Checks of arguments. A wrong argument is a `UserError` whose message states the rule and the value.

All checks except `require_finite` and `require_weights` read only types, shapes, dtypes and devices, never tensor
values. So they can be part of a compiled function or a captured CUDA graph, and they never wait for a GPU.
"""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from codinet import errors
from codinet.errors import UserError, unknown

LARGEST_SIDE = 65_536  # pixels of an image's side; also the maximum number of channels
_LARGEST_INT = 2**63 - 1  # in torch
LARGEST_COUNT = 2**31 - 1  # epochs, steps, images, …
MOST_VIEWS = 10_000  # of an image


def shown(value: object) -> str:
    """A value as one short line; a tensor as its shape, dtype and device."""
    if isinstance(value, torch.Tensor):
        size = "×".join(map(str, value.shape)) or "one number"
        return f"a tensor of {size} ({str(value.dtype).removeprefix('torch.')} on {value.device})"
    return errors.shown(value)


def require_number(
    name: str, value: Any, low: float = -math.inf, high: float = math.inf, *, above: bool = False, below: bool = False
) -> None:
    """Requires a finite number from `low` to `high`; `above` and `below` exclude that end."""
    if type(value) in (float, int) or isinstance(value, np.floating | np.integer):
        number = value if type(value) in (float, int) else value.item()
        inside = (low < number if above else low <= number) and (number < high if below else number <= high)
        most = sys.float_info.max if type(number) is float else _LARGEST_INT
        if inside and abs(number) <= most:  # false for NaN and infinity
            return
    raise UserError(f"{name} must be {_range('a finite number', low, high, above, below)}, got {shown(value)}.")


def require_whole(name: str, value: Any, low: int, high: int | None = None) -> None:
    """Requires an integer from `low` to `high`."""
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
    """Requires True or False."""
    if not isinstance(value, bool):
        raise UserError(f"{name} must be True or False, got {shown(value)}.")


def require_choice(what: str, value: Any, known: Iterable[str]) -> None:
    """Requires one of the known names."""
    names = list(known)
    if not isinstance(value, str):
        raise UserError(f"The {what} must be one of {', '.join(names)}, got {shown(value)}.")
    if value not in names:
        raise unknown(what, value, names)


def require_kind(name: str, value: Any, kind: type, what: str) -> None:
    """Requires an object of a class; `what` describes it in the message."""
    if not isinstance(value, kind):
        raise UserError(f"{name} must be {what}, got {shown(value)}.")


def require_callable(name: str, value: Any) -> None:
    """Requires a function."""
    if not callable(value):
        raise UserError(f"{name} must be a function, got {shown(value)}.")


def require_tensor(name: str, value: Any, shape: Sequence[int | str], *, floating: bool = True) -> None:
    """Requires a tensor of a shape. A number in the shape is a size; a letter stands for any size above 0."""
    if isinstance(value, torch.Tensor) and len(value.shape) == len(shape):
        pairs = zip(value.shape, shape, strict=True)
        fits = all(size > 0 if isinstance(wanted, str) else size == wanted for size, wanted in pairs)
        if fits and (not floating or value.dtype.is_floating_point):
            return
    sizes, kind = "×".join(map(str, shape)), "floats" if floating else "numbers"
    raise UserError(f"{name} must be a tensor of {kind}, {sizes} and not empty, got {shown(value)}.")


def require_same_place(name: str, value: torch.Tensor, other_name: str, other: torch.Tensor) -> None:
    """Requires that two tensors have the same dtype and device."""
    if value.device != other.device or value.dtype != other.dtype:
        raise UserError(
            f"{name} and {other_name} must have the same dtype and device, got {value.dtype} on {value.device} and "
            f"{other.dtype} on {other.device}."
        )


def is_autocast(tensor: torch.Tensor) -> bool:
    """Whether autocast is on for a tensor's device, so that dtypes may differ."""
    return tensor.device.type != "meta" and torch.is_autocast_enabled(tensor.device.type)


def require_finite(name: str, value: torch.Tensor) -> None:
    """Requires values without NaN and infinity. It reads the values, so it waits for the device."""
    if value.is_meta or not bool(value.isfinite().all()):
        what = "no values: it is on the meta device" if value.is_meta else "NaN or infinity"
        raise UserError(f"{name} must hold finite numbers, got {what}.")


def require_image_shape(shape: Any) -> tuple[int, int, int]:
    """Requires (channels, height, width) and returns it as integers."""
    if not isinstance(shape, Sequence) or isinstance(shape, str) or len(shape) != 3:
        raise UserError(f"image_shape must be (channels, height, width), got {shown(shape)}.")
    for name, size in zip(("channels", "height", "width"), shape, strict=True):
        require_whole(f"{name} of image_shape", size, 1, LARGEST_SIDE)
    channels, height, width = shape
    return int(channels), int(height), int(width)


def describe_misfits(given: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], most: int = 2) -> str:
    """The first tensors whose names, shapes or dtypes differ, as a clause; empty if there are none."""
    kinds = {name: tuple(_tensor_kind(of.get(name)) for of in (given, expected)) for name in {*given, *expected}}
    odd = [(name, *kind) for name, kind in sorted(kinds.items()) if kind[0] != kind[1]]
    listed = [
        f"{name} is missing"
        if found is None
        else f"{name} is not expected"
        if wanted is None
        else f"{name} is {found} instead of {wanted}"
        for name, found, wanted in odd[:most]
    ]
    return ", ".join(listed) + (f", and {len(odd) - most} more differ" if len(odd) > most else "")


def _tensor_kind(tensor: torch.Tensor | None) -> str | None:
    """The dtype and shape of a tensor, such as "float32 10×64"."""
    if tensor is None:
        return None
    return f"{str(tensor.dtype).removeprefix('torch.')} {'×'.join(map(str, tensor.shape))}".rstrip()


def require_weights(
    tensors: Mapping[str, torch.Tensor],
    expected: Mapping[str, torch.Tensor],
    arch: str,
    source: str,
    advice: str = "restore the file or train again",
) -> None:
    """Require weights that a network can be loaded with: the expected names, shapes and dtypes, and finite values.

    Args:
        tensors: The weights.
        expected: The network's own.
        arch: The network's name.
        source: Where the weights come from.
        advice: What to do about weights that do not fit.
    """
    misfits = describe_misfits(tensors, expected)
    if misfits:
        raise UserError(f"{source} holds the weights of another network than {arch}: {misfits}; {advice}.")
    bad = next((name for name, tensor in tensors.items() if not tensor.isfinite().all()), None)
    if bad is not None:
        raise UserError(f"{bad} in {source} holds NaN or infinity; restore the file or train again.")
