"""The look of all figures, and their output as SVG and PNG. Does not know runs.

`styled` wraps a function that draws a figure; matplotlib's global state stays unchanged, and pyplot is never loaded.
Figures have no background. Text and axes use one grey, INK, which is readable on white and on near-black, so PNGs work
in light and dark pages; in SVGs it becomes the text colour of the page.
"""

import functools
import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any, ParamSpec

import numpy as np

from codinet import files
from codinet.errors import UserError

try:
    import matplotlib
except ImportError as missing:
    raise UserError("Figures need matplotlib; install it with pip install matplotlib.") from missing

from matplotlib.axes import Axes as Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.figure import Figure as Figure
from matplotlib.ticker import MaxNLocator

P = ParamSpec("P")
Box = tuple[float, float, float, float]  # left, bottom, right, top

DPI = 160  # of PNGs, and of rasterised points in SVGs
INK = "#767676"
FAINT = "#b0b0b0"
# Colours differ in lightness as well as hue, for colour-blind readers.
COLOURS = ("#3a7fc1", "#e07b27", "#2a9d78", "#c2549b", "#b59a1f", "#4db3d9", "#8f6bd1", "#c44e4e", "#7f8f4e", "#a8704a")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
RATES = matplotlib.colormaps["cividis"]
FEW_TO_MANY = LinearSegmentedColormap.from_list("few to many", ["#2f7fc1", "#9a9a9a", "#e07b27"])

_STYLE: dict[str, Any] = {
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
    "savefig.dpi": DPI,
    "figure.constrained_layout.use": True,
}
_SVG = {"svg.fonttype": "none", "svg.hashsalt": "codinet", "svg.image_inline": True}

