"""Batches of a split for training and evaluation: `Resident` keeps a split on the device, `Stream` loads it in batches.

Both have the same interface and give the same batches. `SplitPlacer` chooses between them by free memory. The caller
decides which images form a batch; random numbers are drawn only for the order of an epoch. Where views show random
parts of image files, batches differ a little: `Resident` cuts views from files that were scaled to squares before, and
with `Stream` the threads that decode a file cut its views.
"""

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from codinet.data.augmentation import Augmentation
from codinet.data.dataset import Dataset, Images, LazyImages, Split
from codinet.data.free_memory import free_bytes, require_memory
from codinet.data.images import View
from codinet.data.shards import shard_order
from codinet.data.threads import MAX_THREADS, DaemonThreadPool, count_cores, wait_for
from codinet.data.views import normalise
from codinet.errors import UserError

Batch = tuple[torch.Tensor, torch.Tensor]  # images_BCHW, labels_B
Loader = Literal["auto", "resident", "stream"]

_SPLITS_FRACTION = 0.5  # of the free memory that splits may use together; the rest is for training
_MAX_KEPT = 2**30  # bytes of decoded files of a split that stay in the memory of the machine
_PREFETCH = 2  # batches prepared while one is used
_MAX_COPY_THREADS = 2  # copying rows of a tensor is not faster with more
_TINY = 8192  # bytes; for smaller images Python takes longer than the decoder, and a second thread is slower
_MIN_ROWS = 8  # of a batch per thread


