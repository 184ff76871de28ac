"""Features of test images from a file of any origin: one row per image, in the test set's order."""

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load as parse_tensors

from codinet.data.memory import require_room
from codinet.errors import UserError, first_line
from codinet.files import open_regular, unreadable

NAMED = "features"  # the name of the right array where a file holds several
_KINDS = (".npy", ".npz", ".safetensors")


def load_features(file: Path, *, images: int) -> torch.Tensor:
    """feature_TD (float32) of a .npy, .npz or .safetensors file; `UserError` unless it has one row per image."""
    array = _read(file)
    if array.dtype.kind not in "fiub":
        raise UserError(f"{file} holds {array.dtype} values; features are numbers.")
    if array.ndim < 2 or len(array) != images:
        raise UserError(
            f"{file} holds an array of shape {array.shape}; give one row for each of the {images} test images."
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
        feature_TD = torch.from_numpy(array.reshape(images, -1).astype(np.float32))
    if feature_TD.shape[1] == 0 or not feature_TD.isfinite().all():
        raise UserError(f"{file} holds empty rows or values that are not finite; features must be finite numbers.")
    return feature_TD


def _read(file: Path) -> np.ndarray:
    if not file.is_file():
        raise UserError(f"There is no file {file}; give --features a .npy, .npz or .safetensors file.")
    if file.suffix not in _KINDS:
        raise UserError(f"{file} is not a .npy, .npz or .safetensors file; save the features as one of these.")
    try:
        with open_regular(file) as content:
            size = os.fstat(content.fileno()).st_size
            if file.suffix == ".npz":
                with zipfile.ZipFile(content) as archive:
                    size = sum(member.file_size for member in archive.infolist())
                content.seek(0)
            require_room(2 * size, what=str(file), way_out="use smaller features")
            if file.suffix == ".safetensors":
                tensors: dict[str, Any] = parse_tensors(content.read())
                return tensors[_only(file, list(tensors))]
            array: Any = np.load(content, allow_pickle=False)
            if file.suffix == ".npz":
                array = array[_only(file, list(array.files))]
    except UserError:
        raise
    except OSError as error:
        raise unreadable(file, error) from error
    except Exception as error:  # numpy, zip, zlib and safetensors each have their own errors
        raise UserError(f"{file} cannot be read as an array ({first_line(error)}); save it again.") from error
    if not isinstance(array, np.ndarray):
        raise UserError(f"{file} cannot be read as an array; save it with numpy.")
    return array


def _only(file: Path, names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    if NAMED in names:
        return NAMED
    raise UserError(f"{file} holds {len(names)} arrays ({', '.join(names[:5])}); name the right one {NAMED!r}.")
