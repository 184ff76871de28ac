"""Figures of benchmarks and of the accuracy-cost curve. Needs matplotlib."""

from pathlib import Path
from typing import Any

from codinet.errors import UserError, first_line, one_line
from codinet.report.drawing import COLOURS, FAINT, INK, Figure, panels, styled


def write_speedups(rows: list[dict[str, Any]], out: Path, title: str) -> None:
    """Draw the speed-up of each routed engine, next to the one that its multiply-adds suggest.

    Args:
        rows: Rows of `codinet.bench.compare`.
        out: The image file to write.
        title: The first line of the title.
    """
    _save(_draw_speedups(rows, one_line(title)), out)


def write_curve(rows: list[dict[str, Any]], out: Path, title: str) -> None:
    """Draw accuracy against cost, one point per threshold.

    Args:
        rows: Each with `threshold`, `cost_share` and `accuracy`.
        out: The image file to write.
        title: The first line of the title.
    """
    _save(_draw_curve(rows, one_line(title)), out)


@styled
def _draw_speedups(rows: list[dict[str, Any]], title: str) -> Figure:
    routed = [row for row in rows if not row["engine"].startswith("static")]
    names = [f"{row['engine']}\nbatch {row['batch']}" for row in routed]
    figure, ((axes,),) = panels(1, 1, width=max(4.0, 1.3 * len(routed)), height=3.6)
    bars = axes.bar(names, [row["speedup"] for row in routed], color=COLOURS[0], width=0.6, label="measured")
    axes.bar_label(bars, [f"{row['realised']:.2f}" for row in routed], padding=2)
    for place, row in enumerate(routed):
        label = "by multiply-adds" if place == 0 else "_"  # a legend omits labels with an underscore
        axes.hlines(row["mac_speedup"], place - 0.38, place + 0.38, colors=COLOURS[1], label=label)
    axes.axhline(1, color=FAINT, linewidth=0.8, linestyle=":")
    axes.set_ylabel("speed-up over the static network")
    axes.set_title(f"{title}\n(on the bars: measured / by multiply-adds)")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


@styled
def _draw_curve(rows: list[dict[str, Any]], title: str) -> Figure:
    figure, ((axes,),) = panels(1, 1, width=5.2, height=3.6)
    costs, accuracies = [row["cost_share"] for row in rows], [row["accuracy"] for row in rows]
    axes.plot(costs, accuracies, marker="o", markersize=4, color=COLOURS[0])
    for row in rows:
        point = (row["cost_share"], row["accuracy"])
        label = f"{row['threshold']:g}"
        axes.annotate(label, point, xytext=(4, -9), textcoords="offset points", fontsize=7, color=INK)
    axes.set_xlabel("cost, as a share of the static network's multiply-adds")
    axes.set_ylabel("accuracy, %")
    axes.set_title(f"{title}\n(at each point: the threshold)")
    return figure


def _save(figure: Figure, out: Path) -> None:
    try:
        figure.savefig(out, dpi=160)
    except (OSError, ValueError) as error:
        raise UserError(f"Could not write {out}: {first_line(error)}; choose another --plot.") from error
