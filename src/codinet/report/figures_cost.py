"""The figure of accuracy against cost: runs over published points, one panel a data set, units named."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from codinet.published import (
    CODINET,
    COMPARISON,
    EARLY,
    NAMES,
    OTHER,
    RESULTS,
    ROUTING,
    STATIC,
    TRADE_OFFS,
    VANILLA,
    Published,
    data_key,
)
from codinet.report.labels import place_labels
from codinet.report.style import INK, Axes, Figure, colour, marker, panels, styled

_TICKS = (0, 10, 20, 30, 40, 50, 60, 65, 70, 75, 80, 85, 90, 92, 94, 95, 96, 97, 98, 99, 99.5, 99.9)
_LOOKS: dict[str, dict[str, Any]] = {
    STATIC: {"marker": "s", "color": "#8a8a8a"},
    ROUTING: {"marker": "^", "color": "#2a9d78"},
    EARLY: {"marker": "v", "color": "#8f6bd1"},
    OTHER: {"marker": "D", "color": "#b59a1f"},
    VANILLA: {"marker": "x", "color": "#4db3d9"},
    CODINET: {"marker": "o", "color": "#3a7fc1"},
}


class CostPoint(NamedTuple):
    """A run's place in the picture."""

    name: str
    data: str
    accuracy: float  # percent
    macs: float  # one per multiply-add
    unit: int  # what the paper's column counts per multiply-add
    routed: bool


@styled
def accuracy_cost(runs: Sequence[CostPoint]) -> Figure:
    """A panel for each data set among the runs."""
    sets = list(dict.fromkeys(data_key(run.data) for run in runs))
    width, height = 6.8, 4.9
    figure, axes_D1 = panels(len(sets), 1, width=width, height=height)
    for data, [axes] in zip(sets, axes_D1, strict=True):
        mine = [run for run in runs if data_key(run.data) == data]
        _panel(axes, data, mine, (width * 90, height * 72))
    return figure


def _panel(axes: Axes, data: str, runs: Sequence[CostPoint], size_px: tuple[float, float]) -> None:
    unit = runs[0].unit
    published = _unique([row for row in (*COMPARISON, *RESULTS, *TRADE_OFFS) if row.data == data])
    _scale(axes, [run.accuracy for run in runs] + [row.accuracy for row in published])
    for kind, look in _LOOKS.items():
        rows = [row for row in published if row.kind == kind and row.gmaccs is not None]
        if not rows:
            continue
        axes.scatter(
            [row.gmaccs or 0 for row in rows],
            [row.accuracy for row in rows],
            s=24,
            linewidths=1,
            label=f"{kind}",
            **look,
        )
    static = sorted((row.gmaccs or 0, row.accuracy) for row in published if row.kind == STATIC)
    axes.plot(*zip(*static, strict=True) if static else ([], []), ":", color=INK, linewidth=0.8, zorder=0)
    mine = [(run.macs * unit / 1e9, run.accuracy) for run in runs]
    for place, (run, point) in enumerate(zip(runs, mine, strict=True)):
        shape = marker(place) if run.routed else "s"
        axes.scatter(
            *point,
            s=64,
            marker=shape,
            facecolor=colour(1) if run.routed else "none",
            edgecolor=colour(1),
            linewidth=1.6,
        )
    if any(not run.routed for run in runs):
        points = sorted(point for run, point in zip(runs, mine, strict=True) if not run.routed)
        axes.plot(*zip(*points, strict=True), "--", color=colour(1), linewidth=0.9, zorder=0)
        axes.scatter([], [], s=64, marker="s", facecolor="none", edgecolor=colour(1), label="your static nets")
    if any(run.routed for run in runs):
        axes.scatter([], [], s=64, color=colour(1), label="your routed runs")
    _cost_axis(axes, unit)
    axes.set(title=NAMES.get(data, runs[0].data), ylabel="accuracy, % (scale of the error's logarithm)")
    axes.grid()
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), fontsize=7.5, ncols=4, columnspacing=1.2)
    names = [f" {run.name} " for run in runs]  # spaces, because these points are larger
    names += [_label(row) for row in published]
    points = mine + [(row.gmaccs or 0, row.accuracy) for row in published]
    place_labels(axes, points, names, size_px=size_px)


def _label(row: Published) -> str:
    if row.method in (VANILLA, CODINET):
        return f"{row.method.removesuffix(' routing')}-{row.backbone.removeprefix('ResNet-')}"
    return row.setting or row.method


def _unique(rows: Sequence[Published]) -> list[Published]:
    """One row for each place in the picture: the tables repeat each other."""
    seen: dict[tuple[str, float | None, float], Published] = {}
    for row in rows:
        cost = 0.51 if row.gmaccs == 0.50 else row.gmaccs  # ResNet-110, printed both ways
        seen.setdefault((row.kind, cost, row.accuracy), row)
    return list(seen.values())


def _scale(axes: Axes, accuracies: Sequence[float]) -> None:
    """Equal steps for equal ratios of errors: 94 to 95 % counts as much as 88 to 90."""

    def forward(accuracy: Any) -> Any:
        return -np.log10(np.maximum(100.02 - np.asarray(accuracy, dtype=float), 0.01))

    def inverse(value: Any) -> Any:
        return 100.02 - 10.0 ** -np.asarray(value, dtype=float)

    low, high = forward(min(accuracies)), forward(max(accuracies))
    room = max(0.12 * (high - low), 0.03)
    axes.set_yscale("function", functions=(forward, inverse))
    bounds = float(inverse(low - room)), min(float(inverse(high + room)), 100.0)
    ticks = [tick for tick in _TICKS if bounds[0] <= tick <= bounds[1]]
    if bounds[1] - bounds[0] < 10:
        step = next(step for step in (0.1, 0.2, 0.5, 1.0, 2.0) if (bounds[1] - bounds[0]) / step < 8)
        ticks = np.round(np.arange(np.ceil(bounds[0] / step), bounds[1] / step) * step, 1).tolist()
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
    axes.set_yticks([], minor=True)
    axes.set_ylim(*bounds)


def _cost_axis(axes: Axes, unit: int) -> None:
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(low / 1.25, high * 1.6)
    one = "one per multiply-add: G MACs"
    axes.set_xlabel("cost, G in the paper's unit: two per multiply-add" if unit == 2 else f"cost, G, {one}")
    _plain_numbers(axes, axes.get_xlim())
    if unit == 2:
        top = axes.secondary_xaxis("top", functions=(_halved, _doubled))
        top.set_xlabel(f"cost, {one}")
        _plain_numbers(top, axes.get_xlim())


def _halved(cost: Any) -> Any:
    return cost / 2


def _doubled(macs: Any) -> Any:
    return macs * 2


def _plain_numbers(axes: Any, limits: tuple[float, float]) -> None:
    """Numbers written out: 1, 2 and 5 in every decade, or all of them where there is no whole decade."""
    named = "25" if limits[1] / limits[0] > 10 else "2345678"
    axes.xaxis.set_major_formatter(lambda value, _place: f"{value:g}")
    axes.xaxis.set_minor_formatter(lambda value, _place: f"{value:.2g}" if f"{value:.0e}"[0] in named else "")
