"""What a training reads, and where it waits: images to train on, to watch, to test with, to calibrate the budget on."""

from dataclasses import dataclass

import torch

from codinet.config import RunConfig
from codinet.data.dataset import Dataset, Split
from codinet.data.placing import Loader, Placing
from codinet.data.resident import Resident, epoch_order
from codinet.data.stream import Stream
from codinet.errors import UserError
from codinet.train.distributed import World

CALIBRATION_IMAGES = 5000

Placed = Resident | Stream


@dataclass(frozen=True)
class Splits:
    """Of the splits to evaluate, a process has its share."""

    train: Placed
    watched: Placed  # looked at after every epoch: the images held out, or the test set
    test: Placed
    calibration: Placed
    steps: int  # of an epoch


def split_data(config: RunConfig, dataset: Dataset, device: torch.device, world: World, loader: Loader) -> Splits:
    holdout, size = config.data.holdout, config.schedule.batch
    assert size is not None
    if size % world.size:
        raise UserError(
            f"--batch {size} cannot be shared out equally among {world.size} processes; use a multiple of {world.size}."
        )
    train, watched = dataset.train, dataset.test
    if holdout:
        if holdout >= len(train):
            raise UserError(f"--holdout {holdout} leaves nothing of {len(train)} training images; hold out fewer.")
        order = epoch_order(len(train), seed=0, epoch=0)  # the same images whatever the run's seed
        train, watched = train.subset(order[holdout:]), train.subset(order[:holdout])
    if size > len(train):
        raise UserError(f"--batch {size} is more than the {len(train)} training images; use a smaller one.")
    quiet = watched if holdout else train.subset(torch.arange(min(CALIBRATION_IMAGES, len(train))))
    placing = Placing(dataset, device)
    placed = placing.place(_share(watched, world))
    test = placing.place(_share(dataset.test, world)) if holdout else placed
    calibration = placing.place(_share(quiet, world))
    # Last, because the others are read more often than once an epoch.
    return Splits(placing.place(train, loader), placed, test, calibration, len(train) // size)


def _share(split: Split, world: World) -> Split:
    """A process's share of images to evaluate: those of all, one after the other, are the split."""
    if world.size == 1:
        return split
    first, after = (len(split) * rank // world.size for rank in (world.rank, world.rank + 1))
    return split.subset(torch.arange(first, after))
