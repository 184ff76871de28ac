"""Recognising the test images of a card, in whatever order they are.

To reproduce a card's figures the same test images are enough, and copies of a data set differ in their order. So a card
has a digest of the set of test images.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

import torch

from codinet.data import Dataset, Split
from codinet.errors import UserError
from codinet.zoo.open_run import ZooRun


class Identity(NamedTuple):
    """A digest of a set of labelled images, and a canonical order of them; neither depends on their own order."""

    digest: str
    order_T: torch.Tensor  # indices


def identity_of(split: Split) -> Identity:
    labels = split.labels_N.tolist()
    each = [
        hashlib.sha256(f"{labels[k]} ".encode() + split.images_NCHW[k].numpy().tobytes()).digest()
        for k in range(len(split))
    ]
    order = sorted(range(len(each)), key=each.__getitem__)
    return Identity(hashlib.sha256(b"".join(each[k] for k in order)).hexdigest(), torch.tensor(order))


def same_data(entry: ZooRun, data_root: Path) -> Dataset:
    """The data set, if the card's figures were measured on its test images; `UserError` otherwise."""
    dataset = entry.load_dataset(data_root)
    if identity_of(dataset.test).digest != entry.card["test_sha256"]:
        raise UserError(
            f"{entry.path} was tested on other images than {dataset.name} holds; point --data-root to them."
        )
    return dataset
