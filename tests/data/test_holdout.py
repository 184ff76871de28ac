import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codinet.data.holdout import hold_out


def test_worked_example() -> None:
    labels_N = torch.tensor([0] * 10 + [1] * 5)
    train, test = hold_out(labels_N, 3)
    # Class 0 gives two, from the middles of its halves; class 1 gives its middle one.
    assert test.tolist() == [2, 7, 12]
    assert train.tolist() == [0, 1, 3, 4, 5, 6, 8, 9, 10, 11, 13, 14]


def test_a_class_of_one_stays_in_training_and_a_class_of_two_is_shared() -> None:
    train, test = hold_out(torch.tensor([0, 1, 1, 2, 2, 2]), 1)
    assert 0 in train.tolist()
    assert len(test) == 2


def test_nothing_from_nothing() -> None:
    train, test = hold_out(torch.empty(0, dtype=torch.int64), 0)
    assert len(train) == len(test) == 0


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=80), st.data())
def test_properties(labels: list[int], data: st.DataObject) -> None:
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
