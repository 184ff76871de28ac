"""The folder of the zoo, and finding a network in it. Reads cards, not weights."""

import logging
import os
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from codinet.errors import UserError, unknown
from codinet.zoo.card import Card

PACKAGED = Path(__file__).parent / "weights"
NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")
LISTED = ("name", "data", "arch", "accuracy", "cost_share", "distinct_paths", "sha256")
_log = logging.getLogger(__name__)


def zoo_folder() -> Path:
    """The folder of the package, or the one in the variable CODINET_ZOO."""
    return Path(os.environ.get("CODINET_ZOO") or PACKAGED)


def cards(folder: Path | None = None) -> list[Card]:
    """The cards of all networks, sorted by name; invalid files are skipped with a warning."""
    found = []
    for file in _files(folder):
        try:
            found.append(Card.read(file))
        except UserError as error:
            _warn(f"{error} It is skipped.")
    return found


def _files(folder: Path | None) -> list[Path]:
    return sorted((folder or zoo_folder()).glob("*.json"))


@cache
def _warn(sentence: str) -> None:
    """Warn once, however often the zoo is read."""
    _log.warning(sentence)


def listed(folder: Path | None = None) -> list[dict[str, Any]]:
    """The entries of each card that `codinet models` shows."""
    return [{key: card[key] for key in LISTED} for card in cards(folder)]


def find(name: str, folder: Path | None = None) -> Card:
    """The card of that name; `UserError` with the known names where there is none."""
    file = next((file for file in _files(folder) if file.stem == name), None)
    if file is not None:
        return Card.read(file)
    raise missing("network of the zoo", name, [card.name for card in cards(folder)])


def best(there: Iterable[Card], arch: str, data: str, fits: Callable[[Card], bool]) -> Card | None:
    """The most accurate network of that kind and data set; the cheapest of equally accurate ones."""
    found = [card for card in there if (card["arch"], card["data"]) == (arch, data) and fits(card)]
    return min(found, key=lambda card: (-card["accuracy"], card["cost_share"], card.name), default=None)


def weights_of(card: Card, folder: Path | None = None) -> Path:
    return (folder or zoo_folder()) / f"{card.name}.safetensors"


def missing(what: str, name: str, there: dict[str, Any] | list[str]) -> UserError:
    """The error for a name that is not in the zoo."""
    if not there:
        return UserError(f"There is no {name!r}: the zoo is empty; add a network with codinet zoo add RUN.")
    return unknown(what, name, there)
