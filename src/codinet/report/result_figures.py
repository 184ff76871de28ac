"""Figures of results: accuracy against cost, and training curves.

Each `draw_…` takes plain data and returns a figure; the function after it adds description and caption for a report.
"""

from collections.abc import Mapping, Sequence
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
from codinet.report.drawing import (
    INK,
    Axes,
    Figure,
    colour,
    integer_ticks,
    legend_columns,
    marker,
    panels,
    place_labels,
    styled,
)
from codinet.report.page import ReportFigure
from codinet.report.run_data import Run

_TICKS = (0, 10, 20, 30, 40, 50, 60, 65, 70, 75, 80, 85, 90, 92, 94, 95, 96, 97, 98, 99, 99.5, 99.9)
_PUBLISHED_STYLES: dict[str, dict[str, Any]] = {
    STATIC: {"marker": "s", "color": "#8a8a8a"},
    ROUTING: {"marker": "^", "color": "#2a9d78"},
    EARLY: {"marker": "v", "color": "#8f6bd1"},
    OTHER: {"marker": "D", "color": "#b59a1f"},
    VANILLA: {"marker": "x", "color": "#4db3d9"},
    CODINET: {"marker": "o", "color": "#3a7fc1"},
}


class CostPoint(NamedTuple):
    """Accuracy and cost of a run."""

    name: str
    data: str
    accuracy: float  # percent
    macs: float  # one per multiply-add
    unit: int  # operations per multiply-add in the paper's tables
    routed: bool


@styled
def draw_accuracy_cost(runs: Sequence[CostPoint]) -> Figure:
    """Runs and published results, one panel per data set."""
    sets = list(dict.fromkeys(data_key(run.data) for run in runs))
    width, height = 6.8, 4.9
    figure, axes_D1 = panels(len(sets), 1, width=width, height=height)
    for data, [axes] in zip(sets, axes_D1, strict=True):
        _cost_panel(axes, data, [run for run in runs if data_key(run.data) == data], (width * 90, height * 72))
    return figure


def accuracy_cost(runs: Sequence[Run]) -> ReportFigure:
    points = [
        CostPoint(
            run.name, run.folder.data.name, run.evaluation["accuracy"], run.evaluation["macs"], run.unit, run.routed
        )
        for run in runs
    ]
    values = "; ".join(f"{p.name} {p.accuracy:.2f} % at {p.macs / 1e6:.4g} M MACs" for p in points)
    return ReportFigure(
        "accuracy-cost",
        draw_accuracy_cost(points),
        f"Accuracy against cost on a logarithmic cost axis, with published results where available. Runs: {values}.",
        "Accuracy against cost, one panel per data set. Orange: these runs, routed (filled) or static (open). The "
        "dashed line connects static networks: a routed run above it beats a static network of the same cost. "
        "Published results are at the cost that their table prints; γ is the paper's trade-off of CoDiNet-110, and the "
        "dotted line connects its ResNets.",
    )


def _cost_panel(axes: Axes, data: str, runs: Sequence[CostPoint], size_px: tuple[float, float]) -> None:
    unit = runs[0].unit
    published = _unique([row for row in (*COMPARISON, *RESULTS, *TRADE_OFFS) if row.data == data])
    _accuracy_axis(axes, [run.accuracy for run in runs] + [row.accuracy for row in published])
    for kind, style in _PUBLISHED_STYLES.items():
        rows = [row for row in published if row.kind == kind and row.gmaccs is not None]
        if rows:
            costs = [row.gmaccs or 0 for row in rows]
            axes.scatter(costs, [row.accuracy for row in rows], s=24, linewidths=1, label=f"{kind}", **style)
    static = sorted((row.gmaccs or 0, row.accuracy) for row in published if row.kind == STATIC)
    axes.plot(*zip(*static, strict=True) if static else ([], []), ":", color=INK, linewidth=0.8, zorder=0)
    own = [(run.macs * unit / 1e9, run.accuracy) for run in runs]
    for index, (run, point) in enumerate(zip(runs, own, strict=True)):
        axes.scatter(
            *point,
            s=64,
            marker=marker(index) if run.routed else "s",
            facecolor=colour(1) if run.routed else "none",
            edgecolor=colour(1),
            linewidth=1.6,
        )
    if any(not run.routed for run in runs):
        points = sorted(point for run, point in zip(runs, own, strict=True) if not run.routed)
        axes.plot(*zip(*points, strict=True), "--", color=colour(1), linewidth=0.9, zorder=0)
        axes.scatter([], [], s=64, marker="s", facecolor="none", edgecolor=colour(1), label="your static networks")
    if any(run.routed for run in runs):
        axes.scatter([], [], s=64, color=colour(1), label="your routed runs")
    _cost_axis(axes, unit)
    axes.set(title=NAMES.get(data, runs[0].data), ylabel="accuracy, % (logarithmic error scale)")
    axes.grid()
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), fontsize=7.5, ncols=4, columnspacing=1.2)
    names = [f" {run.name} " for run in runs] + [_label(row) for row in published]  # spaces: these points are larger
    points = own + [(row.gmaccs or 0, row.accuracy) for row in published]
    place_labels(axes, points, names, size_px=size_px)