@dataclass(frozen=True)
class Resident:
    """A whole split as bytes on a device. Batches are normalised when they are taken.

    With `views`, there are that many views of each image, one after the other, and one label.
    """

    images_NCHW: torch.Tensor  # uint8
    labels_N: torch.Tensor
    mean_C: torch.Tensor
    std_C: torch.Tensor
    views: int | None = None

    @classmethod
    def of(cls, split: Split, dataset: Dataset, device: torch.device) -> "Resident":
        """Copy a split of `dataset` to `device`; lazy images are decoded."""
        images_NCHW, labels_N = split.images_NCHW, split.labels_N
        if isinstance(images_NCHW, LazyImages):
            require_memory(
                images_NCHW.nbytes,
                what=f"{dataset.name} with {len(split):,} images",
                hint="choose a smaller image size or use fewer images",
            )
            images_NCHW, used = images_NCHW.decode(range(len(split)))
            labels_N = labels_N[used]
        return cls(
            images_NCHW.to(device),
            labels_N.to(device),
            torch.tensor(dataset.mean, device=device),
            torch.tensor(dataset.std, device=device),
        )

    def __len__(self) -> int:
        return len(self.labels_N)

    def window(self, size: int, augmentation: Augmentation | None = None) -> "Resident":
        """Return the split from which a step on batches of `size` takes its images: this one."""
        return self

    def deliver(self, batches: Iterable[torch.Tensor], epoch: int = 0) -> Iterator[torch.Tensor]:
        """Yield, for each batch of indices into the split, the indices into the window, which are the same.

        All batches must have the same size.
        """
        listed = list(batches)
        if listed:
            # One copy for all batches: a copy for each would make the host wait every time.
            yield from torch.stack(listed).to(self.labels_N.device)

    def take(self, index_B: torch.Tensor) -> Batch:
        """Return the normalised images, or all views of them, and the labels at these indices."""
        rows = index_B
        if self.views is not None:
            view_M = torch.arange(self.views, device=index_B.device)
            rows = (index_B[:, None] * self.views + view_M).flatten()
        return normalise(self.images_NCHW[rows], self.mean_C, self.std_C), self.labels_N[index_B]

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

    Threads gather or decode bytes ahead of the training; normalisation and random views run on the device, except views
    of random parts of image files. Batches are copied into fixed buffers, so that a step captured in a CUDA graph can
    read them.
    """

    def __init__(
        self,
        split: Split,
        dataset: Dataset,
        device: torch.device,
        *,
        threads: int | None = None,
        keep: bool = False,
    ) -> None:
        """With `keep`, the images of the first complete pass of `batches` stay on the device for the next ones."""
        self.split, self.device, self.keep = split, device, keep
        self.threads = count_threads(split) if threads is None else threads
        self.mean_C = torch.tensor(dataset.mean, device=device)
        self.std_C = torch.tensor(dataset.std, device=device)
        self._window: Resident | None = None
        self._cut: Augmentation | None = None  # views that threads cut
        self._kept: Resident | None = None

    def __len__(self) -> int:
        return len(self.split)

    def window(self, size: int, augmentation: Augmentation | None = None) -> Resident:
        """Return the fixed buffers into which `deliver` copies batches.

        Args:
            size: Images per batch.
            augmentation: What a step makes of them; threads cut the views of image files if they show random parts.
        """
        images, labels_N = self.split.images_NCHW, torch.zeros(size, dtype=torch.int64, device=self.device)
        cut = augmentation if isinstance(images, LazyImages) and augmentation and augmentation.min_area else None
        shape = (size * cut.views, images.shape[1], *cut.size) if cut else (size, *images.shape[1:])
        if self._window is None or self._window.images_NCHW.shape != shape or self._cut != cut:
            images_NCHW = _empty(shape, channels_last=cut is not None, device=self.device).zero_()
            views = cut.views if cut else None
            self._window, self._cut = Resident(images_NCHW, labels_N, self.mean_C, self.std_C, views), cut
        return self._window

    def deliver(self, batches: Iterable[torch.Tensor], epoch: int = 0) -> Iterator[torch.Tensor]:
        """Copy each batch, given as indices into the split, to the window, and yield its indices there.

        Args:
            batches: The batches.
            epoch: Determines the random parts of images that threads cut.
        """
        window = self._window
        assert window is not None, "call window() first"
        index_B = torch.arange(len(window), device=self.device)
        images, batches = self.split.images_NCHW, list(batches)
        if isinstance(images, LazyImages) and batches:
            images.expect(torch.cat(batches))
        with closing(self._load(batches, self._cut, epoch)) as loaded:
            for images_BCHW, labels_B in loaded:
                window.images_NCHW.copy_(images_BCHW, non_blocking=True)
                window.labels_N.copy_(labels_B, non_blocking=True)
                yield index_B

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the whole split once, in order, normalised."""
        if self._kept is not None:
            yield from self._kept.batches(size)
            return
        kept: list[Batch] = []
        with closing(self._load(torch.arange(len(self)).split(size))) as loaded:
            for images_BCHW, labels_B in loaded:
                bytes_BCHW = images_BCHW.to(self.device, non_blocking=True)
                labels_B = labels_B.to(self.device, non_blocking=True)
                kept += [(bytes_BCHW, labels_B)] if self.keep else []
                yield normalise(bytes_BCHW, self.mean_C, self.std_C), labels_B
        if self.keep:
            images_NCHW, labels_N = (torch.cat(column) for column in zip(*kept, strict=True))
            self._kept = Resident(images_NCHW, labels_N, self.mean_C, self.std_C)

    def _load(
        self, batches: Iterable[torch.Tensor], cut: Augmentation | None = None, epoch: int = 0
    ) -> Generator[Batch, None, None]:
        pending: deque[_Pending] = deque()
        with DaemonThreadPool(self.threads) as pool:
            for index_B in batches:
                pending.append(self._start(pool, index_B, cut, epoch))
                if len(pending) > _PREFETCH:
                    yield _finish(pending.popleft())
            while pending:
                yield _finish(pending.popleft())

    def _start(self, pool: DaemonThreadPool, index_B: torch.Tensor, cut: Augmentation | None, epoch: int) -> _Pending:
        """Let the pool fill a batch; each thread gets a slice of its rows."""
        pin, number = self.device.type == "cuda", len(index_B)
        labels_B, indices_B = self.split.labels_N[index_B], index_B.numpy()
        labels = labels_B.numpy()  # threads may write into it, even in inference mode
        if cut:
            shape = (number * cut.views, self.split.images_NCHW.shape[1], *cut.size)
            images_BCHW = _empty(shape, channels_last=True, pin_memory=pin)
            rows = images_BCHW.permute(0, 2, 3, 1).unflatten(0, (number, cut.views)).numpy()  # B×M×H×W×C
            chosen = [partial(cut.choose, draws_MD) for draws_MD in cut.draws(epoch, index_B)]
        else:
            images_BCHW = torch.empty((number, *self.split.images_NCHW.shape[1:]), dtype=torch.uint8, pin_memory=pin)
            rows, chosen = images_BCHW.numpy(), []
        size = max(_MIN_ROWS, -(-number // self.threads))
        slices = [
            pool.submit(partial(self._fill, rows[part], labels[part], indices_B[part], chosen[part]))
            for part in (slice(start, start + size) for start in range(0, number, size))
        ]
        return _Pending(images_BCHW, labels_B, slices)

    def _fill(
        self, out: np.ndarray, labels_B: np.ndarray, index_B: np.ndarray, chosen: Sequence[Callable[..., list[View]]]
    ) -> None:
        # numpy copies in this thread alone; torch would start a team of threads in every thread.
        images = self.split.images_NCHW
        if not isinstance(images, LazyImages):
            # With the default mode numpy would make a copy first; the indices are known to be valid.
            np.take(images.numpy(), index_B, axis=0, out=out, mode="clip")
            return
        indices = index_B.tolist()
        used = images.read_views_into(out, indices, chosen) if chosen else images.read_into(out, indices)
        if used != indices:  # damaged files are replaced
            labels_B[:] = self.split.labels_N.numpy()[used]


def _finish(batch: _Pending) -> Batch:
    wait_for(batch.slices, "Reading images")
    return batch.images_BCHW, batch.labels_B.pin_memory() if batch.images_BCHW.is_pinned() else batch.labels_B


def _empty(shape: tuple[int, ...], *, channels_last: bool, **options: Any) -> torch.Tensor:
    """A uint8 tensor whose channels are last in memory, as decoders write them and GPUs read them, or first."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty(shape, dtype=torch.uint8, memory_format=layout, **options)


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

    def place_for_evaluation(self, split: Split) -> Resident | Stream:
        """Return a split for whole passes. Image files are decoded in the first pass, not here."""
        images = split.images_NCHW
        if not isinstance(images, LazyImages):
            return self.place(split)
        keep = images.nbytes <= (self.left if self.device.type == "cuda" else min(self.left, _MAX_KEPT))
        self.left -= images.nbytes if keep else 0
        return Stream(split, self.dataset, self.device, keep=keep)

    def place(self, split: Split, loader: Loader = "auto", *, whole: bool = False) -> Resident | Stream:
        """Return the split as `Resident` or `Stream`.

        Args:
            split: A split of the data set.
            loader: Which of the two; "auto" uses `Resident` if the split fits.
            whole: Whether views show any part of an image. Then `Resident` keeps squares, so "auto" streams image files
                that are not all square.
        """
        kept = split
        if whole and isinstance(split.images_NCHW, LazyImages):
            loader = "stream" if loader == "auto" and not split.images_NCHW.square else loader
            kept = Split(split.images_NCHW.whole, split.labels_N)
        # On the CPU, tensors are used where they are.
        in_place = self.device.type == "cpu" and isinstance(split.images_NCHW, torch.Tensor)
        needed = 0 if in_place else kept.images_NCHW.nbytes
        if loader == "resident" and needed > self.free:
            raise UserError(
                f"{len(split):,} images of {self.dataset.name} take {needed / 2**30:.1f} GiB and {self.device} has "
                f"{self.free / 2**30:.1f} GiB free; free memory, or start with --loader stream."
            )
        if loader == "stream" or (loader == "auto" and needed > self.left):
            return Stream(split, self.dataset, self.device)
        self.left -= needed
        return Resident.of(kept, self.dataset, self.device)


def image_order(images: Images, *, seed: int, epoch: int, batch: int = 1) -> torch.Tensor:
    """Return the order in which images are used: a permutation; for packed images, one that reads few shards at a time.

    It depends on the arguments alone, not on where images are kept, so that a resumed epoch has the same batches.

    Args:
        images: The images of a split.
        seed: The seed of the run.
        epoch: The epoch.
        batch: Images per step of all processes.

    Returns:
        Indices of the images of all whole batches.
    """
    shard_N = images.shard_N if isinstance(images, LazyImages) else None
    if shard_N is not None:
        return shard_order(shard_N, batch=batch, seed=seed, epoch=epoch)
    return epoch_order(len(images), seed=seed, epoch=epoch)[: len(images) // batch * batch]


def epoch_order(number: int, *, seed: int, epoch: int) -> torch.Tensor:
    """Return a permutation that depends on seed and epoch alone, so that a resumed epoch has the same batches."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(number, generator=generator)
