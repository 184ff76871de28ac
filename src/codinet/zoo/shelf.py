"""Where networks of the zoo lie, and finding one. Reads cards, not weights."""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from codinet.errors import UserError, unknown
from codinet.zoo.card import Card

PACKAGED = Path(__file__).parent / "weights"
NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")
LISTED = ("name", "data", "arch", "accuracy", "cost_share", "distinct_paths", "sha256")


def zoo_folder() -> Path:
    """That of the package, or the one that CODINET_ZOO names."""
    return Path(os.environ.get("CODINET_ZOO") or PACKAGED)


def cards(folder: Path | None = None) -> list[Card]:
    """Every network's card, by name."""
    return [Card.read(file) for file in sorted((folder or zoo_folder()).glob("*.json"))]


def listed(folder: Path | None = None) -> list[dict[str, Any]]:
    """What `codinet models` tells of each."""
    return [{key: card[key] for key in LISTED} for card in cards(folder)]


def find(name: str, folder: Path | None = None) -> Card:
    """The card of that name, or the error that says which there are."""
    there = {card.name: card for card in cards(folder)}
    if name not in there:
        raise missing("network of the zoo", name, there)
    return there[name]


def best(there: Iterable[Card], arch: str, data: str, fits: Callable[[Card], bool]) -> Card | None:
    """The most accurate network of that kind and data set; of equals the cheapest."""
    found = [card for card in there if (card["arch"], card["data"]) == (arch, data) and fits(card)]
    return min(found, key=lambda card: (-card["accuracy"], card["cost_share"], card.name), default=None)


def weights_of(card: Card, folder: Path | None = None) -> Path:
    return (folder or zoo_folder()) / f"{card.name}.safetensors"


def missing(what: str, name: str, there: dict[str, Any] | list[str]) -> UserError:
    """The error for a name that the zoo has not."""
    if not there:
        return UserError(f"There is no {name!r}, for the zoo holds no networks yet; add one with codinet zoo add RUN.")
    return unknown(what, name, there)
