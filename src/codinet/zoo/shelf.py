"""The folder of the zoo, and how to find a network in it. Reads cards, not weights.

Importing this module does not import torch.
"""

import logging
import os
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codinet.errors import UserError, unknown

if TYPE_CHECKING:
    from codinet.zoo.card import Card

ZOO = "zoo:"  # prefix of a network of the zoo wherever a run is expected
PACKAGED = Path(__file__).parent / "weights"
NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")
LISTED = ("name", "data", "arch", "accuracy", "cost_share", "distinct_paths", "sha256")
_log = logging.getLogger(__name__)


def zoo_folder() -> Path:
    """The folder that CODINET_ZOO names; by default the package's own."""
    return Path(os.environ.get("CODINET_ZOO") or PACKAGED)


def cards(folder: Path | None = None) -> list["Card"]:
    """All cards, sorted by name; invalid files are skipped with a warning."""
    from codinet.zoo.card import Card

    valid = []
    for file in _files(folder):
        try:
            valid.append(Card.read(file))
        except UserError as error:
            _warn(f"{error} It is skipped.")
    return valid


def _files(folder: Path | None) -> list[Path]:
    return sorted((folder or zoo_folder()).glob("*.json"))


@cache
def _warn(sentence: str) -> None:
    """Warn once, however often the zoo is read."""
    _log.warning(sentence)


def listed(folder: Path | None = None) -> list[dict[str, Any]]:
    """The entries of each card that `codinet models` lists."""
    return [{key: card[key] for key in LISTED} for card in cards(folder)]


def find(name: str, folder: Path | None = None) -> "Card":
    """The card of that name; an unknown name is a `UserError` that lists the known ones."""
    from codinet.zoo.card import Card

    file = next((file for file in _files(folder) if file.stem == name), None)
    if file is not None:
        return Card.read(file)
    raise missing("network of the zoo", name, [card.name for card in cards(folder)])


def best(candidates: Iterable["Card"], arch: str, data: str, fits: Callable[["Card"], bool]) -> "Card | None":
    """The most accurate network of an architecture on a data set; the cheapest of equally accurate ones."""
    fitting = [card for card in candidates if (card["arch"], card["data"]) == (arch, data) and fits(card)]
    return min(fitting, key=lambda card: (-card["accuracy"], card["cost_share"], card.name), default=None)


def weights_of(card: "Card", folder: Path | None = None) -> Path:
    """The file of a network's weights."""
    return (folder or zoo_folder()) / f"{card.name}.safetensors"


def missing(what: str, name: str, known: list[str]) -> UserError:
    """The error for a name that is not in the zoo."""
    if not known:
        return UserError(
            f"There is no {name!r}: the zoo is empty; add a network with python -m tools.zoo_add RUN --name NAME."
        )
    return unknown(what, name, known)
