"""The analysis's augmentations, one image at a time and under the names the page uses.

What is random depends on the seed alone, so a view stays the same while the threshold moves.
"""

from typing import NamedTuple

import torch

from codinet.analysis.augment import CROP, HORIZONTAL, ROTATION, VERTICAL, augment, draw


class View(NamedTuple):
    title: str
    kind: int  # a place in `analysis.augment.KINDS`
    drawn: bool  # whether another seed gives another view


VIEWS = {
    "crop": View("Random crop", CROP, True),
    "mirror": View("Mirror", HORIZONTAL, False),
    "rotation": View("Rotation", ROTATION, True),
    "upside-down": View("Upside down", VERTICAL, False),
}


def make_view(image_1CHW: torch.Tensor, name: str, *, seed: int) -> torch.Tensor:
    """The named view of a normalised image; crops shift by an eighth at most, as the data sets' own do."""
    pad = max(1, min(image_1CHW.shape[2:]) // 8)
    draws = draw(1, pad=pad, seed=seed)._replace(kind_B=torch.tensor([VIEWS[name].kind], dtype=torch.uint8))
    return augment(image_1CHW, draws.at(slice(None), image_1CHW.device), pad=pad)
