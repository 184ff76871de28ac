import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codinet.sweep import pareto

Points = list[tuple[float, float]]
POINTS = st.lists(st.tuples(st.integers(0, 9).map(float), st.integers(0, 9).map(float)), max_size=12)


def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[0] and one[1] >= other[1] and one != other


@given(POINTS)
def test_it_keeps_exactly_what_no_other_beats(points: Points) -> None:
    unbeaten = [place for place, point in enumerate(points) if not any(beats(other, point) for other in points)]
    assert sorted(pareto(points)) == unbeaten


@given(POINTS)
def test_along_the_front_more_cost_means_more_accuracy(points: Points) -> None:
    front = [points[place] for place in pareto(points)]
    assert front == sorted(front)
    assert [accuracy for _, accuracy in front] == sorted(accuracy for _, accuracy in front)


@given(POINTS, st.randoms())
def test_the_order_of_points_means_nothing(points: Points, dice: random.Random) -> None:
    mixed = dice.sample(points, len(points))
    assert [points[place] for place in pareto(points)] == [mixed[place] for place in pareto(mixed)]


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ([], []),
        ([(0.5, 90.0)], [0]),
        ([(0.5, 90.0), (0.5, 90.0)], [0, 1]),  # neither beats the other
        ([(0.5, 90.0), (0.5, 91.0), (0.6, 91.0)], [1]),
        ([(0.57, 94.47), (1.0, 93.60), (0.59, 93.66), (0.2, 92.45)], [3, 0]),  # of the paper
    ],
)
def test_by_hand(points: Points, front: list[int]) -> None:
    assert pareto(points) == front
