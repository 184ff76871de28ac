"""A card: the description of a network of the zoo, as it is in NAME.json.

A card outlives the version that wrote it: settings that were added later take their defaults, settings that no longer
exist are ignored. Everything else is checked, because whatever uses a card relies on it. The weights are known by their
digest only.
"""

import math
import re
from dataclasses import dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Any

from codinet import files
from codinet.backbones import ARCHITECTURES
from codinet.config import RunConfig, from_dict, resolve, to_dict
from codinet.cost import CostTable
from codinet.errors import UserError, shown
from codinet.evaluate import FIGURES, impossible_figure
from codinet.runs import DataBrief

FORMAT = 1

_NUMBER = (int, float)
_SHA256 = re.compile(r"[0-9a-f]{64}")
FIELDS: dict[str, tuple[type, ...]] = {
    "format": (int,),
    "name": (str,),
    "data": (str,),
    "data_sha256": (str,),  # of the training and test data of the run, in their order
    "test_sha256": (str,),  # of its test images, in any order
    "arch": (str,),
    "routed": (bool,),
    "router": (str,),
    "classes": (list,),
    "image_shape": (list,),
    "normalisation": (dict,),
    "cost": (dict,),  # `CostTable`, in MACs
    "recipe": (dict,),  # the run's whole config
    "seed": (int,),
    "commit": (str, NoneType),
    "device": (str,),
    "versions": (dict,),
    "wall_s": (*_NUMBER, NoneType),
    **FIGURES,  # on the test images, with the weights as they are loaded
    "threshold": _NUMBER,
    "as_trained": (dict,),  # the run's own figures, before its weights were rounded to half precision
    "measured": (dict,),  # where and how the figures above were measured
    "sha256": (str,),  # of the weights' file
    "bytes": (int,),
}


@dataclass(frozen=True)
class Card:
    """A card with all fields, each of the right type and consistent with the others."""

    content: dict[str, Any]

    @classmethod
    def of(cls, content: Any, where: Path) -> "Card":
        """The card that a file holds; `DamagedError` where an entry is missing or does not fit."""
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise files.DamagedError(f"{where} is not a card that this version reads; {RESTORE}")
        for key, kinds in FIELDS.items():
            if key not in content or type(content[key]) not in kinds:
                raise files.DamagedError(
                    f"{where} is not a complete card: {key} is missing or of the wrong type; {RESTORE}"
                )
        if content["name"] != where.stem:
            raise files.DamagedError(f"{where} is the card of {shown(content['name'])}; {RESTORE}")
        card = cls(content)
        try:
            card._check()
        except UserError as error:
            why = str(error).rstrip(".")
            raise files.DamagedError(f"{where} does not describe a network ({why}); {RESTORE}") from error
        return card

    def _check(self) -> None:
        """`UserError` for the first entry that no network of the zoo can have."""
        config, brief = self.config(), self.brief()
        resolve(config)  # for its checks
        network = config.network
        for key, value in (
            *(("arch", network.arch), ("routed", network.routed), ("router", network.router)),
            *(("seed", config.seed), ("data", config.source)),
        ):
            if self[key] != value:
                raise UserError(f"{key} is {shown(self[key])}, but {shown(value)} in the recipe.")
        blocks = ARCHITECTURES[network.arch].blocks
        odd = impossible_figure(self.content, blocks) or impossible_figure(self["as_trained"], blocks)
        if odd is not None:
            raise UserError(f"{odd} is not a possible figure.")
        if _not_costs(self["cost"], blocks, brief.image_shape):
            raise UserError(f"cost holds {shown(self['cost'])}, which does not fit.")
        for key in ("data_sha256", "test_sha256", "sha256"):
            if not _SHA256.fullmatch(self[key]):
                raise UserError(f"{key} is {shown(self[key])}, not 64 hexadecimal digits.")
        wall, versions = self["wall_s"], (*self["versions"].values(), *self["measured"].values())
        for key, fine in (
            ("threshold", 0 <= self["threshold"] <= 1),
            ("wall_s", wall is None or (math.isfinite(wall) and wall >= 0)),
            ("bytes", self["bytes"] > 0),
            ("versions", not any(isinstance(value, dict | list) for value in versions)),
        ):
            if not fine:
                raise UserError(f"{key} holds {shown(self[key])}, which does not fit.")

    @classmethod
    def read(cls, file: Path) -> "Card":
        try:
            content = files.read_json(file)
        except files.DamagedError as error:
            raise files.DamagedError(f"{str(error).rpartition(';')[0]}; {RESTORE}") from error
        return cls.of(content, file)

    def __getitem__(self, key: str) -> Any:
        return self.content[key]

    @property
    def name(self) -> str:
        return str(self["name"])

    def figures(self) -> dict[str, Any]:
        """The results of the network on its test images, as shipped."""
        return {key: self[key] for key in FIGURES}

    def config(self) -> RunConfig:
        """The recipe; settings that are not on the card take their defaults."""
        return from_dict(_overlaid(to_dict(RunConfig(self["data"])), self["recipe"]))

    def brief(self) -> DataBrief:
        """The data set that it was trained on; `UserError` where no data set can be like that."""
        content = {key: self[key] for key in ("classes", "image_shape")}
        content |= {"name": self["data"], "sha256": self["data_sha256"]}
        content |= {key: self["normalisation"].get(key) for key in ("mean", "std")}
        return DataBrief.read(content)

    def table(self) -> CostTable:
        """The cost of its blocks."""
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in self["cost"].items()
        }
        return CostTable(**values)

    def environment(self) -> dict[str, Any]:
        """Where it was trained, and its name in the zoo."""
        return {**self["versions"], "commit": self["commit"], "device": self["device"], "zoo": self.name}


RESTORE = "restore it, or install codinet again."


def _overlaid(known: dict[str, Any], recipe: dict[str, Any]) -> dict[str, Any]:
    """The settings of this version, with the values of the recipe where it has them."""
    found: dict[str, Any] = {}
    for key, value in known.items():
        inner = recipe.get(key, value)
        found[key] = _overlaid(value, inner) if isinstance(value, dict) and isinstance(inner, dict) else inner
    return found


def _not_costs(cost: dict[str, Any], blocks: int, image_shape: tuple[int, int, int]) -> bool:
    """Whether it is not the table of so many blocks on such images."""
    if set(cost) != {entry.name for entry in fields(CostTable)} or cost["image_shape"] != list(image_shape):
        return True
    lists = [cost[key] for key in ("run_N", "skip_N", "router_N")]
    if any(not isinstance(each, list) or len(each) != blocks for each in lists):
        return True
    numbers = [*(number for each in lists for number in each), cost["fixed"], cost["paper_unit"]]
    if any(type(number) is not int or number < 0 for number in numbers):
        return True
    cheap = any(run <= skip for run, skip in zip(cost["run_N"], cost["skip_N"], strict=True))
    return cheap or cost["fixed"] == 0 or cost["paper_unit"] not in (1, 2)
