import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from codinet.report.figures_cost import CostPoint, accuracy_cost
from codinet.report.svg import png


def point(data: str = "cifar10", **more: object) -> CostPoint:
    return CostPoint(**{"name": "mine", "data": data, "accuracy": 92.0, "macs": 45e6, "unit": 2, "routed": True} | more)  # type: ignore[arg-type]


def places(figure: Figure, axes: int = 0) -> set[tuple[float, float]]:
    found = [np.asarray(drawn.get_offsets()) for drawn in figure.axes[axes].collections]
    return {(round(float(x), 4), round(float(y), 2)) for offsets in found for x, y in offsets}


def words(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(Text) if isinstance(text, Text))


def test_runs_stand_in_the_papers_unit_over_published_points() -> None:
    figure = accuracy_cost([point(), point(name="net", accuracy=91.0, macs=69e6, routed=False)])
    found = places(figure)
    assert (0.09, 92.0) in found  # 45 M MACs, two counted per multiply-add
    assert (0.138, 91.0) in found
    assert {(0.29, 94.47), (0.09, 92.38), (0.111, 93.58), (0.118, 93.77)} <= found
    said = words(figure)
    assert all(name in said for name in ("SkipNet", "DynConv", "Torch-Pruning", "mine", "net", "your static nets"))
    assert "two per multiply-add" in said
    assert "one per multiply-add" in said


def test_one_panel_a_data_set_and_none_for_the_unknown() -> None:
    figure = accuracy_cost(
        [point(), point("digits", accuracy=97.0, macs=1.5e6), point("imagenet", accuracy=75.0, macs=3e9, unit=1)]
    )
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:3] == ["CIFAR-10", "digits", "ImageNet"]
    assert places(figure, 1) == {(0.003, 97.0)}
    assert (3.0, 75.0) in places(figure, 2)


@pytest.mark.parametrize("accuracy", [0.0, 61.0, 100.0])
def test_any_accuracy_can_be_drawn(accuracy: float) -> None:
    assert png(accuracy_cost([point("mine", accuracy=accuracy), point("mine", macs=1e3)]))
