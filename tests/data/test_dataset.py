import math
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
        ({"name": "t\udcffy"}, r"called 't\\udcffy'"),
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
def test_a_bad_one_is_explained(good: Dataset, change: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        check(replace(good, **change))


def test_something_else_is_refused() -> None:
    with pytest.raises(UserError, match=r"expected a codinet\.data\.Dataset, got None"):
        check(None)  # type: ignore[arg-type]
