from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from codinet.data import read_image
from codinet.data.channel_stats import channel_stats
from codinet.data.dataset import Split
from codinet.data.lazy import LazyImages
from codinet.errors import UserError


@pytest.fixture
def images(image_folder: Callable[..., Path]) -> LazyImages:
    return LazyImages(sorted(map(str, image_folder(per_class=6).glob("*/*.png"))), 3, (8, 8))


def test_is_indexed_like_a_tensor(images: LazyImages) -> None:
    whole = torch.stack([read_image(Path(path), channels=3, size=(8, 8)) for path in images.paths])
    assert images.shape == whole.shape
    assert images.nbytes == whole.nbytes
    assert len(images) == 12
    place = torch.tensor([7, 0, 7])
    for index in (slice(None), slice(1, 9, 3), slice(20, None), place, 5, -1):
        assert torch.equal(images[index], whole[index])
    rows = np.empty((3, 3, 8, 8), np.uint8)
    images.read_into(rows, [7, 0, 7])
    assert torch.equal(torch.from_numpy(rows), whole[place])
    assert channel_stats(images) == channel_stats(whole)


def test_a_subset_is_not_decoded(images: LazyImages) -> None:
    split = Split(images, torch.arange(12))
    Path(images.paths[3]).unlink()
    picked = split.subset(torch.tensor([4, 3, 9]))
    assert isinstance(picked.images_NCHW, LazyImages)
    assert picked.labels_N.tolist() == [4, 3, 9]
    assert torch.equal(picked.images_NCHW[0], images[4])
    with pytest.raises(UserError, match=r"003\.png cannot be opened"):
        picked.images_NCHW[1]
