from collections.abc import Callable
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

from codinet.config import RunConfig
from codinet.published import CODINET, OTHER, STATIC, Published
from tools.results.best_points import ALT, LIMITS, PUBLISHED, best_points, method_points, points_svg, points_table
from tools.results.columns import Row
from tools.results.record import Record

Make = Callable[..., Record]
KNOWN = [
    Published("cifar10", "Pruning", "ResNet-56", OTHER, 0.1, 93.6, "somewhere"),
    Published("cifar10", "CoDiNet γ=0.01", "ResNet-110", CODINET, 0.29, 94.47, "paper"),
    Published("cifar10", "ResNet-999", "ResNet-999", STATIC, 1.1, 94.6, "somewhere"),
]


def row(record: Make, method: str, cost: float, *accuracies: float, arch: str = "resnet110", **words: Any) -> Row:
    def config(base: RunConfig) -> RunConfig:
        return replace(base, network=replace(base.network, arch=arch))

    made = enumerate(accuracies)
    words |= {"method": method, "paper_gmaccs": cost, "config": config}
    return Row("results", [record(seed=seed, accuracy=accuracy, **words) for seed, accuracy in made], None, None)


def rows(record: Make) -> list[Row]:
    return [
        row(record, "static", 0.506, 94.4),
        row(record, "static", 0.051, 90.5, arch="resnet14"),
        row(record, "codinet", 0.284, 94.5, 94.7),
        row(record, "codinet", 0.28, 93.0),
        row(record, "codinet", 0.286, 94.1),  # costs more and is less accurate
        row(record, "con", 0.05, 99.0),  # not one of the kinds
    ]


def test_points_are_the_front_of_each_kind(record: Make) -> None:
    points = best_points(rows(record), KNOWN)
    assert {kind: [(point.cost, point.name) for point in found] for kind, found in points.items()} == {
        "static": [(0.051, "14"), (0.506, "110")],
        "vanilla routing": [],
        "CoDiNet": [(0.28, "110"), (0.284, "110")],
        PUBLISHED: [(0.1, "Pruning"), (0.29, "CoDiNet paper")],  # nothing above the last limit
    }


def test_no_points_without_our_own() -> None:
    assert best_points([], KNOWN) == {}


def test_the_table_has_the_best_point_up_to_each_cost(record: Make) -> None:
    head, _, *lines = points_table(best_points(rows(record), KNOWN)).splitlines()
    assert head == "| accuracy, % | static | vanilla routing | CoDiNet | best published |"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [line[0] for line in cells] == [f"up to {limit:.2f} G" for limit in LIMITS]
    small = "**90.50**<br>ResNet-14, 0.051 G, 250 epochs, 1 seed"
    assert cells[0][1:] == [small, "–", "–", "–"]
    assert cells[1][1:] == [small, "–", "–", "**93.60**<br>Pruning, ResNet-56, 0.1 G"]
    assert cells[3][1:] == [
        small,
        "–",
        "**94.60 ± 0.14**<br>ResNet-110, 0.284 G, 250 + 20 epochs, 2 seeds",
        "**94.47**<br>CoDiNet paper, ResNet-110, 0.29 G",
    ]
    assert cells[4][1] == "**94.40**<br>ResNet-110, 0.506 G, 250 epochs, 1 seed"


def test_the_figure_names_every_point(record: Make) -> None:
    points = best_points(rows(record), KNOWN)
    text = points_svg(points)
    assert text == points_svg(points)
    words = [element.text for element in ElementTree.fromstring(text).iter() if element.text and element.text.strip()]
    assert ALT in words
    for kind in ("ours: static", "ours: vanilla routing", "ours: CoDiNet", PUBLISHED, "Pruning", "CoDiNet paper", "14"):
        assert kind in words
    assert words.count("110") == 3


def test_methods_are_in_the_order_of_their_list_and_by_cost(record: Make) -> None:
    given = [row(record, "skipnet", 0.2, 90.0), row(record, "codinet", 0.3, 94.0), row(record, "codinet", 0.1, 92.0)]
    points = method_points(given)
    costs = {method: [point.cost for point in found] for method, found in points.items()}
    assert list(costs.items()) == [("CoDiNet", [0.1, 0.3]), ("SkipNet", [0.2])]
    assert "ours: " not in points_svg(points)
