from typing import Any

import numpy as np
import pytest
from matplotlib.collections import Collection
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from tests.report.figure_text import text_of

from codinet.report.drawing import Figure, colour, to_png, to_svg
from codinet.report.result_figures import CostPoint, _cost_caption, draw_accuracy_cost, draw_training


def point(data: str = "cifar10", **more: object) -> CostPoint:
    return CostPoint(**{"name": "mine", "data": data, "accuracy": 92.0, "macs": 45e6, "routed": True} | more)  # type: ignore[arg-type]


def positions(figure: Figure, axes: int = 0) -> set[tuple[float, float]]:
    found = [np.asarray(drawn.get_offsets()) for drawn in figure.axes[axes].collections]
    return {(round(float(x), 4), round(float(y), 2)) for offsets in found for x, y in offsets}


def test_runs_and_published_results_are_in_the_papers_unit() -> None:
    runs = [point(), point(name="net", accuracy=91.0, macs=69e6, routed=False, position=1)]
    figure = draw_accuracy_cost(runs)
    found = positions(figure)
    assert (0.09, 92.0) in found  # 45 M MACs, two per multiply-add
    assert (0.138, 91.0) in found
    assert {(0.29, 94.47), (0.09, 92.38), (0.111, 93.58), (0.118, 93.77)} <= found
    text = text_of(figure)
    assert all(name in text for name in ("SkipNet", "DynConv", "Torch-Pruning", "mine", "net", "published: static"))
    assert "two per multiply-add" in text
    assert "one per multiply-add" in text
    caption = _cost_caption(runs)
    assert all(word in caption for word in ("Filled", "open", "Grey", "γ", "dotted"))
    assert "dashed" not in caption  # a single static network


def test_other_data_is_in_macs_and_its_caption_has_no_published_results() -> None:
    runs = [point("shapes", macs=1.5e6), *(point("shapes", macs=macs, routed=False) for macs in (1e6, 3e6))]
    figure = draw_accuracy_cost(runs)
    assert positions(figure) == {(1.5, 92.0), (1.0, 92.0), (3.0, 92.0)}
    assert "paper" not in text_of(figure)
    assert "M MACs" in text_of(figure)
    assert "The dashed line" in _cost_caption(runs)
    assert not any(word in _cost_caption(runs) for word in ("ublished", "paper", "γ", "dotted", "panel"))


def test_the_legend_shows_the_markers_and_colours_of_the_points() -> None:
    runs = [
        point("shapes", name=name, macs=macs, routed=name != "c", position=index)
        for index, (name, macs) in enumerate({"a": 1e6, "b": 2e6, "c": 3e6}.items(), start=1)
    ]
    [axes] = draw_accuracy_cost(runs).axes
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b", "c"]
    for run, drawn, shown in zip(runs, axes.collections, legend.legend_handles, strict=True):
        assert isinstance(shown, Collection)
        assert np.array_equal(drawn.get_paths()[0].vertices, shown.get_paths()[0].vertices)
        assert to_hex(np.asarray(drawn.get_edgecolor())[0]) == to_hex(np.asarray(shown.get_edgecolor())[0])
        assert to_hex(np.asarray(shown.get_edgecolor())[0]) == colour(run.position)
        assert bool(len(np.asarray(shown.get_facecolor()))) == run.routed


def test_each_data_set_has_a_panel() -> None:
    figure = draw_accuracy_cost(
        [point(), point("digits", accuracy=97.0, macs=1.5e6), point("imagenet", accuracy=75.0, macs=3e9)]
    )
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:3] == ["CIFAR-10", "digits", "ImageNet"]
    assert positions(figure, 1) == {(1.5, 97.0)}
    assert (3.0, 75.0) in positions(figure, 2)


@pytest.mark.parametrize("accuracy", [0.0, 61.0, 100.0])
def test_any_accuracy_can_be_drawn(accuracy: float) -> None:
    figure = draw_accuracy_cost([point("mine", accuracy=accuracy), point("mine", macs=1e3)])
    assert to_png(figure)
    [axes] = figure.axes
    box, radius = axes.get_window_extent(), 5 / 72 * figure.dpi
    for y in axes.transData.transform([(45, accuracy), (1e-3, 92.0)])[:, 1]:  # the whole marker is inside
        assert box.y0 + radius < y < box.y1 - radius
    assert all(0 <= tick <= 100 for tick in axes.get_yticks())


def test_training_shows_both_stages() -> None:
    rows: list[dict[str, Any]] = [
        {"stage": "joint", "epoch": 1, "accuracy": 50.0, "loss": 2.0, "cost_share": 0.9, "distinct_paths": 3}
    ]
    rows += [{"stage": "finetune", "epoch": 1, "accuracy": 60.0, "loss": 1.0, "cost_share": 0.6, "distinct_paths": 4}]
    figure = draw_training({"run": rows, "bare": [{"stage": "static", "accuracy": 9.0}], "none": []})
    assert "stage 2" in text_of(figure)
    handles = figure.legends[0].legend_handles
    assert [handle.get_marker() for handle in handles if isinstance(handle, Line2D)] == [".", ".", "None"]
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
