"""The picture of accuracy against cost: one set of weights at many thresholds. Needs matplotlib."""

from pathlib import Path
from typing import Any

from codinet.bench.picture import new_figure, save
from codinet.errors import one_line


def draw_curve(rows: list[dict[str, Any]], out: Path, title: str) -> None:
    """A point for each threshold, labelled with it."""
    figure, axes = new_figure(5.2)
    shares, accuracies = [row["cost_share"] for row in rows], [row["accuracy"] for row in rows]
    axes.plot(shares, accuracies, marker="o", markersize=4, color="#2f6f9f")
    for row in rows:
        place = (row["cost_share"], row["accuracy"])
        axes.annotate(f"{row['threshold']:g}", place, xytext=(4, -9), textcoords="offset points", fontsize=7)
    axes.set_xlabel("share of the static network's multiply-adds")
    axes.set_ylabel("accuracy, %")
    axes.set_title(f"{one_line(title)}\n(at each point: the run threshold)", fontsize=9, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, out)
