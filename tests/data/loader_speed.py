"""Images per second that `Stream` reads from image files, against PyTorch's DataLoader with worker processes.

    python -m tests.data.loader_speed

Both decode the same files with the same function, in the same order, on one core and on two, several times in turn. The
table shows the median of the ratios. Linux only: a process is bound to cores.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from codinet.data import free_memory
from codinet.data.batches import Stream
from codinet.data.dataset import LazyImages
from codinet.data.image_folder import load_folder

BATCH = 32
ROUNDS = 5
KINDS = [  # name, height, width, files, suffix, size they are brought to
    ("photographs, 500×375 JPEG to 224", 375, 500, 384, "jpg", 224),
    ("small JPEG, 128×128 to 64", 128, 128, 1024, "jpg", 64),
    ("icons, 32×32 PNG", 32, 32, 3072, "png", 32),
]


class Decoded(Dataset[torch.Tensor]):
    """What a worker process of DataLoader decodes: one batch at a time."""

    def __init__(self, images: LazyImages) -> None:
        self.images = images

    def __getitems__(self, places: list[int]) -> torch.Tensor:
        batch = torch.empty((len(places), *self.images.shape[1:]), dtype=torch.uint8)
        self.images.read_into(batch.numpy(), places)
        return batch


def as_they_are(batch: Any) -> Any:
    return batch


def make_files(folder: Path, height: int, width: int, number: int, suffix: str) -> None:
    """Smooth random images of two classes."""
    rng = np.random.default_rng(0)
    for place in range(number):
        coarse = rng.integers(0, 256, (max(2, height // 16), max(2, width // 16), 3), dtype=np.uint8)
        file = folder / "ab"[place % 2] / f"{place:05d}.{suffix}"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(file)


def rate(batches: Iterable[object], images: int) -> float:
    began = time.perf_counter()
    for _ in batches:
        pass
    return images / (time.perf_counter() - began)


def compare(folder: Path, size: int, cores: Sequence[int]) -> tuple[float, float, float]:
    """Images per second of the stream and of DataLoader, and the median of their ratios."""
    os.sched_setaffinity(0, cores)
    with mock.patch.object(free_memory, "available_bytes", return_value=0):  # as for a folder larger than memory
        dataset = load_folder(folder, image_size=size)
    images = dataset.train.images_NCHW
    assert isinstance(images, LazyImages)
    stream = Stream(dataset.train, dataset, torch.device("cpu"))
    stream.window(BATCH)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    batches = order[: len(images) // BATCH * BATCH].split(BATCH)
    number = len(batches) * BATCH
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(rate(stream.deliver(batches), number))
        loader = DataLoader(
            Decoded(images),
            batch_sampler=[index.tolist() for index in batches],
            collate_fn=as_they_are,
            num_workers=len(cores),
            multiprocessing_context="fork",
        )
        theirs.append(rate(loader, number))
    ratios = [our / their for our, their in zip(ours, theirs, strict=True)]
    return statistics.median(ours), statistics.median(theirs), statistics.median(ratios)


def main() -> None:
    torch.set_num_threads(1)
    allowed = sorted(os.sched_getaffinity(0))
    print("| images | cores | stream, images/s | DataLoader, images/s | ratio |\n|---|---:|---:|---:|---:|")
    for name, height, width, number, suffix, size in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            make_files(Path(folder), height, width, number, suffix)
            for cores in (allowed[:1], allowed[:2]):
                ours, theirs, ratio = compare(Path(folder), size, cores)
                print(f"| {name} | {len(cores)} | {ours:.0f} | {theirs:.0f} | {ratio:.2f} |", flush=True)
    os.sched_setaffinity(0, allowed)


if __name__ == "__main__":
    main()
