"""A split that stays in memory or on disk and is brought to the device one batch at a time, by threads.

Threads gather or decode bytes ahead of the training. Normalisation and random views run on the device. A batch is
copied into buffers that never move, so that a step captured in a CUDA graph finds it. The caller chooses which images
make a batch. No random numbers are drawn.
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from codinet.data.dataset import Dataset, Split
from codinet.data.lazy import LazyImages
from codinet.data.resident import Resident
from codinet.data.threads import MOST, ThreadCrew, count_cores, wait_for
from codinet.data.views import normalise

_AHEAD = 2  # batches prepared while one is used
_MOST_GATHERING = 2  # threads; copying rows of a tensor needs no more
_TINY = 8192  # bytes of an image for which Python itself takes longer than the decoder: a second thread slows it down
_LEAST_ROWS = 8  # of a batch that one thread takes

Batch = tuple[torch.Tensor, torch.Tensor]  # bytes_BCHW, labels_B


class _Pending(NamedTuple):
    """A batch whose rows are being filled."""

    images_BCHW: torch.Tensor
    labels_B: torch.Tensor
    parts: list[Future[None]]


class Stream:
    """Like `Resident`, for splits that the device cannot hold."""

    def __init__(self, split: Split, dataset: Dataset, device: torch.device, *, threads: int | None = None) -> None:
        self.split, self.device = split, device
        self.threads = count_threads(split) if threads is None else threads
        self.mean_C = torch.tensor(dataset.mean, device=device)
        self.std_C = torch.tensor(dataset.std, device=device)
        self._window: Resident | None = None

    def __len__(self) -> int:
        return len(self.split)

    def window(self, size: int) -> Resident:
        """The fixed buffers into which `deliver` puts batches of this size."""
        if self._window is None or len(self._window) != size:
            shape = (size, *self.split.images_NCHW.shape[1:])
            self._window = Resident(
                torch.zeros(shape, dtype=torch.uint8, device=self.device),
                torch.zeros(size, dtype=torch.int64, device=self.device),
                self.mean_C,
                self.std_C,
            )
        return self._window

    def deliver(self, batches: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Put each batch, given as places in the split, into the window, and yield its places there."""
        window = self._window
        assert window is not None, "call window() first"
        places_L = torch.arange(len(window), device=self.device)
        with closing(self._fetch(batches)) as fetched:
            for images_LCHW, labels_L in fetched:
                window.images_NCHW.copy_(images_LCHW, non_blocking=True)
                window.labels_N.copy_(labels_L, non_blocking=True)
                yield places_L

    def batches(self, size: int) -> Iterator[Batch]:
        """The whole split once, in order, normalised."""
        with closing(self._fetch(torch.arange(len(self)).split(size))) as fetched:
            for images_BCHW, labels_B in fetched:
                bytes_BCHW = images_BCHW.to(self.device, non_blocking=True)
                yield normalise(bytes_BCHW, self.mean_C, self.std_C), labels_B.to(self.device, non_blocking=True)

    def _fetch(self, batches: Iterable[torch.Tensor]) -> Generator[Batch, None, None]:
        pending: deque[_Pending] = deque()
        with ThreadCrew(self.threads) as crew:
            for index_B in batches:
                pending.append(self._begin(crew, index_B))
                if len(pending) > _AHEAD:
                    yield self._finish(pending.popleft())
            while pending:
                yield self._finish(pending.popleft())

    def _begin(self, crew: ThreadCrew, index_B: torch.Tensor) -> _Pending:
        """Let the crew fill a batch; its rows are divided among the threads."""
        pin = self.device.type == "cuda"
        shape = (len(index_B), *self.split.images_NCHW.shape[1:])
        images_BCHW = torch.empty(shape, dtype=torch.uint8, pin_memory=pin)
        labels_B = self.split.labels_N[index_B]
        rows = max(_LEAST_ROWS, -(-len(index_B) // self.threads))
        pieces = zip(_cut(images_BCHW.numpy(), rows), _cut(index_B.numpy(), rows), strict=True)
        parts = [crew.submit(partial(self._fill, out, places)) for out, places in pieces]
        return _Pending(images_BCHW, labels_B.pin_memory() if pin else labels_B, parts)

    def _fill(self, out_BCHW: np.ndarray, places_B: np.ndarray) -> None:
        # numpy copies in this thread alone; torch would start a team of its own in every thread.
        images = self.split.images_NCHW
        if isinstance(images, LazyImages):
            images.read_into(out_BCHW, places_B.tolist())
        else:
            # With the default mode numpy would make a copy first; places are known to be inside the split.
            np.take(images.numpy(), places_B, axis=0, out=out_BCHW, mode="clip")

    def _finish(self, batch: _Pending) -> Batch:
        wait_for(batch.parts, "Reading images")
        return batch.images_BCHW, batch.labels_B


def _cut(array: np.ndarray, rows: int) -> list[np.ndarray]:
    return [array[start : start + rows] for start in range(0, len(array), rows)]


def count_threads(split: Split) -> int:
    """As many threads as help, of the cores that this process may use."""
    images = split.images_NCHW
    if not isinstance(images, LazyImages):
        return min(_MOST_GATHERING, count_cores())
    return 1 if images.shape[1:].numel() <= _TINY else min(MOST, count_cores())
