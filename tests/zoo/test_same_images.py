from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codinet.data import Split
from codinet.data.digits import load_digits
from codinet.errors import UserError
from codinet.runs import RunFolder
from codinet.zoo.open_run import ZooRun, open_entry
from codinet.zoo.same_images import identity_of, same_data
from codinet.zoo.shelf import find

NAME = "digits-resnet20-06"
FEW = Split(torch.arange(24, dtype=torch.uint8).view(6, 1, 2, 2), torch.tensor([0, 1, 2, 0, 1, 2]))


@settings(deadline=None)
@given(st.permutations(range(6)))
def test_the_order_of_images_does_not_matter(order: list[int]) -> None:
    shuffled = FEW.subset(torch.tensor(order))
    assert identity_of(shuffled).digest == identity_of(FEW).digest
    ours, theirs = (split.subset(identity_of(split).order_T) for split in (FEW, shuffled))
    assert torch.equal(ours.images_NCHW, theirs.images_NCHW)
    assert torch.equal(ours.labels_N, theirs.labels_N)


def test_another_pixel_label_or_number_is_another_set() -> None:
    pixels, labels = FEW.images_NCHW.clone(), FEW.labels_N.clone()
    pixels[3, 0, 1, 1] += 1
    labels[[0, 1]] = labels[[1, 0]]
    others = [Split(pixels, FEW.labels_N), Split(FEW.images_NCHW, labels), FEW.subset(torch.arange(5))]
    assert len({identity_of(split).digest for split in (FEW, *others)}) == 4


def test_a_shuffled_copy_of_the_data_set_will_do(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits, entry = load_digits(), open_entry(find(NAME))
    shuffled = replace(
        digits, test=digits.test.subset(torch.arange(500).flip(0)), train=digits.train.subset(torch.arange(9))
    )
    monkeypatch.setattr(RunFolder, "load_dataset", lambda _run, _root: shuffled)
    assert same_data(entry, Path()) is shuffled
    assert isinstance(entry, ZooRun)
    fewer = replace(digits, test=digits.test.subset(torch.arange(499)))
    monkeypatch.setattr(RunFolder, "load_dataset", lambda _run, _root: fewer)
    with pytest.raises(UserError, match="was tested on other images than digits holds"):
        same_data(entry, Path())
