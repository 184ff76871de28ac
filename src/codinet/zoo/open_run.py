"""Opening a run folder or `zoo:NAME` in the same way."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from codinet import files
from codinet.errors import UserError
from codinet.records import PathTable
from codinet.runs import ZOO, RunFolder, path_table
from codinet.zoo.card import RESTORE, Card
from codinet.zoo.paths import PREFIX, unpacked
from codinet.zoo.shelf import find, weights_of


@dataclass(frozen=True)
class ZooRun(RunFolder):
    """A network of the zoo, read like a finished run folder and never written; `path` is only its name."""

    card: Card
    file: Path  # its weights

    @property
    def finished(self) -> bool:
        return True

    def metrics(self) -> list[dict[str, Any]]:
        return []

    @property
    def weights_file(self) -> Path:
        return self.file

    def load_tensors(self) -> dict[str, torch.Tensor]:
        return load_checked(self.card, self.file)

    def load_paths(self) -> PathTable:
        """How its test images were routed, in the order of `same_images`."""
        found = unpacked(_checked(self.card, self.file), self.card.table())
        if found is None:
            unpack = f"codinet zoo unpack {self.card.name} --out DIR"
            raise UserError(f"{self.path} comes without its path table; make one with {unpack}.")
        try:
            return path_table(found, self.config.network, self.data)
        except UserError as error:
            why = str(error).rstrip(".")
            raise files.DamagedError(f"{self.file} has the path table of another network ({why}); {RESTORE}") from error

    def load_evaluation(self) -> dict[str, Any]:
        return self.card.figures()


def open_run(path: Path | str) -> RunFolder:
    """The run that eval, predict, explore, bench and export take, and --start and --teacher."""
    if not str(path).startswith(ZOO):
        return RunFolder.open(Path(path))
    return open_entry(find(str(path).removeprefix(ZOO)))


def open_entry(card: Card, folder: Path | None = None) -> ZooRun:
    where = Path(f"{ZOO}{card.name}")
    return ZooRun(where, card.config(), card.brief(), card.environment(), card, weights_of(card, folder))


def load_checked(card: Card, file: Path) -> dict[str, torch.Tensor]:
    """The weights in full precision, if the file is the one that the card describes."""
    found = _checked(card, file)
    return {name: widened(tensor) for name, tensor in found.items() if not name.startswith(PREFIX)}


def _checked(card: Card, file: Path) -> dict[str, torch.Tensor]:
    """All tensors of the file."""
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
    return tensor.float() if tensor.is_floating_point() else tensor
