"""What verbs share: printing figures, notes and JSON, and checks of flags."""

import sys
from typing import Any

from codinet.errors import UserError, one_line
from codinet.files import to_json


def flag_value(flag: str, words: list[str]) -> str | None:
    """The value of a flag among the words, for defaults that depend on it; the last one counts, as in the parser."""
    value = None
    for place, word in enumerate(words):
        if word == flag and place + 1 < len(words):
            value = words[place + 1]
        elif word.startswith(f"{flag}="):
            value = word.removeprefix(f"{flag}=")
    return value


def require_probability(flag: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise UserError(f"--{flag} must be a number from 0 to 1, got {value:g}.")


def note(sentence: str) -> None:
    """Print a remark on stderr; stdout is for the answer."""
    print(f"codinet: {one_line(sentence)}", file=sys.stderr)


def counted(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def print_json(content: Any) -> None:
    """Print one JSON document in ASCII; `UserError` where it holds NaN or infinity."""
    print(to_json(_in_unicode(content), indent=2))


def _in_unicode(content: Any) -> Any:
    """The content with what is not Unicode escaped: names of files may be any bytes."""
    if isinstance(content, str):
        return content.encode(errors="backslashreplace").decode()
    if isinstance(content, dict):
        return {_in_unicode(key): _in_unicode(value) for key, value in content.items()}
    return [_in_unicode(value) for value in content] if isinstance(content, list | tuple) else content


def figures(summary: dict[str, Any]) -> list[list[str]]:
    """The rows of a table that shows an evaluation."""
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
