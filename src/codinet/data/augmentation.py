"""How training views are made of images: padded crops, or random parts of an image that are scaled.

Padded crops keep nearly the whole image and suit small images. They draw from the device's torch generator. Random
parts are for photographs (`random_crops`); tensors are cut on the device, image files by the threads that decode them.

With `fixed`, an image has that many views of either kind, which are the same in every epoch. Each epoch uses a random
one and those that follow it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from codinet.data.images import View
from codinet.data.random_crops import (
    blank_places,
    crop_box,
    crop_boxes,
    cut,
    hashed_draws,
    is_mirrored,
    mirrored,
    placing_draws,
    smallest_box,
)
from codinet.data.views import blank_squares, padded_views, random_views


@dataclass(frozen=True)
class Augmentation:
    """Settings of the views.

    Args:
        size: Height and width of a view.
        views: Views per image, M.
        flip: Whether half of the views are mirrored.
        pad: Zeros on each side before a padded crop.
        min_area: The smallest part of an image that a view shows, as a fraction of its area; None: padded crops.
        blank: The side of a square that is blanked in each view; 0 is off.
        seed: The seed of the random parts and of fixed views.
        fixed: How many views of an image there are, at least `views`; 0: new ones in every epoch.
    """

    size: tuple[int, int]
    views: int
    flip: bool = False
    pad: int = 0
    min_area: float | None = None
    blank: int = 0
    seed: int = 0
    fixed: int = 0

    def make_views(
        self, images_LCHW: torch.Tensor, image_L: torch.Tensor, epoch: int | torch.Tensor, *, ready: bool = False
    ) -> torch.Tensor:
        """Make the views of a batch of normalised images on their device.

        Args:
            images_LCHW: The images, or with `ready` the views that threads have cut.
            image_L: The position of each image in the training split.
            epoch: The epoch, a number or a scalar int64 tensor.
            ready: Whether only the blank square is missing.

        Returns:
            B×C×H×W; the views of an image are next to each other.
        """
        if self.min_area is None and not self.fixed:
            return random_views(images_LCHW, self.views, pad=self.pad, flip=self.flip, blank=self.blank)
        if ready and not self.blank:
            return images_LCHW
        draws_BD = self._draws(epoch, image_L)
        if self.min_area is None:
            draws_DB = placing_draws(draws_BD)
            return padded_views(images_LCHW, draws_DB, pad=self.pad, flip=self.flip, blank=self.blank)
        views_BCHW = images_LCHW
        if not ready:
            boxes_B4 = crop_boxes(draws_BD, *images_LCHW.shape[2:], min_area=self.min_area)
            views_BCHW = cut(images_LCHW, boxes_B4, mirrored(draws_BD, flip=self.flip), self.size)
        return blank_squares(views_BCHW, *blank_places(draws_BD), side=self.blank) if self.blank else views_BCHW

    def numbers(self, epoch: int | torch.Tensor, image_L: torch.Tensor) -> torch.Tensor:
        """Which fixed views an epoch uses, L×M numbers from 0 to `fixed` - 1; those of an image differ."""
        # The complement of the seed, because the seed itself determines the views.
        first_L = (hashed_draws(~self.seed, epoch, image_L, 1)[:, 0] * self.fixed).long()
        return (first_L[:, None] + torch.arange(self.views, device=image_L.device)) % self.fixed

    def draws(self, epoch: int, image_L: torch.Tensor) -> list[list[list[float]]]:
        """The random numbers of the views of each image, for `choose`."""
        return self._draws(epoch, image_L).unflatten(0, (-1, self.views)).tolist()

    def _draws(self, epoch: int | torch.Tensor, image_L: torch.Tensor) -> torch.Tensor:
        """The random numbers of each view, B×D."""
        if not self.fixed:
            return hashed_draws(self.seed, epoch, image_L, self.views)
        view_B = self.numbers(epoch, image_L).flatten()
        return hashed_draws(self.seed, view_B, image_L.repeat_interleave(self.views), 1)

    def choose(self, draws_MD: Sequence[Sequence[float]], height: int, width: int) -> list[View]:
        """The views of one image of this size, for `images.read_views`.

        With `fixed`, the smallest possible one follows, so that a view does not depend on those that are cut with it.
        """
        assert self.min_area is not None
        views = [
            (crop_box(draws_D, height, width, min_area=self.min_area), is_mirrored(draws_D, flip=self.flip))
            for draws_D in draws_MD
        ]
        return [*views, (smallest_box(height, width, min_area=self.min_area), False)] if self.fixed else views
