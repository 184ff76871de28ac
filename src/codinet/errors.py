"""`UserError`, the exception for problems that the user can fix, and helpers for its message.

The message is one line: the rule, the value it got and, if it is not obvious, how to fix it. The command line prints
the message and exits with code 2. Any other exception that escapes is a bug and keeps its traceback.
"""

import difflib
from collections.abc import Iterable
from typing import Any


class UserError(ValueError):
    """Bad input, a damaged file, a full disk: a problem that the user can fix.

    The message is always one printable line: line breaks and control characters, which file names may contain, are
    escaped.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message.strip()))


def one_line(text: str) -> str:
    """Escapes every character that is not printable (a line break becomes `\\n`)."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its class if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def shown(value: Any, most: int = 80) -> str:
    """The `repr` of a value, cut to `most` characters."""
    try:
        text = repr(value)
    except Exception:  # an integer too long to print, or an error in the object's __repr__
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 1]}…"


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """The error for an unknown name.

    Args:
        what: What the name refers to, such as "router".
        name: The unknown name.
        known: The names to choose from.

    Returns:
        The error; its message suggests the most similar name.
    """
    names = list(known)
    return UserError(f"Unknown {what} {shown(name)}{suggestion(name, names)}; choose from {', '.join(names)}.")


def suggestion(name: str, known: Iterable[str]) -> str:
    """` (perhaps you meant resnet32)`, or an empty text if no known name is similar."""
    near = difflib.get_close_matches(name.lower(), list(known), n=1)
    return f" (perhaps you meant {near[0]})" if near else ""
