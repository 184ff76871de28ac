"""Accuracy against cost on CIFAR-10: a figure and a small table of the best networks, and a figure of all methods."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from codinet.commands.printing import counted
from codinet.published import CODINET, STATIC, VANILLA, Published
from codinet.report.drawing import INK, Figure, colour, marker, panels, place_labels, standalone_svg, styled, to_svg
from codinet.sweep.summary import Spread, pareto, spread_of
from tools.results.columns import NONE, Row, metric
from tools.results.paper_tables import METHODS, backbone_name
from tools.results.recipes import epochs_of

DATA = "cifar10"
LIMITS = 0.06, 0.10, 0.20, 0.30, 0.51  # costs of the rows of the table, in the paper's unit
PUBLISHED = "best published"
ALT = "Accuracy against cost on CIFAR-10: our static networks, vanilla routing, CoDiNet, and published networks"
METHODS_ALT = "Accuracy against cost on CIFAR-10: every method with the same recipe"
_TICKS = 0.03, 0.05, 0.1, 0.2, 0.3, 0.5


class Point(NamedTuple):
    """A network in the figure and the table."""

    cost: float  # in the paper's unit
    accuracy: Spread
    name: str  # in the figure
    cell: str  # in the table


Points = dict[str, list[Point]]  # of each kind; cost and accuracy increase


def best_points(rows: Iterable[Row], published: Iterable[Published]) -> Points:
    """The networks up to the last of `LIMITS` that no other of their kind beats at the same or a lower cost.

    Args:
        rows: Our own rows on `DATA`. Without any, there are no points.
        published: The best published rows on `DATA`, cheapest first.
    """
    points: Points = {kind: [] for kind in (STATIC, VANILLA, CODINET)}
    for row in rows:
        if (kind := METHODS[row.first["method"]]) in points:
            points[kind].append(_own_point(row))
    if not any(points.values()):
        return {}
    points = {kind: _front(found) for kind, found in points.items()} | {
        PUBLISHED: list(map(_published_point, published))
    }
    return {kind: [point for point in found if point.cost <= LIMITS[-1]] for kind, found in points.items()}


def _front(points: Sequence[Point]) -> list[Point]:
    return [points[place] for place in pareto([(point.cost, point.accuracy.mean) for point in points])]


def _own_point(row: Row) -> Point:
    cost, network = row.mean("paper_gmaccs"), backbone_name(row.first)
    how = f"{epochs_of(row.first)} epochs, {counted(len(row.runs), 'seed')}"
    cell = f"**{metric('accuracy', 2)(row)}**<br>{network}, {cost:.3f} G, {how}"
    return Point(cost, row.spread, network.removeprefix("ResNet-"), cell)


def _published_point(row: Published) -> Point:
    assert row.gmaccs is not None
    name = "CoDiNet paper" if row.kind == CODINET else row.method
    network = ", ".join(dict.fromkeys((name, row.backbone)))  # the method of a static network is its name
    return Point(row.gmaccs, spread_of([row.accuracy]), name, f"**{row.accuracy:.2f}**<br>{network}, {row.gmaccs:g} G")


def points_table(points: Points) -> str:
    """The most accurate point of each kind up to each of `LIMITS`."""
    text = f"| accuracy, % | {' | '.join(points)} |\n|---|{'---|' * len(points)}\n"
    for limit in LIMITS:
        fitting = [[point for point in found if point.cost <= limit] for found in points.values()]
        cells = [found[-1].cell if found else NONE for found in fitting]
        text += f"| up to {limit:.2f} G | {' | '.join(cells)} |\n"
    return text


def method_points(rows: Iterable[Row]) -> Points:
    """The networks of the table of methods, by method."""
    points: Points = {}
    for row in sorted(rows, key=lambda row: row.mean("paper_gmaccs")):
        _, _, method = row.first["tables"][row.table].partition(", ")
        points.setdefault(method, []).append(_own_point(row))
    order = list(METHODS.values())
    return dict(sorted(points.items(), key=lambda item: (order.index(item[0].split(",")[0]), item[0])))


def points_svg(points: Points, alt: str = ALT) -> str:
    """The figure as the text of an SVG file."""
    return standalone_svg(to_svg(draw(points)), alt)


@styled
def draw(points: Points) -> Figure:
    """Accuracy over cost, with standard deviations and a name for each point, and a line for each kind of our own."""
    own = "ours: " if PUBLISHED in points else ""
    figure, ((axes,),) = panels(1, 1, width=7.2, height=5)
    for index, (kind, found) in enumerate(points.items()):
        costs, means = [point.cost for point in found], [point.accuracy.mean for point in found]
        shade, label = (INK, kind) if kind == PUBLISHED else (colour(index), f"{own}{kind}")
        spreads = [point.accuracy.spread or 0 for point in found]
        axes.errorbar(costs, means, spreads, color=shade, fmt=marker(index), markersize=5, linewidth=1, label=label)
        if kind != PUBLISHED:
            axes.plot(costs, means, color=shade, linewidth=1, alpha=0.4)
    axes.set(xscale="log", xlabel="cost, G (two per multiply-add; log scale)", ylabel="accuracy on CIFAR-10, %")
    costs = [point.cost for found in points.values() for point in found]
    ticks = [tick for tick in _TICKS if 0.8 * min(costs) <= tick <= 1.2 * max(costs)]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.margins(y=0.08)
    axes.grid()
    axes.legend(loc="lower right", title="numbers: depth of our ResNets")
    named = [point for found in reversed(points.values()) for point in found]  # long names first
    xy = [(point.cost, point.accuracy.mean) for point in named]
    place_labels(axes, xy, [point.name for point in named], size_px=(650, 430))
    return figure
