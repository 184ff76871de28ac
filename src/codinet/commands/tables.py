"""Tables in a terminal that never break a word or a number, however narrow the terminal is."""

import re
import shutil
import sys
import textwrap
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from codinet.errors import one_line

_UNLIMITED = 1_000_000  # columns


class _Console(Console):
    """Leaves it to the command line what happens when the reader of stdout has gone."""

    def on_broken_pipe(self) -> None:
        raise


def print_table(title: str, headings: list[str], rows: list[list[str]]) -> None:
    """Print a table that breaks no word; where the terminal is too narrow for it, a block of lines for each row.

    Control characters, which names may contain, are escaped.
    """
    rows = [[one_line(cell) for cell in row] for row in rows]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else _UNLIMITED
    # No markup, because names may contain brackets and colons. rich would break words to keep to its width, so it gets
    # an unlimited one (a dumb terminal ignores the width unless there is a height).
    console = _Console(width=_UNLIMITED, height=25, highlight=False, markup=False, emoji=False)
    if title:
        console.print(Text("\n".join(_lines(one_line(title), room)), style="table.title"))
    for table in _tables(headings, rows):
        if console.measure(table).maximum <= room:
            console.print(table)
            return
    for line in _blocks(headings, rows, room):
        console.print(Text(line))


def _tables(headings: list[str], rows: list[list[str]]) -> Iterator[Table]:
    """From wide to narrow: as it is, with headings broken, with sentences broken too."""
    yield _table(headings, rows)
    for width in (_UNLIMITED, *range(64, 16, -4)):
        narrow = [["\n".join(_lines(cell, width)) if _is_sentence(cell) else cell for cell in row] for row in rows]
        longest = [max(map(_across, column)) for column in zip(*narrow, strict=True)] or [1] * len(headings)
        yield _table(
            ["\n".join(_lines(heading, most)) for heading, most in zip(headings, longest, strict=True)], narrow
        )


def _table(headings: list[str], rows: list[list[str]]) -> Table:
    table = Table()
    for place, heading in enumerate(headings):
        numbers = sum(_is_number(row[place]) for row in rows)
        table.add_column(heading, justify="right" if place > 0 and 2 * numbers > len(rows) else "left")
    for row in rows:
        table.add_row(*(Text(cell, justify="left") if _is_sentence(cell) else cell for cell in row))
    return table


def _blocks(headings: list[str], rows: list[list[str]], room: int) -> Iterator[str]:
    """The lines of a row are `heading: value`, with an empty one after them; without headings a row is one line."""
    names = [" ".join(heading.split()) for heading in headings]
    for row in rows:
        named = [pair for pair in zip(names, row, strict=True) if pair[1]]
        for parts in named if any(names) else [row]:
            line = ": ".join(part for part in parts if part)
            yield "\n  ".join(_lines(line, room - 2)) if any(map(_is_sentence, parts)) else line
        if any(names):
            yield ""


def _is_number(cell: str) -> bool:
    """Whether it is made of figures and signs: 93.25 %, 10 of 54, 32×32, 0.6 ± 0.1, or a dash for none."""
    letters = re.search(r"[^\W\d_]", re.sub(r" of |\de[-+]", "", cell))
    return cell == "–" or (re.search(r"\d", cell) is not None and letters is None)


def _is_sentence(cell: str) -> bool:
    """Whether it may be broken at its spaces, unlike names and figures that hold some."""
    return len(cell.split()) > 3 and not _is_number(cell)


def _across(cell: str) -> int:
    return max(map(len, cell.splitlines()), default=1)


def _lines(text: str, width: int) -> list[str]:
    """The text broken at spaces alone, and left as it is where it fits."""
    if _across(text) <= width:
        return [text]
    return textwrap.wrap(text, max(width, 1), break_long_words=False, break_on_hyphens=False)
