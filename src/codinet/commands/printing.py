"""What commands print: notes, JSON documents, and tables that never break a word or a number."""

import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codinet.errors import one_line

if TYPE_CHECKING:
    from rich.table import Table

_UNLIMITED = 1_000_000  # columns

# What a person may want to do after a command. {…} are its arguments.
_NEXT: dict[str, tuple[tuple[str, str], ...]] = {
    "train": (
        ("codinet explore {run}", "see how it routes images"),
        ("codinet eval {run} --curve", "accuracy at other costs, without training"),
    ),
    "eval": (("codinet report {run}", "figures"), ("codinet bench {run}", "measured speed")),
    "predict": (("codinet explore {run}", "see why an image takes its path"),),
    "analyze": (("codinet report {runs}", "the same as figures"),),
    "report": (("codinet explore {runs[0]}", "a single run, image by image"),),
    "explore": (("codinet export {run} --out model.onnx", "use it without codinet"),),
    "sweep": (("codinet report {out}/*/", "figures of all runs"),),
    "bench": (("codinet export {network} --out model.onnx", "use it without codinet"),),
    "export": (("codinet bench {run}", "its speed on this machine"),),
    "data": (("codinet train digits --preset demo", "a first training, under a minute"),),
    "models": (
        ("codinet train FOLDER --budget 0.6", "a network for your own images"),
        ("codinet explore zoo:NAME", "a network of the zoo"),
    ),
}


def note(sentence: str) -> None:
    """Print a remark on stderr; stdout is for the result."""
    print(f"codinet: {one_line(sentence)}", file=sys.stderr)


def print_next(verb: str, values: dict[str, Any]) -> None:
    """Suggest what to do next, on stderr, if a person reads stdout.

    Args:
        verb: The command that has ended.
        values: Its arguments by name. A suggestion with an argument that is missing or empty is left out.
    """
    if values.get("json") or not sys.stdout.isatty():
        return
    if verb == "bench" and not _is_run(values.get("network")):  # a network without trained weights
        return
    lines = []
    for command, purpose in _NEXT.get(verb, ()):
        try:
            lines.append((command.format_map({name: _Word(value) for name, value in values.items() if value}), purpose))
        except (KeyError, IndexError):
            continue
    width = max((len(command) for command, _ in lines), default=0)
    for command, purpose in lines:
        print(one_line(f"next: {command:<{width}}  # {purpose}"), file=sys.stderr)


def _is_run(name: Any) -> bool:
    return str(name).startswith("zoo:") or Path(str(name)).is_dir()


class _Word:
    """An argument in a command line; several are separated by spaces."""

    def __init__(self, value: Any) -> None:
        self.values = list(value) if isinstance(value, list | tuple) else [value]

    def __getitem__(self, place: int) -> "_Word":
        return _Word(self.values[place])

    def __format__(self, _form: str) -> str:
        return " ".join(shlex.quote(str(value)) for value in self.values)


