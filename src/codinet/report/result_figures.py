"""Figures of results: accuracy against cost, and training curves.

Each `draw_…` takes plain data and returns a figure; the function after it adds description and caption for a report.
"""

from collections.abc import Iterable, Mapping, Sequence
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
    UNITS,
    VANILLA,
    Published,
    data_key,
)
from codinet.report.drawing import (
    INK,
    Axes,
    Figure,
    colour,
    colours_of,
    integer_ticks,
    legend_columns,
    marker,
    panels,
    place_labels,
    styled,
)
from codinet.report.page import ReportFigure
from codinet.report.run_data import Run, run_colours

_TICKS = (0, 10, 20, 30, 40, 50, 60, 65, 70, 75, 80, 85, 90, 92, 94, 95, 96, 97, 98, 99, 99.5, 99.9, 100)
# Published results are grey, because colours stand for runs.
_PUBLISHED_COLOUR = "#8a8a8a"
_PUBLISHED_MARKERS = {STATIC: "s", ROUTING: "^", EARLY: "v", OTHER: "D", VANILLA: "x", CODINET: "o"}


class CostPoint(NamedTuple):
    """Accuracy and cost of a run."""

    name: str
    data: str
    accuracy: float  # percent
    macs: float  # one per multiply-add
    routed: bool
    position: int = 0  # in the report, which decides colour and marker


@styled
def draw_accuracy_cost(runs: Sequence[CostPoint]) -> Figure:
    """Runs and published results, one panel per data set.

    The cost is in the paper's unit on the paper's data sets, and in MACs on others.
    """
    sets = {
        data: [run for run in runs if data_key(run.data) == data]
        for data in dict.fromkeys(data_key(run.data) for run in runs)
    }
    width, height = 6.8, 4.9 + 0.16 * (max(len(points) for points in sets.values()) // 4)
    figure, axes_D1 = panels(len(sets), 1, width=width, height=height)
    for (data, points), [axes] in zip(sets.items(), axes_D1, strict=True):
        _cost_panel(axes, data, points, (width * 90, height * 72))
    return figure


def accuracy_cost(runs: Sequence[Run]) -> ReportFigure:
    points = [
        CostPoint(run.name, run.folder.data.name, values["accuracy"], values["macs"], run.routed, run.position)
        for run in runs
        for values in [run.evaluation]
    ]
    values = "; ".join(f"{p.name} {p.accuracy:.2f} % at {p.macs / 1e6:.4g} M MACs" for p in points)
    keys = [data_key(point.data) for point in points]
    published = any(_published(key) for key in keys)
    return ReportFigure(
        "accuracy-cost",
        draw_accuracy_cost(points),
        f"Accuracy against cost on a logarithmic cost axis{', with published results' if published else ''}. "
        f"Runs: {values}.",
        _cost_caption(points),
    )


def _cost_caption(points: Sequence[CostPoint]) -> str:
    """Describes what is drawn for these runs."""
    keys = list(dict.fromkeys(data_key(point.data) for point in points))
    sentences = ["Accuracy against cost" + (", one panel per data set." if len(keys) > 1 else ".")]
    routed, static = any(point.routed for point in points), any(not point.routed for point in points)
    kinds = ["filled symbols are routed runs"] * routed + ["open symbols are static networks"] * static
    text = " and ".join(kinds) + ("; each run has its colour in all figures." if len(points) > 1 else ".")
    sentences.append(text[0].upper() + text[1:])
    if any(_static_line([point for point in points if data_key(point.data) == key]) for key in keys):
        sentences.append(
            "The dashed line connects the static networks: a routed run above it beats a static network of equal cost."
        )
    published = [row for key in keys for row in _published(key)]
    if published:
        sentences.append("Grey: published results, at the cost that their table prints.")
    if any(row.setting for row in published):
        sentences.append("γ marks the paper's trade-off of CoDiNet-110.")
    if any(len(_published_static(_published(key))) > 1 for key in keys):
        sentences.append("The dotted line connects the published static ResNets.")
    return " ".join(sentences)


def _cost_panel(axes: Axes, data: str, runs: Sequence[CostPoint], size_px: tuple[float, float]) -> None:
    unit, published = UNITS.get(data), _published(data)
    # Runs on other data are in millions of MACs, published results in the paper's billions.
    scale = 1e6 if unit is None else 1e9 / unit
    _accuracy_axis(axes, [run.accuracy for run in runs] + [row.accuracy for row in published])
    own = [(run.macs / scale, run.accuracy) for run in runs]
    for run, point in zip(runs, own, strict=True):
        axes.scatter(
            *point,
            s=64,
            marker=marker(run.position),
            facecolor=colour(run.position) if run.routed else "none",
            edgecolor=colour(run.position),
            linewidth=1.6,
            label=run.name,
        )
    line = _static_line(runs)
    if line:
        costs, accuracies = [macs / scale for macs, _ in line], [accuracy for _, accuracy in line]
        axes.plot(costs, accuracies, "--", color=INK, linewidth=0.9, zorder=0, label="these static networks")
    for kind, shape in _PUBLISHED_MARKERS.items():
        rows = [row for row in published if row.kind == kind]
        if rows:
            costs = [row.gmaccs or 0 for row in rows]
            accuracies = [row.accuracy for row in rows]
            style: dict[str, Any] = {"s": 24, "linewidths": 1, "marker": shape, "color": _PUBLISHED_COLOUR}
            axes.scatter(costs, accuracies, zorder=1.5, label=f"published: {kind}", **style)
    static = _published_static(published)
    if len(static) > 1:
        axes.plot(*zip(*static, strict=True), ":", color=INK, linewidth=0.8, zorder=0)
    _cost_axis(axes, unit)
    axes.set(title=NAMES.get(data, runs[0].data), ylabel="accuracy, % (logarithmic error scale)")
    axes.grid()
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), fontsize=7.5, ncols=4, columnspacing=1.2)
    names = [f" {run.name} " for run in runs] + [_label(row) for row in published]  # spaces: these points are larger
    points = own + [(row.gmaccs or 0, row.accuracy) for row in published]
    place_labels(axes, points, names, size_px=size_px)


