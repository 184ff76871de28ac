"""One set of weights, many budgets."""

from collections.abc import Callable

import torch

from codinet.cost import block_costs
from codinet.engines import BranchEngine, GatherEngine, threshold_curve
from codinet.model import RoutedNetwork


def test_a_higher_threshold_costs_no_more_at_the_first_block(
    network: Callable[..., RoutedNetwork], images: torch.Tensor
) -> None:
    model = network()
    table = block_costs(model, (3, 32, 32))
    labels = torch.arange(len(images))
    thresholds = (0.0, 0.3, 0.5, 0.7, 1.0)
    curves = [
        threshold_curve(engine, lambda: [(images, labels)], table, thresholds=thresholds)
        for engine in (model, BranchEngine(model), GatherEngine(model))
    ]
    assert curves[0] == curves[1] == curves[2]
    points = curves[0]
    assert [point.threshold for point in points] == list(thresholds)
    assert points[0].mean_blocks == len(model.blocks)
    assert points[-1].mean_blocks == 0
    shares = [point.cost_share for point in points]
    assert shares[0] > 1 > shares[2] > shares[-1]  # with every block run, routers come on top
    assert all(0 <= point.accuracy <= 100 and point.distinct_paths >= 1 for point in points)
