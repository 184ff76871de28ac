"""The card of a network of the zoo: NAME.json.

A card must stay readable in later versions: settings that were added later get their defaults, settings that no longer
exist are ignored. Everything else is checked when the card is read. A card knows the weights by their digest only.
"""

import math
import re
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Any

from codinet import files
from codinet.config import RunConfig, from_dict, to_dict
from codinet.cost import CostTable
from codinet.errors import UserError, shown
from codinet.evaluate import FIGURES, TOP5, impossible_figure
from codinet.resolving import resolve
from codinet.run_reader import CurvePoint, DataInfo, read_groups

FORMAT = 1
RESTORE = "restore it, or install codinet again."
BATCH = 250  # images per batch when a card is measured; another batch size may round differently

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
GROUPS = "groups"  # an optional entry: the number of blocks in each group of a network that is not codinet's own
CURVE = "curve"  # an optional entry: accuracy and cost at several thresholds, [threshold, accuracy, cost_share, n] each


@dataclass(frozen=True)
class Card:
    """A card whose fields are complete, of the right types and consistent."""

    content: dict[str, Any]

    @classmethod
    def of(cls, content: Any, where: Path) -> "Card":
        """Check the content of a card.

        Args:
            content: The parsed JSON. A missing or invalid entry is a `DamagedError`.
            where: The file it comes from; its name must be the card's.
        """
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
            raise files.DamagedError(f"{where} is not a valid card ({why}); {RESTORE}") from error
        return card

    def _check(self) -> None:
        """Raise `UserError` for the first invalid entry."""
        config, data = self.config(), self.data_info()
        resolve(config)  # for its checks
        network = config.network
        for key, value in (
            *(("arch", network.arch), ("routed", network.routed), ("router", network.router)),
            *(("seed", config.seed), ("data", config.source)),
        ):
            if self[key] != value:
                raise UserError(f"{key} is {shown(self[key])}, but {shown(value)} in the recipe.")
        blocks = sum(self.groups())
        invalid = impossible_figure(self.content, blocks) or impossible_figure(self["as_trained"], blocks)
        if invalid is not None:
            raise UserError(f"{invalid} is invalid.")
        if not _is_cost_table(self["cost"], blocks, data.image_shape):
            raise UserError(f"cost is invalid, got {shown(self['cost'])}.")
        for key in ("data_sha256", "test_sha256", "sha256"):
            if not _SHA256.fullmatch(self[key]):
                raise UserError(f"{key} must be 64 hexadecimal digits, got {shown(self[key])}.")
        self.curve()  # for its checks
        wall, versions = self["wall_s"], (*self["versions"].values(), *self["measured"].values())
        for key, valid in (
            ("threshold", 0 <= self["threshold"] <= 1),
            ("wall_s", wall is None or (math.isfinite(wall) and wall >= 0)),
            ("bytes", self["bytes"] > 0),
            ("versions", not any(isinstance(value, dict | list) for value in versions)),
        ):
            if not valid:
                raise UserError(f"{key} is invalid, got {shown(self[key])}.")

    @classmethod
    def read(cls, file: Path) -> "Card":
        """Read and check the card in a file."""
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
        """The results on the test images, with the weights as they are loaded."""
        return {key: self[key] for key in (*FIGURES, TOP5) if key in self.content}

    def config(self) -> RunConfig:
        """The config of the training; settings that the card lacks get their defaults."""
        return from_dict(_overlaid(to_dict(RunConfig(self["data"])), self["recipe"]))

    def data_info(self) -> DataInfo:
        """The data set that it was trained on; `UserError` if the entries are invalid."""
        content = {key: self[key] for key in ("classes", "image_shape")}
        content |= {"name": self["data"], "sha256": self["data_sha256"]}
        content |= {key: self["normalisation"].get(key) for key in ("mean", "std")}
        return DataInfo.read(content)

    def table(self) -> CostTable:
        """The cost of each block."""
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in self["cost"].items()
        }
        return CostTable(**values)

    def curve(self) -> list[CurvePoint]:
        """Accuracy and cost at several thresholds, ascending; empty if the card has none."""
        rows = self.content.get(CURVE, [])
        if not isinstance(rows, list) or not all(map(_is_curve_row, rows)):
            raise UserError(f"curve is invalid, got {shown(rows)}.")
        points = [CurvePoint(*row) for row in rows]
        if any(one.threshold >= other.threshold for one, other in pairwise(points)):
            raise UserError("curve must have ascending thresholds.")
        return points

    def groups(self) -> tuple[int, ...]:
        """The number of blocks in each group of the network."""
        return read_groups(self.content.get(GROUPS), self["arch"])

    def environment(self) -> dict[str, Any]:
        """Where it was trained, and its name in the zoo."""
        return {**self["versions"], "commit": self["commit"], "device": self["device"], "zoo": self.name}


def _overlaid(known: dict[str, Any], recipe: dict[str, Any]) -> dict[str, Any]:
    """The settings of this version, with the values of the recipe where it has them."""
    merged: dict[str, Any] = {}
    for key, value in known.items():
        inner = recipe.get(key, value)
        merged[key] = _overlaid(value, inner) if isinstance(value, dict) and isinstance(inner, dict) else inner
    return merged


def _is_curve_row(row: Any) -> bool:
    if not isinstance(row, list) or len(row) != len(CurvePoint._fields) or any(type(v) not in _NUMBER for v in row):
        return False
    point = CurvePoint(*row)
    ranges = 0 <= point.threshold <= 1 and 0 <= point.accuracy <= 100 and 0 < point.cost_share < math.inf
    return ranges and type(point.n) is int and point.n > 0


def _is_cost_table(cost: dict[str, Any], blocks: int, image_shape: tuple[int, int, int]) -> bool:
    if set(cost) != {entry.name for entry in fields(CostTable)} or cost["image_shape"] != list(image_shape):
        return False
    lists = [cost[key] for key in ("run_N", "skip_N", "router_N")]
    if any(not isinstance(each, list) or len(each) != blocks for each in lists):
        return False
    numbers = [*(number for each in lists for number in each), cost["fixed"], cost["paper_unit"]]
    if any(type(number) is not int or number < 0 for number in numbers):
        return False
    saves = all(run > skip for run, skip in zip(cost["run_N"], cost["skip_N"], strict=True))
    return saves and cost["fixed"] > 0 and cost["paper_unit"] in (1, 2)
