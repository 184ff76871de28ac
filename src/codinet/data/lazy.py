"""Images of files that are decoded when they are asked for, for folders larger than memory.

Stands where a tensor of images stands: it has a tensor's shape and is indexed along its first axis. Knows
nothing of labels or folders.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from codinet.data.images import read_image
from codinet.data.threads import map_in_threads


@dataclass(frozen=True)
class LazyImages:
    """Files, and the shape that their images are brought to."""

    paths: Sequence[str]  # not Path, which takes three times the memory, and there may be millions
    channels: int
    size: tuple[int, int]  # height, width

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.paths), self.channels, *self.size))

    @property
    def nbytes(self) -> int:
        """What they would take in memory."""
        return self.shape.numel()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int | slice | torch.Tensor) -> torch.Tensor:
        """The images at these places, decoded by several threads."""
        if isinstance(index, int):
            return self._read(index)
        places = range(len(self))[index] if isinstance(index, slice) else index.tolist()
        images_BCHW = torch.empty((len(places), *self.shape[1:]), dtype=torch.uint8)
        rows_BCHW = images_BCHW.numpy()

        def fill(row: int) -> None:
            self.read_into(rows_BCHW[row : row + 1], places[row : row + 1])

        map_in_threads(fill, range(len(places)), "Reading images")
        return images_BCHW

    def read_into(self, rows_BCHW: np.ndarray, places: Sequence[int]) -> None:
        """Decode the images at these places into an array, in this thread."""
        for row, place in enumerate(places):
            rows_BCHW[row] = self._read(place).numpy()

    def pick(self, index_N: torch.Tensor) -> "LazyImages":
        """Some of them, not decoded."""
        return LazyImages([self.paths[place] for place in index_N.tolist()], self.channels, self.size)

    def _read(self, place: int) -> torch.Tensor:
        return read_image(Path(self.paths[place]), channels=self.channels, size=self.size)


Images = torch.Tensor | LazyImages
