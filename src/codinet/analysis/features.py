"""Features of test images from a file of any origin: one row an image, in the test set's order."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file

from codinet.errors import UserError

NAMED = "features"  # what to call the array where a file holds several


def load_features(file: Path, *, images: int) -> torch.Tensor:
    """feature_TD (float32) of a .npy, .npz or .safetensors file, or a `UserError` that says what is wrong."""
    array = _read(file)
    if array.dtype.kind not in "fiub":
        raise UserError(f"{file} holds {array.dtype} values; features are numbers.")
    if array.ndim < 2 or len(array) != images:
        raise UserError(
            f"{file} holds an array of shape {array.shape}; give one row for each of the {images} test images."
        )
    feature_TD = torch.from_numpy(array.reshape(images, -1).astype(np.float32))
    if feature_TD.shape[1] == 0 or not feature_TD.isfinite().all():
        raise UserError(f"{file} holds empty rows or values that are not finite; features must be finite numbers.")
    return feature_TD


def _read(file: Path) -> np.ndarray:
    if not file.is_file():
        raise UserError(f"There is no file {file}; give --features a .npy, .npz or .safetensors file.")
    try:
        if file.suffix == ".npy":
            return np.load(file, allow_pickle=False)
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as arrays:
                return arrays[_only(file, list(arrays.files))]
        if file.suffix == ".safetensors":
            tensors: dict[str, Any] = load_file(file)
            return tensors[_only(file, list(tensors))]
    except UserError:
        raise
    except (OSError, ValueError, EOFError, KeyError, TypeError, SafetensorError) as error:
        raise UserError(f"{file} cannot be read as an array ({error}).") from error
    raise UserError(f"{file} is no .npy, .npz or .safetensors file; save the features as one of these.")


def _only(file: Path, names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    if NAMED in names:
        return NAMED
    raise UserError(f"{file} holds {len(names)} arrays ({', '.join(names[:5])}); call the right one {NAMED!r}.")
