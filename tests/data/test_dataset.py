from dataclasses import replace
from typing import Any

import pytest
import torch

from codinet.data.dataset import Dataset, Split, check
from codinet.errors import UserError


def split(labels: list[int], size: int = 4) -> Split:
    return Split(torch.zeros(len(labels), 1, size, size, dtype=torch.uint8), torch.tensor(labels))


@pytest.fixture
def good() -> Dataset:
    return Dataset("toy", split([0, 1, 1]), split([0]), ("a", "b"), (0.0,), (1.0,), 0, False)


def test_a_good_one_passes_through(good: Dataset) -> None:
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
    ],
)
def test_a_bad_one_is_explained(good: Dataset, change: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        check(replace(good, **change))
