"""Batches of a split for training and evaluation: `Resident` keeps a split on the device, `Stream` loads it in batches.

Both have the same interface and give the same batches. `SplitPlacer` chooses between them by free memory. The caller
decides which images form a batch, so no random numbers are drawn here except in `epoch_order`.
"""

import math
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch

from codinet.data.dataset import Dataset, LazyImages, Split
from codinet.data.free_memory import free_bytes, require_memory
from codinet.data.threads import MAX_THREADS, DaemonThreadPool, count_cores, wait_for
from codinet.data.views import normalise
from codinet.errors import UserError

Batch = tuple[torch.Tensor, torch.Tensor]  # images_BCHW, labels_B
Loader = Literal["auto", "resident", "stream"]

_SPLITS_FRACTION = 0.5  # of the free memory that splits may use together; the rest is for training
_PREFETCH = 2  # batches prepared while one is used
_MAX_COPY_THREADS = 2  # copying rows of a tensor is not faster with more
_TINY = 8192  # bytes; for smaller images Python takes longer than the decoder, and a second thread is slower
_MIN_ROWS = 8  # of a batch per thread


@dataclass(frozen=True)
class Resident:
    """A whole split as bytes on a device. Batches are normalised when they are taken."""

    images_NCHW: torch.Tensor  # uint8
    labels_N: torch.Tensor
    mean_C: torch.Tensor
    std_C: torch.Tensor

    @classmethod
    def of(cls, split: Split, dataset: Dataset, device: torch.device) -> "Resident":
        """Copy a split of `dataset` to `device`; lazy images are decoded."""
        images_NCHW = split.images_NCHW
        if isinstance(images_NCHW, LazyImages):
            require_memory(
                images_NCHW.nbytes,
                what=f"{dataset.name} with {len(split):,} images",
                hint="choose a smaller image size or use fewer images",
            )
            images_NCHW = images_NCHW[:]
        return cls(
            images_NCHW.to(device),
            split.labels_N.to(device),
            torch.tensor(dataset.mean, device=device),
            torch.tensor(dataset.std, device=device),
        )

    def __len__(self) -> int:
        return len(self.labels_N)

    def window(self, size: int) -> "Resident":
        """Return the split from which a step on batches of `size` takes its images: this one."""
        return self

    def deliver(self, batches: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Yield, for each batch of indices into the split, the indices into the window, which are the same.

        All batches must have the same size.
        """
        listed = list(batches)
        if listed:
            # One copy for all batches: a copy for each would make the host wait every time.
            yield from torch.stack(listed).to(self.labels_N.device)

    def take(self, index_B: torch.Tensor) -> Batch:
        """Return the normalised images and the labels at these indices."""
        return normalise(self.images_NCHW[index_B], self.mean_C, self.std_C), self.labels_N[index_B]

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the whole split once, in order, normalised."""
        for start in range(0, len(self), size):
            images_BCHW = self.images_NCHW[start : start + size]
            yield normalise(images_BCHW, self.mean_C, self.std_C), self.labels_N[start : start + size]


class _Pending(NamedTuple):
    """A batch that threads are filling."""

    images_BCHW: torch.Tensor
    labels_B: torch.Tensor
    slices: list[Future[None]]


class Stream:
    """A split in memory or on disk, copied to the device one batch at a time. Has the interface of `Resident`.

    Threads gather or decode bytes ahead of the training; normalisation and random views run on the device. Batches are
    copied into fixed buffers, so that a step captured in a CUDA graph can read them.
    """

    def __init__(self, split: Split, dataset: Dataset, device: torch.device, *, threads: int | None = None) -> None:
        self.split, self.device = split, device
        self.threads = count_threads(split) if threads is None else threads
        self.mean_C = torch.tensor(dataset.mean, device=device)
        self.std_C = torch.tensor(dataset.std, device=device)
        self._window: Resident | None = None

    def __len__(self) -> int:
        return len(self.split)

    def window(self, size: int) -> Resident:
        """Return the fixed buffers into which `deliver` copies batches of `size`."""
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
        """Copy each batch, given as indices into the split, to the window, and yield its indices there."""
        window = self._window
        assert window is not None, "call window() first"
        index_B = torch.arange(len(window), device=self.device)
        with closing(self._load(batches)) as loaded:
            for images_BCHW, labels_B in loaded:
                window.images_NCHW.copy_(images_BCHW, non_blocking=True)
                window.labels_N.copy_(labels_B, non_blocking=True)
                yield index_B

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the whole split once, in order, normalised."""
        with closing(self._load(torch.arange(len(self)).split(size))) as loaded:
            for images_BCHW, labels_B in loaded:
                bytes_BCHW = images_BCHW.to(self.device, non_blocking=True)
                yield normalise(bytes_BCHW, self.mean_C, self.std_C), labels_B.to(self.device, non_blocking=True)

    def _load(self, batches: Iterable[torch.Tensor]) -> Generator[Batch, None, None]:
        pending: deque[_Pending] = deque()
        with DaemonThreadPool(self.threads) as pool:
            for index_B in batches:
                pending.append(self._start(pool, index_B))
                if len(pending) > _PREFETCH:
                    yield _finish(pending.popleft())
            while pending:
                yield _finish(pending.popleft())

    def _start(self, pool: DaemonThreadPool, index_B: torch.Tensor) -> _Pending:
        """Let the pool fill a batch; each thread gets a slice of its rows."""
        pin = self.device.type == "cuda"
        shape = (len(index_B), *self.split.images_NCHW.shape[1:])
        images_BCHW = torch.empty(shape, dtype=torch.uint8, pin_memory=pin)
        labels_B = self.split.labels_N[index_B]
        rows, array_BCHW, indices_B = (
            max(_MIN_ROWS, -(-len(index_B) // self.threads)),
            images_BCHW.numpy(),
            index_B.numpy(),
        )
        slices = [
            pool.submit(partial(self._fill, array_BCHW[start : start + rows], indices_B[start : start + rows]))
            for start in range(0, len(index_B), rows)
        ]
        return _Pending(images_BCHW, labels_B.pin_memory() if pin else labels_B, slices)

    def _fill(self, out_BCHW: np.ndarray, index_B: np.ndarray) -> None:
        # numpy copies in this thread alone; torch would start a team of threads in every thread.
        images = self.split.images_NCHW
        if isinstance(images, LazyImages):
            images.read_into(out_BCHW, index_B.tolist())
        else:
            # With the default mode numpy would make a copy first; the indices are known to be valid.
            np.take(images.numpy(), index_B, axis=0, out=out_BCHW, mode="clip")


def _finish(batch: _Pending) -> Batch:
    wait_for(batch.slices, "Reading images")
    return batch.images_BCHW, batch.labels_B


def count_threads(split: Split) -> int:
    """Return the number of threads that load a split fastest on the cores of this process."""
    images = split.images_NCHW
    if not isinstance(images, LazyImages):
        return min(_MAX_COPY_THREADS, count_cores())
    return 1 if images.shape[1:].numel() <= _TINY else min(MAX_THREADS, count_cores())


class SplitPlacer:
    """Places the splits of a data set on a device while there is free memory. Splits placed first have priority."""

    def __init__(self, dataset: Dataset, device: torch.device) -> None:
        self.dataset, self.device = dataset, device
        free = free_bytes(device)
        self.free = math.inf if free is None else free
        self.left = _SPLITS_FRACTION * self.free

    def place(self, split: Split, loader: Loader = "auto") -> Resident | Stream:
        """Return the split as `Resident` or `Stream`.

        Args:
            split: A split of the data set.
            loader: Which of the two; "auto" uses `Resident` if the split fits.
        """
        # On the CPU, tensors are used where they are.
        in_place = self.device.type == "cpu" and isinstance(split.images_NCHW, torch.Tensor)
        needed = 0 if in_place else split.images_NCHW.nbytes
        if loader == "resident" and needed > self.free:
            raise UserError(
                f"{len(split):,} images of {self.dataset.name} take {needed / 2**30:.1f} GiB and {self.device} has "
                f"{self.free / 2**30:.1f} GiB free; omit --loader resident to stream them."
            )
        if loader == "stream" or (loader == "auto" and needed > self.left):
            return Stream(split, self.dataset, self.device)
        self.left -= needed
        return Resident.of(split, self.dataset, self.device)


def epoch_order(number: int, *, seed: int, epoch: int) -> torch.Tensor:
    """Return a permutation that depends on seed and epoch alone, so that a resumed epoch has the same batches."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(number, generator=generator)
