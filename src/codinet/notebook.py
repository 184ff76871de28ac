"""Tables and path pictures for notebooks: plain values in, HTML out. Text of unknown origin is escaped.

A path picture has one column per block and one row per class or image. The darker a cell, the more often the block
runs. It is an inline SVG, so nothing else needs to be installed.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

MAX_ROWS = 10  # classes in a picture
MAX_IMAGES = 32
# The figures of an evaluation that tables show: title and format.
FIGURES = {
    "accuracy": ("accuracy", "{:.2f} %"),
    "top5_accuracy": ("top-5 accuracy", "{:.2f} %"),
    "cost_share": ("mean cost, of the static network", "{:.3f}"),
    "macs": ("mean multiply-adds per image", "{:,.0f}"),
    "mean_blocks": ("mean blocks run", "{:.1f}"),
    "distinct_paths": ("distinct paths", "{:,}"),
    "n": ("test images", "{:,}"),
}
_BLUE = "#3a7fc1"
_TEXT = "font-family:sans-serif;font-size:11px"
_LONGEST = 24  # characters of a row's name


class Row(NamedTuple):
    """A row of a path picture."""

    name: str
    rates: Sequence[float]  # how often each block runs, from 0 to 1


def html_table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """A table of names and values.

    Args:
        title: The caption.
        rows: Names and values, as plain text.

    Returns:
        HTML.
    """
    cells = "".join(
        f'<tr><th scope="row" style="text-align:left">{escape(name)}</th>'
        f'<td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in rows
    )
    return f'<table><caption style="text-align:left"><b>{escape(title)}</b></caption><tbody>{cells}</tbody></table>'


def figure_rows(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The figures of an evaluation as rows of a table; those that are missing are left out."""
    return [(title, text.format(figures[name])) for name, (title, text) in FIGURES.items() if name in figures]


def path_picture(title: str, rows: Sequence[Row], *, unit: str) -> str:
    """Which blocks run, as a picture.

    Args:
        title: The caption, also for screen readers.
        rows: The rows, all of the same length.
        unit: What a rate counts, such as "of images"; shown when the pointer is on a cell.

    Returns:
        HTML; an empty text if there are no rows or no blocks.
    """
    blocks = len(rows[0].rates) if rows else 0
    if not blocks:
        return ""
    cell = 12 if blocks <= 60 else 6
    names = [_shortened(row.name) for row in rows]
    left = 8 + 6 * max(map(len, names))
    width, height = left + cell * blocks + 4, 16 * len(rows) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(title)}"'
        f' viewBox="0 0 {width} {height}" style="width:{width}px;max-width:100%;{_TEXT}">'
    ]
    for index, row in enumerate(rows):
        top = 16 * index
        parts.append(f'<text x="0" y="{top + 11}" fill="currentColor">{escape(names[index])}</text>')
        parts.append(f'<g fill="{_BLUE}" stroke="currentColor" stroke-opacity=".25">')
        for block, rate in enumerate(row.rates):
            said = f"block {block + 1}: {100 * rate:.0f} % {unit}"
            parts.append(
                f'<rect x="{left + cell * block}" y="{top}" width="{cell - 1}" height="14" fill-opacity="{rate:.2g}">'
                f"<title>{escape(f'{row.name}, {said}')}</title></rect>"
            )
        parts.append("</g>")
    for block in range(blocks):
        if block == 0 or (block + 1) % 10 == 0:
            x, y = left + cell * block, height - 6
            parts.append(f'<text x="{x}" y="{y}" fill="currentColor">{block + 1}</text>')
    return f'<figure style="margin:0"><figcaption>{escape(title)}</figcaption>{"".join(parts)}</svg></figure>'


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def class_picture(paths: Sequence[Sequence[float]], labels: Sequence[int], classes: Sequence[str] | None) -> str:
    """How often each block runs, for all images and for each class.

    Args:
        paths: For each class with images, in the order of `labels`, and first for all images: how often blocks run.
        labels: The numbers of these classes.
        classes: The names of all classes; None if unknown.

    Returns:
        HTML. Of more than ten classes, those that run the fewest and the most blocks are shown.
    """
    names = [str(label) if classes is None else classes[label] for label in labels]
    rows = sorted(
        (Row(name, rates) for name, rates in zip(names, paths[1:], strict=True)), key=lambda row: sum(row.rates)
    )
    note = ""
    if len(rows) > MAX_ROWS:
        half = MAX_ROWS // 2
        note = f" (the {half} classes that run the fewest blocks and the {half} that run the most)"
        rows = [*rows[:half], *rows[-half:]]
    title = f"How often each block runs, by class{note}. Columns are blocks; darker means more images."
    return path_picture(title, [Row("all images", paths[0]), *rows], unit="of images")