def _label(row: Published) -> str:
    if row.method in (VANILLA, CODINET):
        return f"{row.method.removesuffix(' routing')}-{row.backbone.removeprefix('ResNet-')}"
    return row.setting or row.method


def _unique(rows: Sequence[Published]) -> list[Published]:
    """Remove results that several tables repeat."""
    seen: dict[tuple[str, float | None, float], Published] = {}
    for row in rows:
        cost = 0.51 if row.gmaccs == 0.50 else row.gmaccs  # ResNet-110 is printed both ways
        seen.setdefault((row.kind, cost, row.accuracy), row)
    return list(seen.values())


def _accuracy_axis(axes: Axes, accuracies: Sequence[float]) -> None:
    """Scale the vertical axis by the logarithm of the error: 94 to 95 % is as far as 88 to 90."""

    def forward(accuracy: Any) -> Any:
        return -np.log10(np.maximum(100.02 - np.asarray(accuracy, dtype=float), 0.01))

    def inverse(value: Any) -> Any:
        return 100.02 - 10.0 ** -np.asarray(value, dtype=float)

    low, high = forward(min(accuracies)), forward(max(accuracies))
    margin = max(0.12 * (high - low), 0.03)
    axes.set_yscale("function", functions=(forward, inverse))
    bounds = float(inverse(low - margin)), min(float(inverse(high + margin)), 100.0)
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
        top = axes.secondary_xaxis(
            "top", functions=(lambda cost: np.divide(cost, 2), lambda macs: np.multiply(macs, 2))
        )
        top.set_xlabel(f"cost, {one}")
        _plain_numbers(top, axes.get_xlim())


def _plain_numbers(axes: Any, limits: tuple[float, float]) -> None:
    """Label the ticks 1, 2 and 5 of each decade, or all ticks if the axis spans less than a decade."""
    digits = "25" if limits[1] / limits[0] > 10 else "2345678"
    axes.xaxis.set_major_formatter(lambda value, _index: f"{value:g}")
    axes.xaxis.set_minor_formatter(lambda value, _index: f"{value:.2g}" if f"{value:.0e}"[0] in digits else "")


_TRAINING_PANELS = (
    ("accuracy", "accuracy, %", "linear"),
    ("loss", "training loss", "log"),
    ("cost_share", "cost, share of the static network", "linear"),
    ("distinct_paths", "distinct paths", "log"),
)


@styled
def draw_training(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Accuracy, loss, cost and distinct paths by epoch: a line per run, dotted in stage 2.

    Args:
        runs: The rows of metrics.jsonl of each run; missing values are left out.
    """
    figure, axes_RC = panels(2, 2, width=3.4, height=2.2, sharex=True)
    for (key, title, scale), axes in zip(_TRAINING_PANELS, axes_RC.flat, strict=True):
        for index, rows in enumerate(runs.values()):
            _training_line(axes, rows, key, index)
        axes.set(title=title)
        axes.grid(axis="y")
        values = [row[key] for rows in runs.values() for row in rows if row.get(key) is not None]
        if scale == "log" and values and min(values) > 0:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _index: f"{value:g}")
            axes.yaxis.set_minor_formatter(lambda _value, _index: "")
    longest = max((len(rows) for rows in runs.values()), default=1)
    for axes in axes_RC[1]:
        axes.set_xlim(0.5, max(longest, 1) + 0.5)
        axes.set_xlabel("epoch")
        integer_ticks(axes)
    handles = [axes_RC[0][0].plot([], [], color=colour(index), label=name)[0] for index, name in enumerate(runs)]
    if any(row.get("stage") == "finetune" for rows in runs.values() for row in rows):
        handles.append(axes_RC[0][0].plot([], [], ":", color=INK, label="stage 2, routers fixed")[0])
    figure.legend(handles=handles, loc="outside upper center", ncols=legend_columns(runs))
    return figure


def training(runs: Sequence[Run]) -> ReportFigure:
    ends = {run.name: run.metrics[-1].get("accuracy") for run in runs if run.metrics}
    last = "; ".join(f"{name} {accuracy:.2f} %" for name, accuracy in ends.items() if accuracy is not None)
    return ReportFigure(
        "training",
        draw_training({run.name: run.metrics for run in runs}),
        f"Four panels by epoch: accuracy, loss, cost, distinct paths. Last accuracy: {last}.",
        "Training curves. Dotted: stage 2, with fixed routers and hard decisions.",
    )


def _training_line(axes: Axes, rows: Sequence[Mapping[str, Any]], key: str, index: int) -> None:
    points = [(epoch, row[key], row.get("stage")) for epoch, row in enumerate(rows, 1) if row.get(key) is not None]
    first = next((i for i, point in enumerate(points) if point[2] == "finetune"), len(points))
    style: dict[str, Any] = {"color": colour(index), "marker": "." if len(points) < 25 else None, "markersize": 4}
    # The dotted line starts at the last point of the solid one, so that the curve has no gap.
    for part, dash in ((points[:first], "-"), (points[max(0, first - 1) :], ":")):
        if part and not (dash == ":" and first == len(points)):
            axes.plot([point[0] for point in part], [point[1] for point in part], dash, **style)
