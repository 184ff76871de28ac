"""Where a split waits to be used: whole on the device where there is room, else in memory or on disk, streamed."""

import math
from typing import Literal

import torch

from codinet.data import memory
from codinet.data.dataset import Dataset, Split
from codinet.data.resident import Resident
from codinet.data.stream import Stream
from codinet.errors import UserError

Loader = Literal["auto", "resident", "stream"]

SHARE = 0.5  # of what is free, that splits may take together; the rest is the training's


class Placing:
    """Places the splits of a data set on a device, as long as there is room; those placed first have it."""

    def __init__(self, dataset: Dataset, device: torch.device) -> None:
        self.dataset, self.device = dataset, device
        free = free_bytes(device)
        self.free = math.inf if free is None else free
        self.left = SHARE * self.free

    def place(self, split: Split, loader: Loader = "auto") -> Resident | Stream:
        """`loader` says what to do, or to look whether there is room."""
        needed = self._needed(split)
        if loader == "resident" and needed > self.free:
            raise UserError(
                f"{len(split):,} images of {self.dataset.name} take {needed / 2**30:.1f} GiB and {self.device} has "
                f"{self.free / 2**30:.1f} GiB free; leave --loader resident out, so that they are streamed."
            )
        if loader == "stream" or (loader == "auto" and needed > self.left):
            return Stream(split, self.dataset, self.device)
        self.left -= needed
        return Resident.of(split, self.dataset, self.device)

    def _needed(self, split: Split) -> int:
        """Bytes that holding the split takes anew: none where it lies already."""
        here = self.device.type == "cpu" and isinstance(split.images_NCHW, torch.Tensor)
        return 0 if here else split.images_NCHW.nbytes


def free_bytes(device: torch.device) -> int | None:
    """Memory that the device has free; None where nobody says."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return memory.available_bytes()  # of the machine, which other devices share
