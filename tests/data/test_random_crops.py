import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codinet.data.augmentation import Augmentation
from codinet.data.random_crops import DRAWS, TRIES, Box, crop_box, crop_boxes, cut, hashed_draws

EPOCH = torch.tensor(3)


def draws_of(area: float, ratio: float, down: float = 0.0, across: float = 0.0, mirror: float = 0.9) -> list[float]:
    """The numbers of a view whose first try has this area and ratio, as positions in their ranges."""
    return [area, ratio, *([0.0] * (2 * TRIES - 2)), down, across, mirror, 0.0, 0.0]


@pytest.mark.parametrize(
    ("draws", "height", "width", "box"),
    [
        (draws_of(0.0, 0.5), 80, 80, Box(0, 0, 40, 40)),  # a quarter of the area, ratio 1
        (draws_of(0.0, 0.5, 0.999, 0.999), 80, 80, Box(40, 40, 40, 40)),  # as far down and right as possible
        (draws_of(0.0, 0.5, 0.5, 0.0), 80, 80, Box(20, 0, 40, 40)),
        (draws_of(1.0, 0.5), 80, 80, Box(0, 0, 80, 80)),  # the whole image
        (draws_of(0.0, 1.0), 90, 160, Box(0, 0, 52, 69)),  # 3,600 pixels at 4:3
        (draws_of(0.0, 0.0), 90, 160, Box(0, 0, 69, 52)),  # at 3:4
        ([1.0, 1.0] * TRIES + [0.5] * 5, 80, 80, Box(0, 0, 80, 80)),  # no try fits: the whole image
        ([1.0, 0.5] * TRIES + [0.5] * 5, 30, 300, Box(0, 130, 30, 40)),  # a strip: the largest central box of 4:3
        ([1.0, 0.5] * TRIES + [0.5] * 5, 300, 30, Box(130, 0, 40, 30)),
    ],
)
def test_boxes_worked_examples(draws: list[float], height: int, width: int, box: Box) -> None:
    assert crop_box(draws, height, width, min_area=0.25) == box
    assert crop_boxes(torch.tensor([draws]), height, width, min_area=0.25).tolist() == [list(box)]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 400), st.integers(1, 400), st.floats(0.01, 1.0))
def test_boxes_lie_within_the_image_and_are_the_same_for_one_and_for_many(
    seed: int, height: int, width: int, min_area: float
) -> None:
    draws_BD = hashed_draws(seed, 5, torch.arange(20), 2)
    boxes = crop_boxes(draws_BD, height, width, min_area=min_area).tolist()
    assert boxes == [list(crop_box(row, height, width, min_area=min_area)) for row in draws_BD.tolist()]
    for top, left, h, w in boxes:
        assert 0 <= top <= top + h <= height
        assert 0 <= left <= left + w <= width
        assert min(h, w) >= 1


def test_areas_and_ratios_cover_their_ranges() -> None:
    boxes_B4 = crop_boxes(hashed_draws(0, 0, torch.arange(20_000), 1), 200, 300, min_area=0.25).double()
    area_B = boxes_B4[:, 2] * boxes_B4[:, 3] / (200 * 300)
    ratio_B = boxes_B4[:, 3] / boxes_B4[:, 2]
    assert 0.24 < area_B.min() < 0.26
    assert area_B.max() > 0.85
    assert 0.74 < ratio_B.min() < 0.77
    assert 1.31 < ratio_B.max() < 1.35
    # Below half of the area nearly every ratio fits, so areas there are uniform.
    low = ((area_B > 0.25) & (area_B < 0.35)).sum() / ((area_B > 0.35) & (area_B < 0.45)).sum()
    assert 0.9 < low < 1.1