# ---------------------------------------------------------------------------------------------------------------------
# Figures and axes


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Decorator: run a drawing function with the style of this module."""

    @functools.wraps(draw)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(_STYLE):  # type: ignore[arg-type]
            return draw(*args, **kwargs)

    return wrapper


def panels(rows: int, columns: int, *, width: float, height: float, **options: Any) -> tuple[Figure, np.ndarray]:
    """Create a figure with rows × columns axes.

    Args:
        rows: Rows of axes.
        columns: Columns of axes.
        width: Approximate width of one panel, in inches.
        height: Approximate height of one panel, in inches.
        options: For `Figure.subplots`.

    Returns:
        The figure, and its axes as an array of shape (rows, columns).
    """
    figure = Figure(figsize=(width * columns, height * rows))
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def colour(index: int) -> str:
    """The colour of a series: one of `COLOURS`, then darker and lighter ones, so that thirty series differ."""
    cycle, place = divmod(index, len(COLOURS))
    if cycle % 3 == 0:
        return COLOURS[place]
    target, amount = ((0.0, 0.35), (1.0, 0.45))[cycle % 3 - 1]
    red, green, blue = ((1 - amount) * part + amount * target for part in to_rgb(COLOURS[place]))
    return to_hex((red, green, blue))


def colours_of(names: Iterable[str], colours: Mapping[str, str] | None) -> dict[str, str]:
    """The colour of each name: the given one, or that of its position."""
    return {name: (colours or {}).get(name, colour(index)) for index, name in enumerate(names)}


def marker(index: int) -> str:
    """The marker of a series."""
    return MARKERS[index % len(MARKERS)]


def shorten(name: str, limit: int = 16) -> str:
    """Shorten a long name in its middle, because names of runs often start alike."""
    head = limit // 3
    return name if len(name) <= limit else f"{name[:head]}…{name[len(name) - (limit - 1 - head) :]}"


def legend_columns(names: Iterable[str], *, limit: int = 3) -> int:
    """How many columns of these names fit into the legend of a full-width figure."""
    longest = max(map(len, names), default=1)
    return max(1, min(limit, 90 // (longest + 6)))


def hide_ticks(axes: Axes) -> None:
    """Remove all ticks, for maps whose coordinates have no meaning."""
    axes.set(xticks=[], yticks=[])


def integer_ticks(axes: Axes) -> None:
    """Put the ticks of the horizontal axis at integers only."""
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))


def colour_bar(figure: Figure, mappable: Any, axes: Any, label: str) -> None:
    """Add a colour bar beside one or several axes."""
    bar = figure.colorbar(mappable, ax=axes, shrink=0.85, pad=0.02, aspect=25)
    bar.set_label(label)
    bar.outline.set_visible(False)


# ---------------------------------------------------------------------------------------------------------------------
# Labels beside points, without overlaps

_DISTANCES = (8.0, 16.0, 26.0, 38.0, 52.0, 68.0)  # in hundredths of an inch
_TURNS = [0, 8, 4, 12, 2, 6, 14, 10, 1, 7, 15, 9, 3, 5, 13, 11]  # sixteenths of a circle, preferred first


def place_labels(
    axes: Axes,
    xy: Sequence[tuple[float, float]],
    texts: Sequence[str],
    *,
    size_px: tuple[float, float],
    fontsize: float = 7.0,
) -> None:
    """Annotate points, each label at the free position nearest to its point.

    Args:
        axes: Axes whose limits and scales are final.
        xy: The points.
        texts: A label for each point.
        size_px: Approximate size of the axes at 100 dots per inch.
        fontsize: Font size of the labels, in points.
    """
    to_axes = axes.transData.transform(np.asarray(xy, dtype=float).reshape(-1, 2))
    points = axes.transAxes.inverted().transform(to_axes) * np.asarray(size_px)
    taken: list[Box] = [(x - 4, y - 4, x + 4, y + 4) for x, y in points]
    for (x, y), point, text in zip(points, xy, texts, strict=True):
        width, height = 0.62 * fontsize * 100 / 72 * len(text), 1.2 * fontsize * 100 / 72
        best: tuple[float, float, int] = (_DISTANCES[0], 0.0, 1)
        lowest = np.inf
        for distance in _DISTANCES:
            for turn in _TURNS if distance > 10 else _TURNS[:8]:
                dx, dy = distance * np.cos(turn * np.pi / 8), distance * np.sin(turn * np.pi / 8)
                side = 0 if turn in (4, 12) else 1 if dx > 0 else -1
                box = _label_box(x + dx, y + dy, width, height, side)
                outside = box[0] < 0 or box[1] < 0 or box[2] > size_px[0] or box[3] > size_px[1]
                penalty = sum(_overlap(box, other) for other in taken) + 2 * outside + distance / 1e4
                if penalty < lowest:
                    best, lowest = (dx, dy, side), penalty
        dx, dy, side = best
        taken.append(_label_box(x + dx, y + dy, width, height, side))
        far = np.hypot(dx, dy) > 12
        axes.annotate(
            text,
            point,
            xytext=(dx * 0.72, dy * 0.72),
            textcoords="offset points",
            ha={1: "left", -1: "right", 0: "center"}[side],
            va="center",
            fontsize=fontsize,
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": INK, "alpha": 0.6} if far else None,
        )


def _label_box(x: float, y: float, width: float, height: float, side: int) -> Box:
    left = x if side > 0 else x - width if side < 0 else x - width / 2
    return left, y - height / 2, left + width, y + height / 2


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


# ---------------------------------------------------------------------------------------------------------------------
# Output


def save_figure(figure: Figure, folder: Path, name: str, alt: str) -> str:
    """Write NAME.svg and NAME.png into a folder.

    Args:
        figure: The figure.
        folder: An existing folder.
        name: Name of the files, without a suffix.
        alt: Description of the figure, which becomes the title of the SVG.

    Returns:
        The SVG as matplotlib writes it, for `inline_svg`.
    """
    svg = to_svg(figure)
    files.write(folder / f"{name}.svg", standalone_svg(svg, alt).encode())
    files.write(folder / f"{name}.png", to_png(figure))
    return svg


def to_svg(figure: Figure) -> str:
    """The figure as SVG, without metadata: the same figure always gives the same text."""
    buffer = io.StringIO()
    with matplotlib.rc_context(_SVG), _ignore_missing_glyphs():  # type: ignore[arg-type]
        no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", dpi=DPI, metadata=no_metadata)
    figure.set_layout_engine("none")  # a PNG made after this has the same layout
    return buffer.getvalue()


def to_png(figure: Figure) -> bytes:
    """The figure as PNG."""
    buffer = io.BytesIO()
    with _ignore_missing_glyphs():
        figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def inline_svg(svg: str, name: str, alt: str) -> str:
    """Prepare an SVG for an HTML page.

    Args:
        svg: The result of `to_svg`.
        name: Prefix of all ids, so that they are unique on the page.
        alt: Description for screen readers.
    """
    svg = _strip(svg)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(xlink:href|href)="#', rf'\1="#{name}-', svg)
    svg = svg.replace("url(#", f"url(#{name}-")
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert size, "matplotlib writes a viewBox"
    width, height = map(float, size.groups())
    head = (
        f'<svg role="img" aria-label="{escape(alt)}" viewBox="0 0 {width:g} {height:g}" '
        f'style="--width: {width / 72:.2f}in" preserveAspectRatio="xMidYMid meet">'
    )
    return re.sub(r"<svg\b[^>]*>", lambda _: head, svg, count=1)


def standalone_svg(svg: str, alt: str) -> str:
    """Prepare an SVG for a file: a title, and a text colour that follows the reader's light or dark mode."""
    style = (
        f"<title>{escape(alt)}</title>"
        "<style>svg{color:#333}@media (prefers-color-scheme:dark){svg{color:#ddd}}"
        "text{font-family:system-ui,sans-serif!important}*{stroke-linejoin:round;stroke-linecap:butt}</style>"
    )
    return '<?xml version="1.0" encoding="utf-8"?>\n' + re.sub(
        r"<svg\b[^>]*>", lambda found: found.group() + style, _strip(svg), count=1
    )


def _strip(svg: str) -> str:
    """Remove the prolog, metadata and page-wide styles, and replace INK by the text colour."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style\b.*?</style>", "", svg, flags=re.DOTALL)
    return svg.replace(INK, "currentColor").rstrip() + "\n"


@contextmanager
def _ignore_missing_glyphs() -> Iterator[None]:
    """Silence matplotlib's warning about characters that its font lacks; names may contain any."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        yield
