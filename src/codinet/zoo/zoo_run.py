"""A network of the zoo as a run: its weights, its path table, and the check that a data set holds its test images.

The file of the weights also holds the path table of a routed network, one byte per decision, under names with a prefix.
Copies of a data set differ in the order of their images. The card therefore has a digest of the set of test images, and
the path table is in a canonical order.
"""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from codinet import files
from codinet.cost import CostTable
from codinet.data import Dataset, Split
from codinet.errors import UserError
from codinet.records import PathTable
from codinet.run_reader import CurvePoint, RunReader, SampleImages, path_table
from codinet.zoo.card import RESTORE, Card
from codinet.zoo.sample_images import load_samples
from codinet.zoo.shelf import ZOO, find, weights_of

PREFIX = "test."  # of the columns of the path table
_HALF = 128  # a probability of one half, in 256ths


@dataclass(frozen=True)
class ZooRun(RunReader):
    """A network of the zoo; `path` is its name, `zoo:NAME`."""

    card: Card
    file: Path  # its weights and path table

    @property
    def weights_file(self) -> Path:
        return self.file

    @property
    def finished(self) -> bool:
        return True

    def metrics(self) -> list[dict[str, Any]]:
        return []

    def wall_seconds(self) -> float | None:
        return self.card["wall_s"]

    def load_tensors(self) -> dict[str, torch.Tensor]:
        """The weights in full precision; `DamagedError` unless the file is the one that the card describes."""
        tensors = _load_checked(self.card, self.file)
        return {name: widened(tensor) for name, tensor in tensors.items() if not name.startswith(PREFIX)}

    def load_evaluation(self) -> dict[str, Any]:
        return self.card.figures()

    def load_paths(self) -> PathTable:
        """How each test image was routed, in the canonical order."""
        columns = unpack_paths(_load_checked(self.card, self.file), self.card.table())
        if columns is None:
            raise UserError(f"{self.path} comes without a path table; codinet analyze {self.path} makes one.")
        try:
            return path_table(columns, sum(self.groups), self.data)
        except UserError as error:
            why = str(error).rstrip(".")
            raise files.DamagedError(f"{self.file} has the path table of another network ({why}); {RESTORE}") from error

    def sample_images(self) -> SampleImages | None:
        return load_samples(self.card, self.file.parent)

    def threshold_curve(self) -> list[CurvePoint]:
        return self.card.curve()

    def aligned(self, dataset: Dataset) -> Dataset | None:
        """The data set with its test images in the canonical order; None if they are not those of the card.

        Training images are not compared: the test images are enough to reproduce the card's numbers.
        """
        digest, order_T = identity_of(dataset.test)
        if digest != self.card["test_sha256"]:
            return None
        return replace(dataset, test=dataset.test.subset(order_T))


def open_zoo(name: str) -> ZooRun:
    """Open the network of that name."""
    return open_card(find(name))


def open_card(card: Card, folder: Path | None = None) -> ZooRun:
    """Open the network that a card describes; `folder` is its zoo, by default `zoo_folder()`."""
    path = Path(f"{ZOO}{card.name}")
    facts = card.config(), card.data_info(), card.environment(), card.groups()
    return ZooRun(path, *facts, card, weights_of(card, folder))


def _load_checked(card: Card, file: Path) -> dict[str, torch.Tensor]:
    try:
        if file.stat().st_size != card["bytes"]:
            raise files.DamagedError(f"{file} is not the file that its card describes: its size differs; {RESTORE}")
        digest = files.sha256_of(file)
    except OSError as error:
        raise UserError(f"The weights {file} cannot be read ({error.strerror}); {RESTORE}") from error
    if digest != card["sha256"]:
        raise files.DamagedError(f"{file} is not the file that its card describes: the sha256 differs; {RESTORE}")
    try:
        return files.load_tensors(file)[0]
    except files.DamagedError as error:
        raise files.DamagedError(f"{str(error).rstrip('.')}; {RESTORE}") from error


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """A float tensor in float32; any other tensor unchanged."""
    return tensor.float() if tensor.is_floating_point() else tensor


class ImageSetIdentity(NamedTuple):
    """A digest of a set of labelled images and a canonical order of them. Neither depends on the given order."""

    digest: str
    order_T: torch.Tensor  # indices


def identity_of(split: Split) -> ImageSetIdentity:
    """Identify the labelled images of a split."""
    labels = split.labels_N.tolist()
    each = [
        hashlib.sha256(f"{labels[k]} ".encode() + split.images_NCHW[k].numpy().tobytes()).digest()
        for k in range(len(split))
    ]
    order = sorted(range(len(each)), key=each.__getitem__)
    return ImageSetIdentity(hashlib.sha256(b"".join(each[k] for k in order)).hexdigest(), torch.tensor(order))


def pack_paths(paths: PathTable) -> dict[str, torch.Tensor]:
    """The tensors that store a path table.

    Run probabilities become 256ths. Those of blocks that ran are at least one half, so the decisions need no column.
    """
    byte_TN = (paths.run_probability_TN * 256).long().clamp(max=255)
    byte_TN = torch.where(paths.path_TN == 1, byte_TN.clamp(min=_HALF), byte_TN.clamp(max=_HALF - 1))
    columns = {
        "run_probability": byte_TN.to(torch.uint8),
        "label": paths.label_T.to(torch.int16),
        "prediction": paths.prediction_T.to(torch.int16),
        "confidence": paths.confidence_T.half(),
    }
    return {PREFIX + name: column for name, column in columns.items()}


def unpack_paths(tensors: dict[str, torch.Tensor], table: CostTable) -> dict[str, torch.Tensor] | None:
    """The columns of the path table among a file's tensors.

    Returns:
        The columns, without those that are missing or have another dtype; None if there are none, as for static
        networks.
    """
    if not any(name.startswith(PREFIX) for name in tensors):
        return None
    columns: dict[str, torch.Tensor] = {}
    byte_TN = tensors.get(PREFIX + "run_probability")
    if byte_TN is not None and byte_TN.dtype == torch.uint8 and byte_TN.shape[1:] == (len(table.run_N),):
        columns["path_TN"] = (byte_TN >= _HALF).to(torch.uint8)
        columns["run_probability_TN"] = (byte_TN.float() + 0.5) / 256
        columns["macs_T"] = table.path_macs(columns["path_TN"])
    for name, stored, loaded in (
        ("label_T", torch.int16, torch.int64),
        ("prediction_T", torch.int16, torch.int64),
        ("confidence_T", torch.float16, torch.float32),
    ):
        column = tensors.get(PREFIX + name.removesuffix("_T"))
        if column is not None and column.dtype == stored:
            columns[name] = column.to(loaded)
    return columns
