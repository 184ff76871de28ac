"""Figures of the course of training, from the rows of metrics.jsonl."""

from collections.abc import Mapping, Sequence
from typing import Any

from codinet.report.style import INK, Axes, Figure, colour, legend_columns, panels, styled, whole_numbers

_PANELS = (
    ("accuracy", "accuracy on watched images, %", "linear"),
    ("loss", "training loss", "log"),
    ("cost_share", "cost, share of the static network", "linear"),
    ("distinct_paths", "distinct paths", "log"),
)


@styled
def training(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Accuracy, loss, cost and distinct paths by epoch, one line per run; dotted in stage 2 (fixed routers)."""
    figure, axes_RC = panels(2, 2, width=3.4, height=2.2, sharex=True)
    for (key, title, scale), axes in zip(_PANELS, axes_RC.flat, strict=True):
        for place, rows in enumerate(runs.values()):
            _line(axes, rows, key, place)
        axes.set(title=title)
        axes.grid(axis="y")
        values = [row[key] for rows in runs.values() for row in rows if row.get(key) is not None]
        if scale == "log" and values and min(values) > 0:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _place: f"{value:g}")
            axes.yaxis.set_minor_formatter(lambda _value, _place: "")
    longest = max((len(rows) for rows in runs.values()), default=1)
    for axes in axes_RC[1]:
        axes.set_xlim(0.5, max(longest, 1) + 0.5)
        axes.set_xlabel("epoch")
        whole_numbers(axes)
    handles = [axes_RC[0][0].plot([], [], color=colour(place), label=name)[0] for place, name in enumerate(runs)]
    if any(row.get("stage") == "finetune" for rows in runs.values() for row in rows):
        handles.append(axes_RC[0][0].plot([], [], ":", color=INK, label="stage 2, routers fixed")[0])
    figure.legend(handles=handles, loc="outside upper center", ncols=legend_columns(runs))
    return figure


def _line(axes: Axes, rows: Sequence[Mapping[str, Any]], key: str, place: int) -> None:
    named = enumerate(rows, start=1)
    points = [(epoch, row[key], row.get("stage")) for epoch, row in named if row.get(key) is not None]
    first = next((i for i, point in enumerate(points) if point[2] == "finetune"), len(points))
    style: dict[str, Any] = {"color": colour(place), "marker": "." if len(points) < 25 else None, "markersize": 4}
    # The second line starts at the last point of the first, so that the curve has no gap.
    for part, dash in ((points[:first], "-"), (points[max(0, first - 1) :], ":")):
        if part and not (dash == ":" and first == len(points)):
            axes.plot([point[0] for point in part], [point[1] for point in part], dash, **style)
