"""Running a network over many images and keeping what it said. Knows nothing of what the images are."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch
from torch import nn

from codinet.evaluate import exact_inference
from codinet.records import RoutedOutput
from codinet.relaxation import run_probability

BATCH = 100  # the fastest on CPUs, where caches are small

Batch = Callable[[slice], torch.Tensor]
Watch = Callable[[str, int | None], Callable[[int], None]]
"""Told what begins and how many steps it has (None: unknown); returns what is called after some of them."""


class Network(Protocol):
    """From images to what is said of them; `force` (B×N) imposes paths."""

    def __call__(self, images_BCHW: torch.Tensor, /, *, force: torch.Tensor | None = None) -> RoutedOutput: ...


def silent(_title: str, _total: int | None) -> Callable[[int], None]:
    """The watch of callers that show nothing."""
    return lambda _steps: None


class Look(NamedTuple):
    """What a network said of T images, on the CPU."""

    logits_TK: torch.Tensor
    path_TN: torch.Tensor  # uint8
    run_probability_TN: torch.Tensor
    feature_TD: torch.Tensor  # what the tapped layer was given; D is 0 without one


def look(
    network: Network,
    batch: Batch,
    images: int,
    advance: Callable[[int], None],
    *,
    tap: nn.Module | None = None,
    force_TN: torch.Tensor | None = None,
) -> Look:
    """Hard paths, their relaxation and the logits of images 0 … images − 1, which `batch` gives by slices.

    With `force_TN` each image takes its row of it, whatever the routers say.
    """

    def one(start: int) -> Look:
        rows = slice(start, start + BATCH)
        with exact_inference():
            # Channels last is the faster layout of convolutions on CPUs.
            images_BCHW = batch(rows).contiguous(memory_format=torch.channels_last)
            output = network(images_BCHW, force=None if force_TN is None else force_TN[rows].float())
            features_BD = taken() if tap is not None else output.logits_BK[:, :0]
            return Look(
                output.logits_BK.cpu(),
                output.path_BN.to(torch.uint8).cpu(),
                run_probability(output.scores_BN2).float().cpu(),
                features_BD.float().cpu(),
            )

    parts = []
    with _inputs_of(tap) as taken, _workers(batch(slice(0, 1)).device) as each:
        for part in each(one, range(0, images, BATCH)):
            parts.append(part)
            advance(len(part.path_TN))
    # Cloned out of inference mode, so that the results are ordinary tensors.
    return Look(*(torch.cat(column).clone() for column in zip(*parts, strict=True)))


@contextmanager
def _workers(device: torch.device) -> Iterator[Callable]:
    """A `map` that keeps the order. On CPUs, one thread a core, each computing its own batch alone: cores that
    share a batch wait for each other at every layer, and wait long when the machine has other work."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield map
        return
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield pool.map
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _inputs_of(layer: nn.Module | None) -> Iterator[Callable[[], torch.Tensor]]:
    """Within, gives what `layer` was last given in the thread that asks."""
    seen = threading.local()

    def keep(_layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        seen.last = inputs[0]

    handle = None if layer is None else layer.register_forward_pre_hook(keep)
    try:
        yield lambda: seen.last
    finally:
        if handle is not None:
            handle.remove()
