"""A split that stays where it is and is brought to the device a batch at a time, by worker processes.

Workers gather or decode bytes ahead of the training; normalising and random views stay the device's. A batch is
copied into buffers that never move, so that a step captured in a CUDA graph finds it. Which images make a batch
is the caller's choice. The main process's random numbers are untouched.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from codinet.data.dataset import Dataset, Split
from codinet.data.lazy import LazyImages
from codinet.data.quiet import no_warnings
from codinet.data.resident import Resident
from codinet.data.views import normalise
from codinet.errors import UserError

_MOST = 8  # workers that decode
_PR_SET_PDEATHSIG = 1  # of Linux's prctl
_MOST_GATHERING = 2  # workers that only copy rows of a tensor

Batch = tuple[torch.Tensor, torch.Tensor]  # bytes_BCHW, labels_B


class Stream:
    """Like `Resident`, for splits that the device cannot hold."""

    def __init__(self, split: Split, dataset: Dataset, device: torch.device, *, workers: int | None = None) -> None:
        self.split, self.device = split, device
        self.workers = count_workers(split) if workers is None else workers
        self.mean_C = torch.tensor(dataset.mean, device=device)
        self.std_C = torch.tensor(dataset.std, device=device)
        self._window: Resident | None = None

    def __len__(self) -> int:
        return len(self.split)

    def window(self, size: int) -> Resident:
        """The fixed buffers in which `deliver` puts batches of this size."""
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
        """For each batch of places in the split, once it is in the window, its places there."""
        window = self._window
        assert window is not None, "nobody has asked for the window"
        places_L = torch.arange(len(window), device=self.device)
        for images_LCHW, labels_L in self._fetch(batches):
            window.images_NCHW.copy_(images_LCHW, non_blocking=True)
            window.labels_N.copy_(labels_L, non_blocking=True)
            yield places_L

    def batches(self, size: int) -> Iterator[Batch]:
        """All of it once, in order, normalised."""
        for images_BCHW, labels_B in self._fetch(torch.arange(len(self)).split(size)):
            bytes_BCHW = images_BCHW.to(self.device, non_blocking=True)
            yield normalise(bytes_BCHW, self.mean_C, self.std_C), labels_B.to(self.device, non_blocking=True)

    def _fetch(self, batches: Iterable[torch.Tensor]) -> Iterator[Batch]:
        loader = DataLoader(
            _Fetcher(self.split),
            batch_sampler=(index_B.tolist() for index_B in batches),
            collate_fn=_as_it_is,
            num_workers=self.workers,
            worker_init_fn=partial(_begin_worker, os.getpid()),
            pin_memory=self.device.type == "cuda",
            # Workers are seeded from it; left out, the seed would be drawn from the training's random numbers.
            generator=torch.Generator(),
            # Forked workers share the split's memory and start at once. They never touch the device.
            multiprocessing_context="fork" if sys.platform == "linux" and self.workers else None,
        )
        with no_warnings():  # newer interpreters warn of forking beside threads, of which workers use none
            iterator = iter(loader)
        try:
            for fetched in _connected(iterator):
                if isinstance(fetched, str):
                    raise UserError(fetched)
                yield fetched
        finally:
            # Not left to the garbage collector, for which a kept traceback would keep the workers alive.
            if self.workers:
                iterator._shutdown_workers()  # type: ignore[attr-defined]


class _Fetcher(TorchDataset[Batch | str]):
    """What runs in a worker. What is wrong with a file comes back as a sentence: an exception would lose its form."""

    def __init__(self, split: Split) -> None:
        self.images_NCHW, self.labels_N = split.images_NCHW, split.labels_N

    def __getitems__(self, places: list[int]) -> Batch | str:
        index_B = torch.tensor(places)
        try:
            if isinstance(self.images_NCHW, LazyImages):
                return self.images_NCHW.one_by_one(places), self.labels_N[index_B]
            return self.images_NCHW[index_B], self.labels_N[index_B]
        except UserError as error:
            return str(error)


def _connected(iterator: Iterator[Batch | str]) -> Iterator[Batch | str]:
    """What workers send. What a worker sent just before its end may be beyond reach."""
    try:
        yield from iterator
    except (OSError, EOFError) as error:
        raise _lost(str(error) or type(error).__name__) from error


def _begin_worker(main: int, _worker: int) -> None:
    # Ctrl-C reaches every process of a terminal; the main one hears it and ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        # A main process that is killed cannot end them. They would notice by themselves unless they wait for each
        # other just then, so the kernel is asked to end them.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != main:
            os._exit(1)  # it was gone before the kernel was asked


def _as_it_is(fetched: Any) -> Any:
    return fetched


def count_workers(split: Split) -> int:
    """As many as help, of the cores that this process may use and shares with its neighbours on the machine."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    neighbours = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # torchrun's
    most = _MOST if isinstance(split.images_NCHW, LazyImages) else _MOST_GATHERING
    return max(1, min(most, cores // neighbours))


@contextmanager
def lost_workers() -> Iterator[None]:
    """A worker's sudden end as a `UserError`. A signal tells of it, wherever the main process is just then."""
    try:
        yield
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise _lost(str(error).splitlines()[0]) from error


def _lost(reason: str) -> UserError:
    return UserError(
        f"A process that loads images has ended ({reason.rstrip('. ')}), perhaps for lack of memory or of space in "
        "/dev/shm; free some and go on with --resume."
    )