def _static_line(runs: Sequence[CostPoint]) -> list[tuple[float, float]]:
    """MACs and accuracy of the static runs of a data set, by cost; empty unless they have two costs."""
    line = sorted((run.macs, run.accuracy) for run in runs if not run.routed)
    return line if len({macs for macs, _ in line}) > 1 else []


def _published(data: str) -> list[Published]:
    rows = [row for row in (*COMPARISON, *RESULTS, *TRADE_OFFS) if row.data == data]
    return [row for row in _unique(rows) if row.gmaccs is not None]


def _published_static(rows: Sequence[Published]) -> list[tuple[float, float]]:
    return sorted((row.gmaccs or 0, row.accuracy) for row in rows if row.kind == STATIC)


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
        return -np.log10(np.maximum(100.1 - np.asarray(accuracy, dtype=float), 0.01))

    def inverse(value: Any) -> Any:
        return 100.1 - 10.0 ** -np.asarray(value, dtype=float)

    low, high = forward(min(accuracies)), forward(max(accuracies))
    margin = max(0.12 * (high - low), 0.03)
    axes.set_yscale("function", functions=(forward, inverse))
    bounds = float(inverse(low - margin)), float(inverse(high + margin))  # above 100 % if a point is there
    ticks = [tick for tick in _TICKS if bounds[0] <= tick <= bounds[1]]
    if bounds[1] - bounds[0] < 10 and (bounds[1] < 99 or len(ticks) < 3):
        step = next(step for step in (0.1, 0.2, 0.5, 1.0, 2.0) if (bounds[1] - bounds[0]) / step < 8)
        steps = np.round(np.arange(np.ceil(bounds[0] / step), bounds[1] / step) * step, 1).tolist()
        ticks = [tick for tick in steps if tick <= 100]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
    axes.set_yticks([], minor=True)
    axes.set_ylim(*bounds)


