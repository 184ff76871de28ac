import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codinet.analysis.swap import others, swapped_accuracy

A, B = [1, 0], [0, 1]


def test_two_images_take_each_others_place() -> None:
    assert others(torch.tensor([0, 0]), seed=0).tolist() == [1, 0]
    assert others(torch.tensor([7, 3, 7, 3, 5]), seed=0).tolist() == [2, 3, 0, 1, 4]  # the last is alone
    assert others(torch.tensor([4]), seed=0).tolist() == [0]


def test_the_seed_decides() -> None:
    label_T = torch.zeros(50, dtype=torch.int64)
    assert torch.equal(others(label_T, seed=1), others(label_T, seed=1))
    assert not torch.equal(others(label_T, seed=1), others(label_T, seed=2))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(0, 99), st.booleans())
def test_paths_change_hands_and_none_is_lost(labels: list[int], seed: int, within: bool) -> None:
    label_T = torch.tensor(labels)
    group_T = label_T if within else torch.zeros_like(label_T)
    other_T = others(group_T, seed=seed)
    path_TN = torch.randint(0, 2, (len(labels), 4), generator=torch.Generator().manual_seed(seed))
    assert sorted(path_TN[other_T].tolist()) == sorted(path_TN.tolist())
    assert sorted(other_T.tolist()) == list(range(len(labels)))
    assert torch.equal(group_T[other_T], group_T)
    alone_T = (group_T[:, None] == group_T).sum(dim=1) == 1
    assert torch.equal(other_T == torch.arange(len(labels)), alone_T)


def test_accuracy_of_a_worked_example() -> None:
    """Images 0 and 1 swap two paths, 2 and 3 two equal ones; along the other's, 0 goes wrong and 1 comes right."""
    asked = []

    def predict(place_I: torch.Tensor, path_IN: torch.Tensor) -> torch.Tensor:
        asked.append((place_I.tolist(), path_IN.tolist()))
        return torch.tensor([9, 1])

    path_TN = torch.tensor([A, B, A, A], dtype=torch.uint8)
    label_T, other_T = torch.tensor([0, 1, 2, 3]), torch.tensor([1, 0, 3, 2])
    assert swapped_accuracy(path_TN, torch.tensor([0, 9, 2, 9]), label_T, other_T, predict) == 50
    assert swapped_accuracy(path_TN, torch.tensor([0, 9, 2, 3]), label_T, other_T, predict) == 75
    assert asked == [([0, 1], [B, A])] * 2


def test_where_there_is_one_path_nothing_is_run() -> None:
    def predict(_place_I: torch.Tensor, _path_IN: torch.Tensor) -> torch.Tensor:
        pytest.fail("was run")

    label_T = torch.tensor([0, 1, 1])
    own_T = torch.tensor([0, 1, 0])
    accuracy = swapped_accuracy(torch.tensor([A] * 3), own_T, label_T, others(label_T, seed=0), predict)
    assert accuracy == pytest.approx(200 / 3)
    assert own_T.tolist() == [0, 1, 0]
