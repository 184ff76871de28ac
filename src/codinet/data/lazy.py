"""Images of files that are decoded when they are asked for, for folders larger than memory.

Stands where a tensor of images stands: it has a tensor's shape and is indexed along its first axis. Knows
nothing of labels or folders.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from codinet.data.images import read_image

_Item = TypeVar("_Item")
_T = TypeVar("_T")


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
        """Decoded by several threads."""
        if isinstance(index, int):
            return self._read(index)
        places = range(len(self))[index] if isinstance(index, slice) else index.tolist()
        images_BCHW = torch.empty((len(places), *self.shape[1:]), dtype=torch.uint8)

        def fill(row: int) -> None:
            images_BCHW[row] = self._read(places[row])

        in_threads(fill, range(len(places)))
        return images_BCHW

    def one_by_one(self, places: Sequence[int]) -> torch.Tensor:
        """Decoded by this thread alone, for processes that share the work already."""
        images_BCHW = torch.empty((len(places), *self.shape[1:]), dtype=torch.uint8)
        for row, place in enumerate(places):
            images_BCHW[row] = self._read(place)
        return images_BCHW

    def pick(self, index_N: torch.Tensor) -> "LazyImages":
        """Some of them, not decoded."""
        return LazyImages([self.paths[place] for place in index_N.tolist()], self.channels, self.size)

    def _read(self, place: int) -> torch.Tensor:
        return read_image(Path(self.paths[place]), channels=self.channels, size=self.size)


Images = torch.Tensor | LazyImages


def in_threads(function: Callable[[_Item], _T], items: Sequence[_Item]) -> list[_T]:
    """The function of every item, in order; decoders release the interpreter's lock, so threads help."""
    pool = ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1))
    try:
        return list(pool.map(function, items))
    finally:
        # After an unreadable image nobody waits for the rest.
        pool.shutdown(cancel_futures=True)