def counted(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def print_json(content: Any) -> None:
    """Print one JSON document in ASCII. NaN and infinity are a `UserError`."""
    from codinet.files import to_json

    print(to_json(_in_unicode(content), indent=2))


def _in_unicode(content: Any) -> Any:
    """The content with invalid Unicode escaped, because file names may be any bytes."""
    if isinstance(content, str):
        return content.encode(errors="backslashreplace").decode()
    if isinstance(content, dict):
        return {_in_unicode(key): _in_unicode(value) for key, value in content.items()}
    return [_in_unicode(value) for value in content] if isinstance(content, list | tuple) else content


def evaluation_rows(summary: dict[str, Any]) -> list[list[str]]:
    """The rows of a table that shows an evaluation, given `Evaluation.summary()`."""
    return [
        ["accuracy", f"{summary['accuracy']:.2f} %"],
        *([["top-5 accuracy", f"{summary['top5_accuracy']:.2f} %"]] if "top5_accuracy" in summary else []),
        ["cost, share of the static network", f"{summary['cost_share']:.4f}"],
        ["cost, M MACs per image (one per multiply-add)", f"{summary['macs'] / 1e6:.3f}"],
        ["cost, G in the paper's unit", f"{summary['paper_gmaccs']:.4f}"],
        ["blocks run per image", f"{summary['mean_blocks']:.2f}"],
        ["distinct paths", f"{summary['distinct_paths']}"],
        ["path entropy, bits", f"{summary['path_entropy']:.2f}"],
        ["blocks always on / always off", f"{summary['always_on']} / {summary['always_off']}"],
        ["images", f"{summary['n']}"],
    ]


def print_table(title: str, headings: list[str], rows: list[list[str]]) -> None:
    """Print a table without breaking words. In a terminal that is too narrow, print each row as a block of lines.

    Control characters, which names may contain, are escaped.

    Args:
        title: Printed above the table; may be empty.
        headings: One for each column.
        rows: Cells as text.
    """
    from rich.console import Console
    from rich.text import Text

    class RaisingConsole(Console):
        def on_broken_pipe(self) -> None:
            raise  # `codinet.cli` handles it

    rows = [[one_line(cell) for cell in row] for row in rows]
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else _UNLIMITED
    # No markup, because names may contain brackets and colons. rich breaks words to keep to its width, so it gets an
    # unlimited one (a dumb terminal ignores the width unless there is a height).
    console = RaisingConsole(width=_UNLIMITED, height=25, highlight=False, markup=False, emoji=False)
    if title:
        console.print(Text("\n".join(_wrap(one_line(title), columns)), style="table.title"))
    for table in _candidates(headings, rows):
        if console.measure(table).maximum <= columns:
            console.print(table)
            return
    for line in _blocks(headings, rows, columns):
        console.print(Text(line))


def _candidates(headings: list[str], rows: list[list[str]]) -> Iterator["Table"]:
    """Tables from wide to narrow: unbroken, with broken headings, with broken sentences too."""
    yield _table(headings, rows)
    for width in (_UNLIMITED, *range(64, 16, -4)):
        narrow = [["\n".join(_wrap(cell, width)) if _is_sentence(cell) else cell for cell in row] for row in rows]
        longest = [max(map(_width, column)) for column in zip(*narrow, strict=True)] or [1] * len(headings)
        yield _table(["\n".join(_wrap(heading, most)) for heading, most in zip(headings, longest, strict=True)], narrow)


def _table(headings: list[str], rows: list[list[str]]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column, heading in enumerate(headings):
        numbers = sum(_is_number(row[column]) for row in rows)
        table.add_column(heading, justify="right" if column > 0 and 2 * numbers > len(rows) else "left")
    for row in rows:
        table.add_row(*(Text(cell, justify="left") if _is_sentence(cell) else cell for cell in row))
    return table


def _blocks(headings: list[str], rows: list[list[str]], columns: int) -> Iterator[str]:
    """Lines `heading: value` for each row, then an empty line. Without headings, a row is one line."""
    names = [" ".join(heading.split()) for heading in headings]
    for row in rows:
        named = [pair for pair in zip(names, row, strict=True) if pair[1]]
        for parts in named if any(names) else [row]:
            line = ": ".join(part for part in parts if part)
            yield "\n  ".join(_wrap(line, columns - 2)) if any(map(_is_sentence, parts)) else line
        if any(names):
            yield ""


def _is_number(cell: str) -> bool:
    """Whether a cell has digits and signs only: 93.25 %, 10 of 54, 32×32, 0.6 ± 0.1, or a dash for none."""
    letters = re.search(r"[^\W\d_]", re.sub(r" of |\de[-+]", "", cell))
    return cell == "–" or (re.search(r"\d", cell) is not None and letters is None)


def _is_sentence(cell: str) -> bool:
    """Whether a cell may be broken at spaces, unlike names and numbers that contain spaces."""
    return len(cell.split()) > 3 and not _is_number(cell)


def _width(cell: str) -> int:
    return max(map(len, cell.splitlines()), default=1)


def _wrap(text: str, width: int) -> list[str]:
    """The text broken at spaces only, and unchanged if it fits."""
    if _width(text) <= width:
        return [text]
    return textwrap.wrap(text, max(width, 1), break_long_words=False, break_on_hyphens=False)
