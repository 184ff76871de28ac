"""Views per second that are cut from JPEG files, next to torchvision's and timm's loaders.

    python -m tools.photo_speed FOLDER [--size 224] [--images 512] [--rounds 5]

FOLDER holds photographs, one subfolder per class. Every loader makes random resized crops of the same files, mirrored
at random, as uint8 batches in memory. The loaders take turns in every round, bound to one core and to two; ratios are
medians over rounds. torchvision decodes with ImageFolder, transforms.v2 and DataLoader workers (one per core), timm
with its own loader. codinet is measured with one view of an image, as the others make it, and with two, as it trains.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import tyro

from codinet.adopt import import_vision
from codinet.cli import guarded
from codinet.data.augmentation import Augmentation
from codinet.data.batches import Stream, epoch_order
from codinet.data.image_folder import load_folder
from codinet.errors import UserError

BATCH = 64
CPU = torch.device("cpu")


def codinet_views(folder: Path, size: int, images: int, views: int) -> Callable[[int], int]:
    """Cut views by the threads of a `Stream`; returns a function from the number of cores to the number of views."""
    data = load_folder(folder, image_size=size, whole=True)
    augmentation = Augmentation((size, size), views, flip=True, min_area=0.08)
    batches = epoch_order(len(data.train), seed=0, epoch=0)[:images].split(BATCH)

    def run(cores: int) -> int:
        stream = Stream(data.train, data, CPU, threads=cores)
        stream.window(BATCH, augmentation)
        whole = [batch for batch in batches if len(batch) == BATCH]
        return sum(BATCH * views for _ in stream.deliver(whole, epoch=1))

    return run


def torchvision_loader(folder: Path, size: int, images: int, *, tensors: bool) -> Callable[[int], Any]:
    """ImageFolder, transforms.v2 on tensors or on Pillow's images, and DataLoader; for so many cores."""
    vision = import_vision("torchvision")
    from torchvision.transforms import v2

    crop = [v2.RandomResizedCrop(size, scale=(0.08, 1.0), antialias=True), v2.RandomHorizontalFlip()]
    transform = v2.Compose([v2.PILToTensor(), *crop] if tensors else [*crop, v2.PILToTensor()])
    dataset = vision.datasets.ImageFolder(str(folder), transform=transform)
    order = epoch_order(len(dataset), seed=0, epoch=0)[: images + 8 * BATCH]
    chosen = torch.utils.data.Subset(dataset, order.tolist())
    return lambda cores: torch.utils.data.DataLoader(chosen, batch_size=BATCH, num_workers=cores)


def timm_loader(folder: Path, size: int) -> Callable[[int], Any]:
    """timm's data set, transforms and loader, without the part that copies batches to a GPU."""
    import_vision("timm")
    from timm.data.dataset import ImageDataset
    from timm.data.loader import create_loader

    def make(cores: int) -> Any:
        return create_loader(
            ImageDataset(str(folder)),
            (3, size, size),
            BATCH,
            is_training=True,
            num_workers=cores,
            hflip=0.5,
            color_jitter=0.0,
            auto_augment=None,
            interpolation="bilinear",
            device=CPU,
        ).loader

    return make


def timed(run: Callable[[], int], cores: int) -> float:
    """Views per second of a call, bound to so many cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cores])
    try:
        start = time.perf_counter()
        return run() / (time.perf_counter() - start)
    finally:
        os.sched_setaffinity(0, before)


def measure(folder: tyro.conf.Positional[Path], size: int = 224, images: int = 512, rounds: int = 5) -> int:
    """Measure and print a table.

    Args:
        folder: Photographs, one subfolder per class.
        size: Side of a view in pixels.
        images: Files per round.
        rounds: Rounds.
    """
    if len(os.sched_getaffinity(0)) < 2:
        raise UserError("Two cores are needed.")
    torch.set_num_threads(1)
    print(f"load average {os.getloadavg()[0]:.1f}; {images} files to {size}×{size}, {rounds} rounds")
    ours = {f"codinet, {views} view{'s' * (views > 1)}": codinet_views(folder, size, images, views) for views in (1, 2)}
    theirs = {
        "torchvision, tensors": torchvision_loader(folder, size, images, tensors=True),
        "torchvision, Pillow": torchvision_loader(folder, size, images, tensors=False),
        "timm": timm_loader(folder, size),
    }
    speed: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):
        for cores in (1, 2):
            for name, views_of in ours.items():
                speed.setdefault((name, cores), []).append(timed(partial(views_of, cores), cores))
            for name, make in theirs.items():
                speed.setdefault((name, cores), []).append(_speed_of_workers(make, images, cores))
    for cores in (1, 2):
        best = [max(row) for row in zip(*(speed[name, cores] for name in theirs), strict=True)]
        print(f"\n{cores} core{'s' * (cores > 1)}: views per second and core, relative to the fastest of the others")
        for name in (*ours, *theirs):
            rates = speed[name, cores]
            ratio = statistics.median(rate / other for rate, other in zip(rates, best, strict=True))
            print(f"{name:22} {statistics.median(rates) / cores:8.0f} {ratio:6.2f}")
    return 0


def _speed_of_workers(make: Callable[[int], Any], images: int, cores: int) -> float:
    """Views per second of a loader with worker processes, once they run."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cores])  # workers inherit it
    try:
        loader = iter(make(cores))
        for _ in range(2 * cores):  # what workers have prepared ahead while the clock was off
            next(loader)
        done, start = 0, time.perf_counter()
        while done < images:
            done += len(next(loader)[0])
        return done / (time.perf_counter() - start)
    finally:
        os.sched_setaffinity(0, before)


if __name__ == "__main__":
    sys.exit(guarded(lambda: tyro.cli(measure)))
