"""Neighbours and places in routing space, on points laid out by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codinet.explorer.space import Chart, RoutingSpace, fit
from codinet.records import PathTable


def space_of(points: list[list[float]]) -> RoutingSpace:
    points_TN = torch.tensor(points)
    zeros_T = torch.zeros(len(points), dtype=torch.int64)
    hard_TN = (points_TN >= 0.5).to(torch.uint8)
    return RoutingSpace(PathTable(hard_TN, points_TN, zeros_T, zeros_T, zeros_T.float(), zeros_T.double()))


def test_nearest_by_euclidean_distance() -> None:
    space = space_of([[0.0, 0.0], [0.3, 0.4], [1.0, 0.0]])
    near = space.nearest(torch.tensor([0.0, 0.0]), 2)
    assert [entry.image for entry in near] == [0, 1]
    assert [entry.distance for entry in near] == pytest.approx([0, 0.5])
    assert [entry.image for entry in space.nearest(torch.zeros(2), 5, besides=0)] == [1, 2]


def test_a_point_of_the_set_lies_at_its_own_place() -> None:
    space = space_of([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    chart = Chart(torch.tensor([2, 0]), torch.tensor([[0.9, 0.8], [0.1, 0.2]], dtype=torch.float64))
    assert space.place(torch.tensor([1.0, 1.0]), chart) == pytest.approx((0.9, 0.8), abs=1e-4)
    assert space.place(torch.tensor([0.5, 0.5]), chart) == pytest.approx((0.5, 0.5))


def test_flat_where_all_images_lie_at_one_point() -> None:
    assert space_of([[0.2, 0.7]] * 3).flat
    assert not space_of([[0.2, 0.7], [0.2, 0.8]]).flat


@given(st.lists(st.tuples(*[st.floats(-1e6, 1e6)] * 2), min_size=1, max_size=30))
def test_fit_fills_the_unit_square_and_keeps_proportions(rows: list[tuple[float, float]]) -> None:
    map_P2 = torch.tensor(rows, dtype=torch.float64)
    fitted_P2 = fit(map_P2)
    assert float(fitted_P2.min()) >= -1e-9
    assert float(fitted_P2.max()) <= 1 + 1e-9
    span_2, own_2 = fitted_P2.amax(0) - fitted_P2.amin(0), map_P2.amax(0) - map_P2.amin(0)
    if float(own_2.max()) > 0:
        assert float(span_2.max()) == pytest.approx(1)
        assert span_2.tolist() == pytest.approx((own_2 / own_2.max()).tolist(), abs=1e-6)
