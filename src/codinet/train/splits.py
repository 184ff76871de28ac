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
    watched: Placed  # looked at after every epoch: the images held out, the test set, or those to calibrate on
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
    train = dataset.train
    if holdout >= len(train):
        raise UserError(f"--holdout {holdout} leaves nothing of {len(train)} training images; hold out fewer.")
    order = epoch_order(len(train), seed=0, epoch=0)  # the same images whatever the run's seed
    quiet = train.subset(order[: holdout or CALIBRATION_IMAGES])  # of all classes, in a folder too
    if holdout:
        train = train.subset(order[holdout:])
    if size > len(train):
        raise UserError(f"--batch {size} is more than the {len(train)} training images; use a smaller one.")
    placing = Placing(dataset, device)
    calibration, test = (placing.place(_share(split, world)) for split in (quiet, dataset.test))
    watched = calibration if holdout or config.data.watch == "train" else test
    # Last, because the others are read more often than once an epoch.
    return Splits(placing.place(train, loader), watched, test, calibration, len(train) // size)


def _share(split: Split, world: World) -> Split:
    """A process's share of images to evaluate: those of all, one after the other, are the split."""
    if world.size == 1:
        return split
    first, after = (len(split) * rank // world.size for rank in (world.rank, world.rank + 1))
    return split.subset(torch.arange(first, after))
