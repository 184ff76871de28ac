"""What verbs share: how figures, notes and JSON are printed, and what is asked of words and numbers."""

import json
import sys
from typing import Any

from codinet.errors import UserError


def flag_value(flag: str, words: list[str]) -> str | None:
    """What follows a flag among the words, for defaults that depend on it; of several the last, which the parser
    takes too."""
    value = None
    for place, word in enumerate(words):
        if word == flag and place + 1 < len(words):
            value = words[place + 1]
        elif word.startswith(f"{flag}="):
            value = word.removeprefix(f"{flag}=")
    return value


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