def test_draws_depend_on_seed_epoch_image_and_view_alone() -> None:
    index = torch.tensor([7, 1_281_166, 0])
    draws = hashed_draws(1, 2, index, 3)
    assert draws.shape == (9, DRAWS)
    torch.manual_seed(5)  # has no influence
    assert torch.equal(hashed_draws(1, torch.tensor(2), index, 3), draws)
    assert torch.equal(hashed_draws(1, 2, index[2:], 3), draws[6:])
    assert torch.equal(hashed_draws(1, 2, index, 2)[:2], draws[:2])
    others = [hashed_draws(0, 2, index, 3), hashed_draws(1, 3, index, 3), hashed_draws(1, 2, index + 1, 3)]
    assert len({round(row.sum().item(), 4) for each in (draws, *others) for row in each}) == 36


def test_draws_are_uniform_and_independent() -> None:
    draws_BD = hashed_draws(0, 0, torch.arange(10_000), 2)
    assert draws_BD.min() >= 0
    assert draws_BD.max() < 1
    assert (draws_BD.mean(0) - 0.5).abs().max() < 5 * math.sqrt(1 / 12 / 20_000)
    related_DD = torch.corrcoef(draws_BD.T) - torch.eye(DRAWS)
    assert related_DD.abs().max() < 5 / math.sqrt(20_000)
    neighbours = torch.corrcoef(torch.stack([draws_BD[:-2, 0], draws_BD[2:, 0]]))[0, 1]
    assert neighbours.abs() < 5 / math.sqrt(20_000)


def test_cut_worked_examples() -> None:
    image = torch.arange(16.0).view(1, 1, 4, 4)
    boxes = torch.tensor([[0, 0, 4, 4], [1, 2, 2, 2], [1, 2, 2, 2], [0, 0, 4, 4]])
    mirror = torch.tensor([False, False, True, True])
    whole, part, mirrored_part, mirrored_whole = cut(image, boxes, mirror, (4, 4))
    assert torch.allclose(whole[0], image[0, 0])
    assert torch.allclose(mirrored_whole[0], image[0, 0].flip(1))
    small, mirrored_small = cut(image, boxes[1:3], mirror[1:3], (2, 2))
    assert small[0].tolist() == [[6, 7], [10, 11]]
    assert mirrored_small[0].tolist() == [[7, 6], [11, 10]]
    assert torch.allclose(part.flip(2), mirrored_part)
    assert torch.allclose(part[0, 1:3, 1:3].mean(), torch.tensor(8.5))


def test_views_of_an_image_are_next_to_each_other() -> None:
    images = torch.stack([torch.full((3, 9, 9), 1.0), torch.full((3, 9, 9), 2.0)])
    views = Augmentation((5, 6), 3, min_area=0.3).make_views(images, torch.tensor([4, 9]), EPOCH)
    assert views.shape == (6, 3, 5, 6)
    assert views.mean((1, 2, 3)).tolist() == pytest.approx([1, 1, 1, 2, 2, 2])


def test_views_do_not_depend_on_the_batch() -> None:
    images = torch.randn(4, 3, 12, 12)
    augmentation = Augmentation((8, 8), 2, flip=True, min_area=0.1, blank=3, seed=6)
    together = augmentation.make_views(images, torch.tensor([5, 6, 7, 8]), EPOCH)
    alone = augmentation.make_views(images[2:3], torch.tensor([7]), EPOCH)
    assert torch.equal(together[4:6], alone)
    assert (alone == 0).sum((1, 2, 3)).min() >= 3 * 4  # the blank square, clipped at a corner at most
    assert not torch.equal(alone[0], alone[1])
    assert not torch.equal(alone, augmentation.make_views(images[2:3], torch.tensor([7]), EPOCH + 1))


def test_whole_square_images_at_their_own_size_stay_as_they_are() -> None:
    images = torch.randn(2, 3, 8, 8)
    views = Augmentation((8, 8), 1, min_area=1.0).make_views(images, torch.arange(2), EPOCH)
    assert torch.allclose(views, images, atol=1e-5)
