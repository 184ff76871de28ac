"""The look of every figure: one ink, mid-tones that are readable on white and on near-black, no background.

`styled` wraps a function that draws; the global state of matplotlib does not change, and pyplot is never loaded. The
ink is a grey with the same contrast on both backgrounds, so a PNG works anywhere; on the page it becomes the colour of
the text (`codinet.report.svg`). Does not know runs.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec

import numpy as np

from codinet.errors import UserError

try:
    import matplotlib
except ImportError as missing:
    raise UserError("Figures need matplotlib; install it with pip install 'codinet[plot]'.") from missing

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

P = ParamSpec("P")

INK = "#767676"
FAINT = "#b0b0b0"
# Told apart by lightness as well as hue, for readers who do not see red and green as different.
COLOURS = ("#3a7fc1", "#e07b27", "#2a9d78", "#c2549b", "#b59a1f", "#4db3d9", "#8f6bd1", "#c44e4e", "#7f8f4e", "#8a8a8a")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
RATES = matplotlib.colormaps["cividis"]
FEW_TO_MANY = LinearSegmentedColormap.from_list("few to many", ["#2f7fc1", "#9a9a9a", "#e07b27"])

_LOOK: dict[str, Any] = {
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.facecolor": "none",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.labelsize": 8.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "text.color": INK,
    "text.parse_math": False,  # names may contain dollar signs
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "font.size": 8.5,
    "font.family": "sans-serif",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.4,
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "figure.constrained_layout.use": True,
}


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """`draw` with this look in force while it runs."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(_LOOK):  # type: ignore[arg-type]
            return draw(*args, **kwargs)

    return drawn


def panels(rows: int, columns: int, *, width: float, height: float, **options: Any) -> tuple[Figure, np.ndarray]:
    """A figure of rows × columns axes, each of about that size in inches."""
    figure = Figure(figsize=(width * columns, height * rows))
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def marker(place: int) -> str:
    return MARKERS[place % len(MARKERS)]


def shorten(name: str, most: int = 16) -> str:
    """Names of runs often begin alike, so it is the middle that goes."""
    head = most // 3
    return name if len(name) <= most else f"{name[:head]}…{name[len(name) - (most - 1 - head) :]}"


def legend_columns(names: Iterable[str], *, most: int = 3) -> int:
    """How many columns of these names fit a figure of full width."""
    longest = max(map(len, names), default=1)
    return max(1, min(most, 90 // (longest + 6)))


def bare(axes: Axes) -> None:
    """No ticks: for maps whose coordinates mean nothing by themselves."""
    axes.set(xticks=[], yticks=[])


def whole_numbers(axes: Axes) -> None:
    """Ticks of the horizontal axis at integers only."""
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))


def colour_bar(figure: Figure, drawn: Any, axes: Any, label: str) -> None:
    bar = figure.colorbar(drawn, ax=axes, shrink=0.85, pad=0.02, aspect=25)
    bar.set_label(label)
    bar.outline.set_visible(False)


__all__ = [
    "COLOURS",
    "FAINT",
    "FEW_TO_MANY",
    "INK",
    "MARKERS",
    "RATES",
    "Axes",
    "Figure",
    "bare",
    "colour",
    "colour_bar",
    "legend_columns",
    "marker",
    "panels",
    "shorten",
    "styled",
    "whole_numbers",
]
