"""Short names for run folders that are shown side by side."""

from collections.abc import Sequence
from pathlib import Path

from codinet.errors import UserError, one_line


def short_names(paths: Sequence[Path]) -> list[str]:
    """The folders' own names, with as many parents before them as make them different."""
    whole = [path.resolve() for path in paths]
    if len(set(whole)) < len(whole):
        raise UserError("The same run folder is named twice; name each once.")
    names: list[str] = []
    for depth in range(1, max((len(path.parts) for path in whole), default=0) + 1):
        names = [one_line("/".join(path.parts[-depth:])) for path in whole]
        if len(set(names)) == len(names):
            break
    return names
