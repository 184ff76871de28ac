"""The splits of a training: images to train on, to evaluate after every epoch, to calibrate on, and to test with."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch

from codinet.config import RESIZED, RunConfig
from codinet.cost import CostTable
from codinet.data.augmentation import Augmentation
from codinet.data.batches import Loader, Resident, SplitPlacer, Stream, image_order
from codinet.data.dataset import Dataset, Images, Split
from codinet.errors import UserError
from codinet.evaluate import Evaluation, evaluate, summarise
from codinet.model import RoutedNetwork, in_evaluation
from codinet.records import PathTable
from codinet.relaxation import hard
from codinet.train.distributed import World

CALIBRATION_IMAGES = 5000
_FEATURES = 384  # bytes per pixel of an image: six maps of 16 channels, or of 64 at half the resolution
_CPU_MEMORY = 2**31  # bytes of features in an evaluation
_LEAST = 8  # images of an evaluation at once

Placed = Resident | Stream


@dataclass(frozen=True)
class Splits:
    """The splits of one process. Evaluation splits are sharded by rank."""

    train: Placed
    train_images: Images  # before they were placed
    watched: Placed  # evaluated after every epoch: the held-out images, the test set, or the calibration images
    test: Placed
    calibration: Placed
    steps: int  # of an epoch


def split_data(config: RunConfig, dataset: Dataset, device: torch.device, world: World, loader: Loader) -> Splits:
    """Split a data set and place the splits on the device.

    Args:
        config: A resolved config.
        dataset: The data set.
        device: Where the training runs.
        world: The processes that train.
        loader: Where training images are kept.
    """
    holdout, size = config.data.holdout, config.schedule.batch
    assert size is not None
    if size % world.size:
        raise UserError(f"--batch must be a multiple of {world.size}, the number of processes, got {size}.")
    if size // world.size % config.schedule.accumulate:
        raise UserError(
            f"--accumulate must divide the {size // world.size} images of a process, got {config.schedule.accumulate}."
        )
    train = dataset.train
    if holdout >= len(train):
        raise UserError(f"--holdout must be below {len(train)}, the number of training images, got {holdout}.")
    order = image_order(train.images_NCHW, seed=0, epoch=0)  # the same images for every seed of a run
    plain = train.subset(order[: holdout or CALIBRATION_IMAGES])  # shuffled, so of all classes
    if holdout:
        train = train.subset(order[holdout:])
    if size > len(train):
        raise UserError(f"--batch must be at most {len(train)}, the number of training images, got {size}.")
    placer = SplitPlacer(dataset, device)
    calibration, test = (placer.place_for_evaluation(_shard(split, world)) for split in (plain, dataset.test))
    watched = calibration if holdout or config.data.watch == "train" else test
    # The training images come last, because the others are read several times per epoch.
    train_placed = placer.place(train, loader, whole=config.data.view == RESIZED)
    return Splits(train_placed, train.images_NCHW, watched, test, calibration, len(train) // size)


def augmentation_of(config: RunConfig, dataset: Dataset) -> Augmentation:
    """How the views of the training images are made."""
    _, height, width = dataset.image_shape
    return Augmentation(
        (height, width),
        config.schedule.views,
        flip=dataset.flip,
        pad=dataset.pad,
        min_area=config.data.min_area if config.data.view == RESIZED else None,
        blank=config.extra.cutout,
        seed=config.seed,
        fixed=config.extra.teacher_views,
    )


def _shard(split: Split, world: World) -> Split:
    """The part of a split that this rank evaluates. The shards of all ranks in order are the split."""
    if world.size == 1:
        return split
    first, after = (len(split) * rank // world.size for rank in (world.rank, world.rank + 1))
    return split.subset(torch.arange(first, after))


@dataclass(frozen=True)
class SplitEvaluator:
    """Evaluates networks on splits; every rank evaluates its shard and gets the figures of the whole split."""

    table: CostTable
    device: torch.device
    world: World

    def evaluate(self, model: Any, data: Placed, *, most: int | None = None) -> Evaluation:
        """Evaluate a network, or a function from images to `RoutedOutput`, on all batches or on the first `most`."""
        size = evaluation_batch(self.table.image_shape, self.device)

        def evaluate_own() -> Evaluation:
            return evaluate(model, islice(data.batches(size), most), self.table)

        if self.world.size == 1:
            return evaluate_own()
        # A shard of few images may be empty.
        own = self.world.on_every_rank(lambda: evaluate_own() if len(data) else None)
        return join([part for part in self.world.gather(own) if part is not None], self.table)

    def cost_at(self, model: RoutedNetwork, data: Placed) -> Callable[[float], float]:
        """The cost share of a split as a function of the run threshold, by a forward pass for each value."""

        def measure(threshold: float) -> float:
            with in_evaluation(model):
                return self.evaluate(partial(model, decide=partial(hard, threshold=threshold)), data).cost_share

        return measure


def evaluation_batch(image_shape: tuple[int, int, int], device: torch.device) -> int:
    """Return the number of images to evaluate at once.

    It depends on the image size and the kind of device, not on the memory that is free: another batch size rounds
    differently, and a run must resume exactly.
    """
    needed = _FEATURES * image_shape[1] * image_shape[2]
    if device.type != "cuda":
        return max(_LEAST, min(250, _CPU_MEMORY // needed))
    return max(_LEAST, min(1000, torch.cuda.get_device_properties(device).total_memory // (8 * needed)))


def join(parts: list[Evaluation], table: CostTable) -> Evaluation:
    """Return the evaluation of all images, given those of disjoint parts."""
    paths = PathTable(*(torch.cat(column) for column in zip(*(part.paths for part in parts), strict=True)))
    loss = sum(part.loss * part.n for part in parts) / len(paths.label_T)
    counts = [round(part.top5_accuracy * part.n / 100) for part in parts if part.top5_accuracy is not None]
    return summarise(paths, table, loss=loss, top5=sum(counts) if counts else None)
