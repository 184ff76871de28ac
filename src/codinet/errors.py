"""The one exception that is the user's to fix.

Raise `UserError` with one sentence that names the cause and the way out; the command line prints it and
exits with code 2. Everything else that escapes is a bug and keeps its traceback.
"""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input, a damaged file, a full disk: something the user can act on."""


def first_line(error: BaseException) -> str:
    """What an error says, in one line, for a sentence of ours; its kind where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not in a registry, with the nearest one that is."""
    names = list(known)
    return UserError(f"{name!r} is no {what} known here{perhaps(name, names)}; known are {', '.join(names)}.")


def perhaps(name: str, known: Iterable[str]) -> str:
    """` (perhaps you meant resnet32)`, or nothing when no known name is near."""
    near = difflib.get_close_matches(name.lower(), list(known), n=1)
    return f" (perhaps you meant {near[0]})" if near else ""
