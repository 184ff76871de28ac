"""The picture of a bench: the speed-up of each engine, next to what its multiply-adds promise. Needs matplotlib."""

from pathlib import Path
from typing import Any

from codinet.errors import UserError, first_line, one_line

try:
    from matplotlib.figure import Figure
except ImportError as missing:
    raise UserError("Figures need matplotlib; install it with pip install 'codinet[plot]'.") from missing


def draw(rows: list[dict[str, Any]], out: Path, title: str) -> None:
    """Bars of the routed engines, one per row; a line at what its multiply-adds promise."""
    shown = [row for row in rows if not row["engine"].startswith("static")]
    names = [f"{row['engine']}\nbatch {row['batch']}" for row in shown]
    figure, axes = new_figure(max(4.0, 1.3 * len(shown)))
    bars = axes.bar(names, [row["speedup"] for row in shown], color="#2f6f9f", width=0.6, label="measured")
    axes.bar_label(bars, [f"{row['realised']:.2f}" for row in shown], padding=2, fontsize=8)
    for place, row in enumerate(shown):
        label = "promised by multiply-adds" if place == 0 else "_"  # a legend omits labels with an underscore
        axes.hlines(row["mac_speedup"], place - 0.38, place + 0.38, colors="#c8553d", label=label)
    axes.axhline(1, color="0.6", linewidth=0.8, linestyle=":")
    axes.set_ylabel("speed-up over the static net")
    axes.set_title(f"{one_line(title)}\n(on the bars: realised share)", fontsize=9, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    save(figure, out)


def new_figure(width: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, 3.6), layout="constrained")
    return figure, figure.subplots()


def save(figure: Figure, out: Path) -> None:
    try:
        figure.savefig(out, dpi=150)
    except (OSError, ValueError) as error:
        raise UserError(f"Could not write {out}: {first_line(error)}; choose another --plot.") from error
