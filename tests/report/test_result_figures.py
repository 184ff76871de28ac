from typing import Any

import numpy as np
import pytest
from tests.report.figure_text import text_of

from codinet.report.drawing import Figure, to_png, to_svg
from codinet.report.result_figures import CostPoint, draw_accuracy_cost, draw_training


def point(data: str = "cifar10", **more: object) -> CostPoint:
    return CostPoint(**{"name": "mine", "data": data, "accuracy": 92.0, "macs": 45e6, "unit": 2, "routed": True} | more)  # type: ignore[arg-type]


def positions(figure: Figure, axes: int = 0) -> set[tuple[float, float]]:
    found = [np.asarray(drawn.get_offsets()) for drawn in figure.axes[axes].collections]
    return {(round(float(x), 4), round(float(y), 2)) for offsets in found for x, y in offsets}


def test_runs_and_published_results_are_in_the_papers_unit() -> None:
    figure = draw_accuracy_cost([point(), point(name="net", accuracy=91.0, macs=69e6, routed=False)])
    found = positions(figure)
    assert (0.09, 92.0) in found  # 45 M MACs, two per multiply-add
    assert (0.138, 91.0) in found
    assert {(0.29, 94.47), (0.09, 92.38), (0.111, 93.58), (0.118, 93.77)} <= found
    text = text_of(figure)
    assert all(name in text for name in ("SkipNet", "DynConv", "Torch-Pruning", "mine", "net", "your static networks"))
    assert "two per multiply-add" in text
    assert "one per multiply-add" in text


def test_each_data_set_has_a_panel() -> None:
    figure = draw_accuracy_cost(
        [point(), point("digits", accuracy=97.0, macs=1.5e6), point("imagenet", accuracy=75.0, macs=3e9, unit=1)]
    )
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:3] == ["CIFAR-10", "digits", "ImageNet"]
    assert positions(figure, 1) == {(0.003, 97.0)}
    assert (3.0, 75.0) in positions(figure, 2)


@pytest.mark.parametrize("accuracy", [0.0, 61.0, 100.0])
def test_any_accuracy_can_be_drawn(accuracy: float) -> None:
    assert to_png(draw_accuracy_cost([point("mine", accuracy=accuracy), point("mine", macs=1e3)]))


def test_training_shows_both_stages() -> None:
    rows: list[dict[str, Any]] = [
        {"stage": "joint", "epoch": 1, "accuracy": 50.0, "loss": 2.0, "cost_share": 0.9, "distinct_paths": 3}
    ]
    rows += [{"stage": "finetune", "epoch": 1, "accuracy": 60.0, "loss": 1.0, "cost_share": 0.6, "distinct_paths": 4}]
    figure = draw_training({"run": rows, "bare": [{"stage": "static", "accuracy": 9.0}], "none": []})
    assert "stage 2" in text_of(figure)
    assert [50.0, 60.0] in [np.asarray(line.get_ydata()).tolist() for line in figure.axes[0].lines]


def test_missing_metrics_are_left_out() -> None:
    rows: list[dict[str, Any]] = [
        {"stage": "joint", "accuracy": 50.0, "loss": None},
        {"stage": "finetune", "accuracy": None},
        {},
    ]
    figure = draw_training({"run": rows})
    assert to_svg(figure)
    lines = [line for line in figure.axes[0].lines if np.size(line.get_xdata())]
    assert [np.asarray(line.get_ydata()).tolist() for line in lines] == [[50.0]]
