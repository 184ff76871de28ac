"""The test images that a card's figures are of, in whatever order they lie.

What a network of the zoo was trained on matters to nobody who measures it, and copies of a data set differ in their
order; so a card tells its test images by a digest of the set of them.
"""

import hashlib
from pathlib import Path

import torch

from codinet.data import Dataset, Split
from codinet.errors import UserError
from codinet.zoo.open_run import ZooRun


def digest_of(split: Split) -> str:
    """The same for the same labelled images in any order."""
    return hashlib.sha256(b"".join(sorted(_each(split)))).hexdigest()


def order_of(split: Split) -> torch.Tensor:
    """The places of its images in an order that is the same for every copy of them."""
    each = _each(split)
    return torch.tensor(sorted(range(len(each)), key=each.__getitem__))


def _each(split: Split) -> list[bytes]:
    labels = split.labels_N.tolist()
    return [
        hashlib.sha256(f"{labels[k]} ".encode() + split.images_NCHW[k].numpy().tobytes()).digest()
        for k in range(len(split))
    ]


def has_its_images(dataset: Dataset, entry: ZooRun) -> bool:
    """Whether the card's figures are of this test set."""
    return digest_of(dataset.test) == entry.card["test_sha256"]


def same_data(entry: ZooRun, data_root: Path) -> Dataset:
    """The data set, if the card's figures are of its test images."""
    dataset = entry.load_dataset(data_root)
    if not has_its_images(dataset, entry):
        raise UserError(
            f"{entry.path} was tested on other images than {dataset.name} holds; point --data-root to them."
        )
    return dataset
