"""Outputs and features of many images: from a forward pass of a network, or from a file of features."""

import os
import threading
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from safetensors.numpy import load as parse_tensors
from torch import nn

from codinet.data.free_memory import require_memory
from codinet.environment import torch_threads
from codinet.errors import UserError, first_line
from codinet.evaluate import exact_inference
from codinet.files import open_regular, unreadable
from codinet.records import RoutedOutput
from codinet.relaxation import run_probability

BATCH = 100  # the fastest on CPUs, which have small caches
ARRAY_NAME = "features"  # the array to read from a file with several
_SUFFIXES = (".npy", ".npz", ".safetensors")

Progress = Callable[[str, int | None], Callable[[int], None]]
"""Called with a step's title and size (None: unknown). Returns a function to call with the amount done since."""


def no_progress(_title: str, _total: int | None) -> Callable[[int], None]:
    """A `Progress` that shows nothing."""
    return lambda _done: None


class Network(Protocol):
    """From images to a `RoutedOutput`; `force` (B×N) imposes paths."""

    def __call__(self, images_BCHW: torch.Tensor, /, *, force: torch.Tensor | None = None) -> RoutedOutput: ...


class Outputs(NamedTuple):
    """What a network computes for T images, on the CPU."""

    logits_TK: torch.Tensor
    path_TN: torch.Tensor  # uint8
    run_probability_TN: torch.Tensor
    feature_TD: torch.Tensor  # the input of the chosen layer; D is 0 without one


def collect_outputs(
    network: Network,
    batch: Callable[[slice], torch.Tensor],
    images: int,
    advance: Callable[[int], None],
    *,
    feature_layer: nn.Module | None = None,
    force_TN: torch.Tensor | None = None,
) -> Outputs:
    """Run a network on images 0 to `images` - 1 and collect its outputs in this order.

    On a CPU each thread runs its own batches: threads that share a batch wait for each other at every layer.

    Args:
        network: The network, in evaluation mode.
        batch: Returns the images of a slice.
        images: Number of images.
        advance: Called with the number of images after each batch.
        feature_layer: A layer of the network whose input is collected too.
        force_TN: The path of each image, in place of the routers' decisions.
    """

    def run(start: int) -> Outputs:
        rows = slice(start, start + BATCH)
        with exact_inference():
            images_BCHW = batch(rows).contiguous(memory_format=torch.channels_last)  # faster on CPUs
            output = network(images_BCHW, force=None if force_TN is None else force_TN[rows].float())
            # A convolution that classifies gets features with a height and a width of 1.
            features_BD = last_input().flatten(1) if feature_layer is not None else output.logits_BK[:, :0]
            return Outputs(
                output.logits_BK.cpu(),
                output.path_BN.to(torch.uint8).cpu(),
                run_probability(output.scores_BN2).float().cpu(),
                features_BD.float().cpu(),
            )

    parts = []
    with _recorded_input(feature_layer) as last_input, _parallel_map(batch(slice(0, 1)).device) as map_batches:
        for part in map_batches(run, range(0, images, BATCH)):
            parts.append(part)
            advance(len(part.path_TN))
    # Clones made outside inference mode are ordinary tensors.
    return Outputs(*(torch.cat(column).clone() for column in zip(*parts, strict=True)))


@contextmanager
def _parallel_map(device: torch.device) -> Iterator[Callable]:
    """A `map` over a pool of single-threaded workers on a CPU, and the built-in `map` elsewhere."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield map
        return
    with torch_threads(1), ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield pool.map


@contextmanager
def _recorded_input(layer: nn.Module | None) -> Iterator[Callable[[], torch.Tensor]]:
    """Gives a function that returns the last input of `layer` in the calling thread."""
    seen = threading.local()

    def record(_layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        seen.last = inputs[0]

    handle = None if layer is None else layer.register_forward_pre_hook(record)
    try:
        yield lambda: seen.last
    finally:
        if handle is not None:
            handle.remove()


def load_features(file: Path, *, images: int) -> torch.Tensor:
    """Read features from a .npy, .npz or .safetensors file.

    Args:
        file: Holds one row per test image, in the order of the test set. In a file with several arrays, the right one
            must be named "features".
        images: Number of test images.

    Returns:
        The features (float32, T×D).

    Raises:
        UserError: The file cannot be read or does not fit.
    """
    array = _read_array(file)
    if array.dtype.kind not in "fiub":
        raise UserError(f"Features must be numbers, got {array.dtype} in {file}.")
    if array.ndim < 2 or len(array) != images:
        raise UserError(f"Features need one row for each of the {images} test images, got {array.shape} in {file}.")
    with np.errstate(over="ignore"):  # overflow gives infinity, which is rejected below
        feature_TD = torch.from_numpy(array.reshape(images, -1).astype(np.float32))
    if feature_TD.shape[1] == 0:
        raise UserError(f"Features must not be empty, got shape {array.shape} in {file}.")
    if not feature_TD.isfinite().all():
        raise UserError(f"Features must be finite numbers, got NaN or infinity in {file}.")
    return feature_TD


def _read_array(file: Path) -> np.ndarray:
    if not file.is_file():
        raise UserError(f"File not found: {file}. --features must be a .npy, .npz or .safetensors file.")
    if file.suffix not in _SUFFIXES:
        raise UserError(f"Features must be a .npy, .npz or .safetensors file, got {file}.")
    try:
        with open_regular(file) as content:
            size = os.fstat(content.fileno()).st_size
            if file.suffix == ".npz":
                with zipfile.ZipFile(content) as archive:
                    size = sum(member.file_size for member in archive.infolist())
                content.seek(0)
            require_memory(2 * size, what=str(file), hint="use smaller features")
            if file.suffix == ".safetensors":
                tensors: dict[str, Any] = parse_tensors(content.read())
                return tensors[_array_name(file, list(tensors))]
            array: Any = np.load(content, allow_pickle=False)
            if file.suffix == ".npz":
                array = array[_array_name(file, list(array.files))]
    except UserError:
        raise
    except OSError as error:
        raise unreadable(file, error) from error
    except Exception as error:  # numpy, zipfile, zlib and safetensors each have their own errors
        raise UserError(f"Cannot read an array from {file} ({first_line(error)}); save it again.") from error
    if not isinstance(array, np.ndarray):
        raise UserError(f"Cannot read an array from {file}; save it with numpy.")
    return array


def _array_name(file: Path, names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    if ARRAY_NAME in names:
        return ARRAY_NAME
    raise UserError(
        f"{file} must hold a single array or one named {ARRAY_NAME!r}, got {len(names)} arrays: {', '.join(names[:5])}."
    )
