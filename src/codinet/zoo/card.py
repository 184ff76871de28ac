"""A card: what there is to know about a network of the zoo, as it stands in NAME.json.

A card outlives the version that wrote it: settings that came later take their defaults, settings that are gone
are left out. Knows nothing of weights beyond their digest.
"""

from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

from codinet import files
from codinet.config import RunConfig, from_dict, to_dict
from codinet.cost import CostTable
from codinet.errors import UserError
from codinet.runs import DataBrief

FORMAT = 1

# Those of `Evaluation`, on the test images, of the weights as they are loaded.
FIGURES: dict[str, tuple[type, ...]] = {
    "accuracy": (float,),
    "loss": (float,),
    "macs": (float,),
    "paper_gmaccs": (float,),
    "cost_share": (float,),
    "mean_blocks": (float,),
    "distinct_paths": (int,),
    "path_entropy": (float,),
    "always_on": (int,),
    "always_off": (int,),
    "n": (int,),
}
FIELDS: dict[str, tuple[type, ...]] = {
    "format": (int,),
    "name": (str,),
    "data": (str,),
    "data_sha256": (str,),  # of what the run was trained and tested on, as it lay there
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
    "wall_s": (float, int, NoneType),
    **FIGURES,
    "threshold": (float,),
    "as_trained": (dict,),  # the run's own figures, before its weights were halved
    "measured": (dict,),  # where and how the figures above were found
    "sha256": (str,),  # of the weights' file
    "bytes": (int,),
}


@dataclass(frozen=True)
class Card:
    """A card whose fields are all there and of the right kind."""

    content: dict[str, Any]

    @classmethod
    def of(cls, content: Any, where: Path) -> "Card":
        """The card that a file holds; `DamagedError` where it is no whole one."""
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise files.DamagedError(f"{where} is no card that this version reads; {RESTORE}")
        for key, kinds in FIELDS.items():
            if key not in content or type(content[key]) not in kinds:
                raise files.DamagedError(f"{where} is no whole card: {key} is missing or of another kind; {RESTORE}")
        if content["name"] != where.stem:
            raise files.DamagedError(f"{where} is the card of {content['name']}; {RESTORE}")
        card = cls(content)
        try:
            card.config(), card.brief(), card.table()
        except (KeyError, TypeError, ValueError) as error:
            why = str(error).rstrip(".") if isinstance(error, UserError) else repr(error)
            raise files.DamagedError(f"{where} does not describe a network ({why}); {RESTORE}") from error
        return card

    @classmethod
    def read(cls, file: Path) -> "Card":
        try:
            content = files.read_json(file)
        except files.DamagedError as error:
            raise files.DamagedError(f"{file} cannot be read as JSON; {RESTORE}") from error
        return cls.of(content, file)

    def __getitem__(self, key: str) -> Any:
        return self.content[key]

    @property
    def name(self) -> str:
        return str(self["name"])

    def figures(self) -> dict[str, Any]:
        """What the network came to on its test images, as shipped."""
        return {key: self[key] for key in FIGURES}

    def config(self) -> RunConfig:
        """The recipe; what is not on the card is as it is by default."""
        return from_dict(_overlaid(to_dict(RunConfig(self["data"])), self["recipe"]))

    def brief(self) -> DataBrief:
        """The data that it was trained on."""
        channels, height, width = self["image_shape"]
        mean, std = (tuple(self["normalisation"][key]) for key in ("mean", "std"))
        shape = (channels, height, width)
        return DataBrief(self["data"], tuple(self["classes"]), mean, std, shape, self["data_sha256"])

    def table(self) -> CostTable:
        """What its blocks cost."""
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in self["cost"].items()
        }
        return CostTable(**values)

    def environment(self) -> dict[str, Any]:
        """Where it was trained, and that it is of the zoo."""
        return {**self["versions"], "commit": self["commit"], "device": self["device"], "zoo": self.name}


RESTORE = "restore it, or install codinet again."


def _overlaid(known: dict[str, Any], recipe: dict[str, Any]) -> dict[str, Any]:
    """The values that this version knows, those of the recipe where it has them."""
    found: dict[str, Any] = {}
    for key, value in known.items():
        inner = recipe.get(key, value)
        found[key] = _overlaid(value, inner) if isinstance(value, dict) and isinstance(inner, dict) else inner
    return found
