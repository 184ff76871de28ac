"""The test images that a card's figures are of, in whatever order they lie.

What a network of the zoo was trained on matters to nobody who measures it, and copies of a data set differ in their
order; so a card tells its test images by a digest of the set of them.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

import torch

from codinet.data import Dataset, Split
from codinet.errors import UserError
from codinet.zoo.open_run import ZooRun


class Identity(NamedTuple):
    """What tells a set of labelled images, and one order of them, whatever order they lie in."""

    digest: str
    order_T: torch.Tensor  # places


def identity_of(split: Split) -> Identity:
    labels = split.labels_N.tolist()
    each = [
        hashlib.sha256(f"{labels[k]} ".encode() + split.images_NCHW[k].numpy().tobytes()).digest()
        for k in range(len(split))
    ]
    order = sorted(range(len(each)), key=each.__getitem__)
    return Identity(hashlib.sha256(b"".join(each[k] for k in order)).hexdigest(), torch.tensor(order))


def same_data(entry: ZooRun, data_root: Path) -> Dataset:
    """The data set, if the card's figures are of its test images."""
    dataset = entry.load_dataset(data_root)
    if identity_of(dataset.test).digest != entry.card["test_sha256"]:
        raise UserError(
            f"{entry.path} was tested on other images than {dataset.name} holds; point --data-root to them."
        )
    return dataset
