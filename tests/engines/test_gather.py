"""Gathering rows: exactly those that run are in the window, none is lost, and no move is superfluous."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codinet.engines.gather import copy_rows, move_rows, plan_moves, take_rows


def _counts(runs: list[bool]) -> list[int]:
    """The number of running rows in each window of the right width."""
    number = sum(runs)
    return [sum(runs[start : start + number]) for start in range(len(runs) - number + 1)]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(runs=st.lists(st.booleans(), min_size=1, max_size=20).filter(any))
def test_moves(runs: list[bool]) -> None:
    window, source, target = plan_moves(np.array(runs))
    after = np.arange(len(runs))
    after[target] = after[source].copy()
    assert sorted(after) == list(range(len(runs)))
    assert {int(place) for place in after[window]} == {place for place, ran in enumerate(runs) if ran}
    assert len(source) == 2 * (sum(runs) - max(_counts(runs)))


def test_moves_of_an_example() -> None:
    window, source, target = plan_moves(np.array([1, 0, 0, 1, 0, 1, 1, 0], np.bool_))
    assert window == slice(3, 7)
    assert source.tolist() == [0, 4]
    assert target.tolist() == [4, 0]


def test_adjacent_rows_do_not_move() -> None:
    for runs in ([1, 1, 1], [0, 1, 1], [1, 0, 0]):
        assert len(plan_moves(np.array(runs, np.bool_)).source_M) == 0


def test_rows_move_in_either_layout() -> None:
    x = torch.arange(3 * 2 * 2 * 2.0).view(3, 2, 2, 2)
    for layout in (torch.contiguous_format, torch.channels_last):
        moved = x.clone(memory_format=layout)
        move_rows(moved, np.array([0, 2]), np.array([2, 0]))
        assert torch.equal(moved, x.flip(0))


def test_rows_are_taken_and_written_in_any_layout() -> None:
    x, layouts = torch.arange(4 * 2 * 3 * 3.0).view(4, 2, 3, 3), (torch.contiguous_format, torch.channels_last)
    index = torch.tensor([3, 1])
    for one in layouts:
        taken = take_rows(x.contiguous(memory_format=one), index)
        assert torch.equal(taken, x[[3, 1]])
        for other in layouts:
            written = copy_rows(x.clone(memory_format=one), index, -taken.contiguous(memory_format=other))
            assert torch.equal(written[[3, 1]], -x[[3, 1]])
            assert torch.equal(written[[0, 2]], x[[0, 2]])
