"""The one exception for problems that the user can fix.

Raise `UserError` with one sentence that states the rule, the value it got and the way out. The command line prints it
and exits with code 2. Every other exception that escapes is a bug and keeps its traceback.
"""

import difflib
from collections.abc import Iterable
from typing import Any


class UserError(ValueError):
    """Bad input, a damaged file, a full disk: something the user can act on.

    The text is always one printable line: line breaks and control characters, which names of files may hold, are
    escaped.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(one_line(sentence.strip()))


def one_line(text: str) -> str:
    """The text with every character that is not printable escaped (a line break becomes `\\n`)."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for use in one of our sentences; its class where it has no text."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def shown(value: Any, most: int = 80) -> str:
    """The value as Python writes it, cut to `most` characters."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not in a registry, with the nearest one that is."""
    names = list(known)
    return UserError(f"Unknown {what} {shown(name)}{perhaps(name, names)}; choose from {', '.join(names)}.")


def perhaps(name: str, known: Iterable[str]) -> str:
    """` (perhaps you meant resnet32)`, or nothing when no known name is near."""
    near = difflib.get_close_matches(name.lower(), list(known), n=1)
    return f" (perhaps you meant {near[0]})" if near else ""
