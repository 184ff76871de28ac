from collections.abc import Callable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from codinet.published import OTHER, Published
from codinet.results.frontier import lead, unbeaten
from codinet.results.record import Record
from codinet.results.render import render


def published(gmaccs: float, accuracy: float) -> Published:
    return Published("cifar10", "method", "ResNet-8", OTHER, gmaccs, accuracy, "somewhere")


ROWS = [published(*pair) for pair in ((0.3, 94.0), (0.1, 92.0), (0.2, 93.0), (0.25, 92.5), (0.2, 92.8), (0.4, 94.0))]
points = st.tuples(st.integers(1, 9).map(lambda n: n / 10), st.integers(88, 95).map(float))


def test_what_another_matches_at_no_higher_cost_is_left_out() -> None:
    assert [(row.gmaccs, row.accuracy) for row in unbeaten(ROWS)] == [(0.1, 92.0), (0.2, 93.0), (0.3, 94.0)]


@given(st.lists(points, max_size=12))
def test_who_is_left_is_beaten_by_nobody(pairs: list[tuple[float, float]]) -> None:
    left = [(row.gmaccs or 0, row.accuracy) for row in unbeaten(published(*pair) for pair in pairs)]
    assert all(one[0] < two[0] and one[1] < two[1] for one, two in pairwise(left))
    for cost, accuracy in pairs:
        assert any(c <= cost and a >= accuracy for c, a in left)


def test_a_lead_is_over_what_is_as_cheap() -> None:
    assert lead(0.26, 93.5, ROWS) == 0.5
    assert lead(0.296, 93.5, ROWS) == -0.5  # printed as 0.3, that may cost the same
    assert lead(0.05, 93.5, ROWS) is None


def frontier(page: str) -> list[str]:
    return [line for line in page.split("## Static")[0].splitlines() if line.startswith("| 0.")]


def test_own_rows_stand_among_published_ones_once(record: Callable[..., Record]) -> None:
    both = "results", "trade-off"
    runs = [record(*both, seed=seed, accuracy=94.5 + seed / 5, paper_gmaccs=0.284) for seed in (0, 1)]
    lines = frontier(render(runs))
    (own,) = (line for line in lines if "here" in line)
    assert "| 0.284 | **94.60 ± 0.14** | **ResNet-110, CoDiNet at 0.57** |" in own
    assert own.endswith("| +0.30 |")  # over 94.30 at 0.27
    costs = [float(line.split("|")[1]) for line in lines]
    assert costs == sorted(costs)


def test_where_nothing_is_published_there_is_no_such_table(record: Callable[..., Record]) -> None:
    assert "Accuracy against cost" not in render([{**record(), "data": "digits"}])
