"""What verbs share: how tables, figures and JSON are printed, and what is asked of words and numbers."""

import json
import sys
import textwrap
from typing import Any

from rich.console import Console
from rich.table import Table

from codinet.errors import UserError


def flag_value(flag: str, words: list[str]) -> str | None:
    """What follows a flag among the words, for defaults that depend on it."""
    for place, word in enumerate(words):
        if word == flag and place + 1 < len(words):
            return words[place + 1]
        if word.startswith(f"{flag}="):
            return word.removeprefix(f"{flag}=")
    return None


def require_probability(flag: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise UserError(f"--{flag} {value:g} is no probability; give a number from 0 to 1.")


def note(sentence: str) -> None:
    """A word beside the answer, which has stdout to itself."""
    print(f"codinet: {sentence}", file=sys.stderr)


def counted(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def print_json(content: Any) -> None:
    print(json.dumps(content, indent=2))


def print_table(title: str, headings: list[str], rows: list[list[str]]) -> None:
    # Names of files are shown as they are: brackets and colons in them mean nothing.
    console = Console(highlight=False, markup=False, emoji=False)
    table = Table(title=title, title_justify="left")
    longest = [max(map(len, column), default=0) for column in zip(*rows, strict=True)] or [0] * len(headings)
    across = [max(map(len, heading.splitlines()), default=0) for heading in headings]
    if sum(max(pair) + 3 for pair in zip(across, longest, strict=True)) >= console.width:
        # Where it is tight, headings break before names and figures do.
        headings = ["\n".join(_lines(heading, width)) for heading, width in zip(headings, longest, strict=True)]
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="left" if i == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _lines(heading: str, width: int) -> list[str]:
    return textwrap.wrap(heading, max(width, 1), break_long_words=False, break_on_hyphens=False)


def figures(summary: dict[str, Any]) -> list[list[str]]:
    """The rows in which an evaluation is shown."""
    return [
        ["accuracy", f"{summary['accuracy']:.2f} %"],
        ["cost, share of the static network", f"{summary['cost_share']:.4f}"],
        ["cost, M MACs an image (one per multiply-add)", f"{summary['macs'] / 1e6:.3f}"],
        ["cost, G in the paper's unit", f"{summary['paper_gmaccs']:.4f}"],
        ["blocks run an image", f"{summary['mean_blocks']:.2f}"],
        ["distinct paths", f"{summary['distinct_paths']}"],
        ["path entropy, bits", f"{summary['path_entropy']:.2f}"],
        ["blocks always on / always off", f"{summary['always_on']} / {summary['always_off']}"],
        ["images", f"{summary['n']}"],
    ]
