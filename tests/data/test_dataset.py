import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codinet.data import dataset, read_image
from codinet.data.dataset import Dataset, LazyImages, Split, channel_stats, check, hold_out
from codinet.errors import UserError


def split(labels: list[int], size: int = 4) -> Split:
    return Split(torch.zeros(len(labels), 1, size, size, dtype=torch.uint8), torch.tensor(labels))


@pytest.fixture
def good() -> Dataset:
    return Dataset("toy", split([0, 1, 1]), split([0]), ("a", "b"), (0.0,), (1.0,), 0, False)


def test_check_accepts_a_valid_data_set(good: Dataset) -> None:
    assert check(good) is good
    assert good.image_shape == (1, 4, 4)
    assert good.train.subset(torch.tensor([2, 0])).labels_N.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"classes": ("a",)}, "1 class"),
        ({"test": split([]).subset(torch.empty(0, dtype=torch.int64))}, "no test images"),
        ({"train": Split(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0]))}, "2 training images but 1"),
        ({"test": split([2])}, "labels from 2 to 2"),
        ({"test": split([-1])}, "labels from -1"),
        ({"test": split([0], size=5)}, "test images of shape"),
        ({"train": split([1, 1])}, "one class only"),
        ({"name": "t\udcffy"}, r"got 't\\udcffy'"),
        ({"classes": ("a", "a")}, "the class 'a' more than once"),
        ({"classes": ("a", "b\x00")}, r"a class called 'b\\x00'; rename it"),
        ({"classes": ("a", 7)}, "a class called 7; rename it"),
        ({"test": Split(torch.zeros(1, 1, 4, 4), torch.tensor([0]))}, r"type torch.float32; expected torch\.uint8"),
        ({"test": Split(torch.zeros(1, 4, 4, dtype=torch.uint8), torch.tensor([0]))}, r"expected \(N, C, H, W\)"),
        ({"test": Split(split([0]).images_NCHW, torch.tensor([0.0]))}, r"expected torch\.int64"),
        ({"test": Split(split([0]).images_NCHW, torch.tensor(0))}, r"labels of shape \(\); expected \(N,\)"),
        ({"test": Split(split([0]).images_NCHW.numpy(), torch.tensor([0]))}, "not tensors"),
        ({"mean": (math.nan,)}, r"the mean \(nan,\); expected a number from 0 to 255"),
        ({"mean": (1.0, 2.0)}, "for each of 1 channels"),
        ({"std": (0.0,)}, r"the std \(0.0,\)"),
        ({"std": ("1",)}, "the std"),
        ({"pad": -1}, "the pad -1"),
        ({"pad": 1.5}, "the pad 1.5"),
    ],
)
def test_check_explains_what_is_invalid(good: Dataset, change: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        check(replace(good, **change))


def test_check_refuses_other_objects() -> None:
    with pytest.raises(UserError, match=r"expected a codinet\.data\.Dataset, got None"):
        check(None)  # type: ignore[arg-type]


def test_hold_out_worked_example() -> None:
    labels_N = torch.tensor([0] * 10 + [1] * 5)
    train, test = hold_out(labels_N, 3)
    # Class 0 gives two, from the middles of its halves; class 1 gives its middle one.
    assert test.tolist() == [2, 7, 12]
    assert train.tolist() == [0, 1, 3, 4, 5, 6, 8, 9, 10, 11, 13, 14]


def test_hold_out_of_tiny_classes() -> None:
    train, test = hold_out(torch.tensor([0, 1, 1, 2, 2, 2]), 1)
    assert 0 in train.tolist()
    assert len(test) == 2


def test_hold_out_of_no_images() -> None:
    train, test = hold_out(torch.empty(0, dtype=torch.int64), 0)
    assert len(train) == len(test) == 0


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=80), st.data())
def test_hold_out_properties(labels: list[int], data: st.DataObject) -> None:
    labels_N = torch.tensor(labels)
    count = data.draw(st.integers(0, len(labels)))
    train, test = hold_out(labels_N, count)
    assert sorted(train.tolist() + test.tolist()) == list(range(len(labels)))
    assert train.tolist() == sorted(train.tolist())
    sizes = torch.bincount(labels_N)
    held = torch.bincount(labels_N[test], minlength=len(sizes))
    for size, part in zip(sizes.tolist(), held.tolist(), strict=True):
        if size >= 2:
            assert 1 <= part <= size - 1
            # In proportion, to within one, where the limits of a tiny class do not bind.
            assert abs(part - size * count / len(labels)) <= 1 or part in (1, size - 1)
        else:
            assert part == 0
    again = hold_out(labels_N, count)
    assert torch.equal(again[0], train)
    assert torch.equal(again[1], test)


def test_channel_stats_agree_with_torch() -> None:
    images = torch.randint(0, 256, (7, 3, 5, 4), dtype=torch.uint8)
    mean, std = channel_stats(images)
    values = images.double()
    assert mean == pytest.approx(values.mean(dim=(0, 2, 3)).tolist())
    assert std == pytest.approx(values.std(dim=(0, 2, 3), correction=0).tolist())


def test_channel_stats_of_one_colour_are_not_zero() -> None:
    mean, std = channel_stats(torch.full((2, 1, 3, 3), 9, dtype=torch.uint8))
    assert mean == (9.0,)
    assert std == (1.0,)


def test_channel_stats_sample_very_many_images(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.arange(8, dtype=torch.uint8)[:, None, None, None].expand(8, 1, 2, 2)
    monkeypatch.setattr(dataset, "_MAX_VALUES", 16)
    assert channel_stats(images)[0] == (3.0,)  # of 0, 2, 4, 6


@pytest.fixture
def images(image_folder: Callable[..., Path]) -> LazyImages:
    return LazyImages(sorted(map(str, image_folder(per_class=6).glob("*/*.png"))), 3, (8, 8))


def test_lazy_images_are_indexed_like_a_tensor(images: LazyImages) -> None:
    whole = torch.stack([read_image(Path(str(path)), channels=3, size=(8, 8)) for path in images.sources])
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


def test_a_subset_of_lazy_images_is_not_decoded(images: LazyImages) -> None:
    split = Split(images, torch.arange(12))
    Path(str(images.sources[3])).unlink()
    picked = split.subset(torch.tensor([4, 3, 9]))
    assert isinstance(picked.images_NCHW, LazyImages)
    assert picked.labels_N.tolist() == [4, 3, 9]
    assert torch.equal(picked.images_NCHW[0], images[4])
    with pytest.raises(UserError, match=r"003\.png cannot be opened"):
        picked.images_NCHW[1]