def _cost_axis(axes: Axes, unit: int | None) -> None:
    """Label the cost in the paper's unit (1 or 2 per multiply-add), or without one in millions of MACs."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(low / 1.25, high * 1.6)
    labels = {
        None: "cost, M MACs (one per multiply-add)",
        1: "cost, G MACs (one per multiply-add)",
        2: "cost, G in the paper's unit (two per multiply-add)",
    }
    axes.set_xlabel(labels[unit])
    _plain_numbers(axes, axes.get_xlim())
    if unit == 2:
        top = axes.secondary_xaxis(
            "top", functions=(lambda cost: np.divide(cost, 2), lambda macs: np.multiply(macs, 2))
        )
        top.set_xlabel(labels[1])
        _plain_numbers(top, axes.get_xlim())


def _plain_numbers(axes: Any, limits: tuple[float, float]) -> None:
    """Label the ticks 1, 2 and 5 of each decade, or more if the axis spans less than a decade."""
    ratio = limits[1] / limits[0]
    digits = "25" if ratio > 10 else "2345678" if ratio > 3 else "123456789"
    axes.xaxis.set_major_formatter(lambda value, _index: f"{value:g}")
    axes.xaxis.set_minor_formatter(lambda value, _index: f"{value:.2g}" if f"{value:.0e}"[0] in digits else "")


_TRAINING_PANELS = (
    ("accuracy", "accuracy, %", "linear"),
    ("loss", "training loss", "log"),
    ("cost_share", "cost, share of the static network", "linear"),
    ("distinct_paths", "distinct paths", "log"),
)


@styled
def draw_training(runs: Mapping[str, Sequence[Mapping[str, Any]]], colours: Mapping[str, str] | None = None) -> Figure:
    """Accuracy, loss, cost and distinct paths by epoch: a line per run, dotted in stage 2.

    Args:
        runs: The rows of metrics.jsonl of each run; missing values are left out.
        colours: The colour of each run. Default: by position.
    """
    colours = colours_of(runs, colours)
    figure, axes_RC = panels(2, 2, width=3.4, height=2.2, sharex=True)
    for (key, title, scale), axes in zip(_TRAINING_PANELS, axes_RC.flat, strict=True):
        for name, rows in runs.items():
            _training_line(axes, rows, key, colours[name])
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
    handles = [
        axes_RC[0][0].plot([], [], label=name, **_line_style(colours[name], len(rows)))[0]
        for name, rows in runs.items()
        if rows
    ]
    if _has_stage_2(runs.values()):
        handles.append(axes_RC[0][0].plot([], [], ":", color=INK, label="stage 2, routers fixed")[0])
    figure.legend(handles=handles, loc="outside upper center", ncols=legend_columns(runs))
    return figure


def training(runs: Sequence[Run]) -> ReportFigure:
    ends = {run.name: run.metrics[-1].get("accuracy") for run in runs if run.metrics}
    last = "; ".join(f"{name} {accuracy:.2f} %" for name, accuracy in ends.items() if accuracy is not None)
    return ReportFigure(
        "training",
        draw_training({run.name: run.metrics for run in runs}, run_colours(runs)),
        f"Four panels by epoch: accuracy, loss, cost, distinct paths. Last accuracy: {last or 'unknown'}.",
        _training_caption(runs),
    )


def _training_caption(runs: Sequence[Run]) -> str:
    missing = [run.name for run in runs if not run.metrics]
    if len(missing) == len(runs):
        return "Training curves: these runs have no metrics."
    text = "Training curves."
    if _has_stage_2(run.metrics for run in runs):
        text += " Dotted: stage 2, with fixed routers and hard decisions."
    return text + (f" Without metrics: {', '.join(missing)}." if missing else "")


def _has_stage_2(runs: Iterable[Sequence[Mapping[str, Any]]]) -> bool:
    return any(row.get("stage") == "finetune" for rows in runs for row in rows)


def _line_style(shade: str, epochs: int) -> dict[str, Any]:
    return {"color": shade, "marker": "." if epochs < 25 else None, "markersize": 4}


def _training_line(axes: Axes, rows: Sequence[Mapping[str, Any]], key: str, shade: str) -> None:
    points = [(epoch, row[key], row.get("stage")) for epoch, row in enumerate(rows, 1) if row.get(key) is not None]
    first = next((i for i, point in enumerate(points) if point[2] == "finetune"), len(points))
    style = _line_style(shade, len(rows))
    # The dotted line starts at the last point of the solid one, so that the curve has no gap.
    for part, dash in ((points[:first], "-"), (points[max(0, first - 1) :], ":")):
        if part and not (dash == ":" and first == len(points)):
            axes.plot([point[0] for point in part], [point[1] for point in part], dash, **style)
