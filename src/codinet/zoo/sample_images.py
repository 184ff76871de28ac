"""The few test images per data set that come with the zoo: DATA.samples.npz next to the cards.

The explorer shows them where the data set is missing. An index is a position in the canonical order of the test images,
which is that of the path table, so an image's path is known too.
"""

import logging
from pathlib import Path

import numpy as np
import torch

from codinet.data import Split
from codinet.run_reader import SampleImages
from codinet.zoo.card import Card

_log = logging.getLogger(__name__)


def sample_file(data: str, folder: Path) -> Path:
    """The file of a data set's sample images in a folder of the zoo."""
    return folder / f"{data}.samples.npz"


def choose_samples(labels_T: torch.Tensor, number: int) -> torch.Tensor:
    """Choose images of as many classes as possible.

    Args:
        labels_T: The label of each test image, in the canonical order.
        number: How many images to choose.

    Returns:
        Indices, ascending: the first images of each class, or of evenly spaced classes if there are more than `number`.
    """
    classes = labels_T.unique().tolist()
    wanted = [classes[k * len(classes) // number] for k in range(number)]
    indices = []
    for label in dict.fromkeys(wanted):
        indices += torch.nonzero(labels_T == label).flatten()[: wanted.count(label)].tolist()
    return torch.tensor(sorted(indices))


def save_samples(file: Path, samples: SampleImages, test_sha256: str) -> None:
    """Write sample images without loss; `test_sha256` identifies the test images they were chosen from."""
    np.savez_compressed(
        file,
        images=samples.split.images_NCHW.numpy(),
        labels=samples.split.labels_N.numpy().astype(np.int16),
        indices=samples.index_S.numpy().astype(np.int32),
        test_sha256=np.array(test_sha256),
    )


def load_samples(card: Card, folder: Path) -> SampleImages | None:
    """The sample images of a card's test set; None if the zoo has none, or a damaged file."""
    file = sample_file(card["data"], folder)
    if not file.is_file():
        return None
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
            images, labels, indices, digest = (content[key] for key in ("images", "labels", "indices", "test_sha256"))
    except Exception:  # numpy and zipfile raise many kinds for a damaged file; the explorer works without it
        _log.warning(f"{file} is damaged; install codinet again to see sample images.")
        return None
    shape = (indices.size, *card["image_shape"])
    valid = images.shape == shape and images.dtype == np.uint8 and labels.shape == indices.shape == shape[:1]
    valid = valid and indices.size > 0 and labels.dtype == np.int16 and indices.dtype == np.int32
    valid = valid and 0 <= indices.min() <= indices.max() < card["n"]
    valid = valid and 0 <= labels.min() <= labels.max() < len(card["classes"])
    if not valid or str(digest) != card["test_sha256"]:
        return None
    labels_S, index_S = (torch.from_numpy(column.astype(np.int64)) for column in (labels, indices))
    return SampleImages(Split(torch.from_numpy(images), labels_S), index_S)
