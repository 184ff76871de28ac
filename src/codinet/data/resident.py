"""A split held whole on the device that computes, as bytes; batches are normalised when they are taken.

Plain iterables, no worker processes: for sets that fit, nothing is faster. For others there is `stream`, which is
used alike.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from codinet.data.dataset import Dataset, Split
from codinet.data.lazy import LazyImages
from codinet.data.memory import require_room
from codinet.data.views import normalise


@dataclass(frozen=True)
class Resident:
    """Bytes and labels on a device, with the statistics that normalise them."""

    images_NCHW: torch.Tensor  # uint8
    labels_N: torch.Tensor
    mean_C: torch.Tensor
    std_C: torch.Tensor

    @classmethod
    def of(cls, split: Split, dataset: Dataset, device: torch.device) -> "Resident":
        images_NCHW = split.images_NCHW
        if isinstance(images_NCHW, LazyImages):
            require_room(
                images_NCHW.nbytes,
                what=f"{dataset.name} with {len(split):,} images",
                way_out="choose a smaller image size or use fewer images",
            )
            images_NCHW = images_NCHW[:]
        return cls(
            images_NCHW.to(device),
            split.labels_N.to(device),
            torch.tensor(dataset.mean, device=device),
            torch.tensor(dataset.std, device=device),
        )

    def __len__(self) -> int:
        return len(self.labels_N)

    def window(self, size: int) -> "Resident":
        """What a step on batches of this size takes its images from."""
        return self

    def deliver(self, batches: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
        """For each batch of places in the split, all of one size, its places in the window, which are the same."""
        listed = list(batches)
        if listed:
            # One copy for all: a copy for each would have the host wait every time.
            yield from torch.stack(listed).to(self.labels_N.device)

    def take(self, index_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalised images and labels at the given places."""
        return normalise(self.images_NCHW[index_B], self.mean_C, self.std_C), self.labels_N[index_B]

    def batches(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """All of it once, in order."""
        for start in range(0, len(self), size):
            images_BCHW = self.images_NCHW[start : start + size]
            yield normalise(images_BCHW, self.mean_C, self.std_C), self.labels_N[start : start + size]


def epoch_order(number: int, *, seed: int, epoch: int) -> torch.Tensor:
    """A permutation that depends on seed and epoch alone, so that a resumed epoch sees the same batches."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(number, generator=generator)
