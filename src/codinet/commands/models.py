"""`codinet models`: the networks that can be trained, and the trained ones of the zoo.

The numbers of the networks are stored here, because counting them takes seconds; a test compares them with the real
count. This command imports torch only to list the networks of timm or torchvision.
"""

from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

import tyro

from codinet.commands.printing import note, print_json, print_table
from codinet.errors import UserError
from codinet.specs import TIMM, TORCHVISION

if TYPE_CHECKING:
    from torch import nn

_MOST_BUILT = 40  # networks whose blocks are looked up; building one takes a fraction of a second


class Network(NamedTuple):
    """Size and cost of a network, for the image size and number of classes that the paper uses it with."""

    name: str
    blocks: int
    parameters_static: int
    parameters_routed: int  # with FC routers
    macs: int  # of the static network, one per multiply-add
    image_size: int = 32
    classes: int = 10
    paper_unit: int = 2  # what the paper counts for one multiply-add

    def describe(self) -> dict[str, Any]:
        """The entry of the JSON document."""
        return {
            "name": self.name,
            "blocks": self.blocks,
            "image_size": self.image_size,
            "classes": self.classes,
            "parameters_static": self.parameters_static,
            "parameters_routed": self.parameters_routed,
            "macs": self.macs,
            "paper_gmaccs": self.macs * self.paper_unit / 1e9,
        }


NETWORKS = (
    Network("resnet14", 6, 172_506, 179_958, 26_395_264),
    Network("resnet20", 9, 269_722, 282_892, 40_551_040),
    Network("resnet26", 12, 366_938, 385_826, 54_706_816),
    Network("resnet32", 15, 464_154, 488_760, 68_862_592),
    Network("resnet44", 21, 658_586, 694_628, 97_174_144),
    Network("resnet56", 27, 853_018, 900_496, 125_485_696),
    Network("resnet62", 30, 950_234, 1_003_430, 139_641_472),
    Network("resnet74", 36, 1_144_666, 1_209_298, 167_953_024),
    Network("resnet110", 54, 1_727_962, 1_826_902, 252_887_680),
    Network("resnet32x2", 15, 1_849_898, 1_945_160, 274_564_352),
    Network("resnet32x4", 15, 7_386_186, 7_761_000, 1_096_485_376),
    Network("resnet50", 16, 25_557_032, 41_525_768, 4_089_184_256, image_size=224, classes=1000, paper_unit=1),
    Network("resnet101", 33, 44_549_160, 78_395_946, 7_801_405_440, image_size=224, classes=1000, paper_unit=1),
)


@dataclass(frozen=True)
class Args:
    pattern: tyro.conf.Positional[str] = ""
    """Networks of a library to list instead, with wildcards: "timm:convnext*", "torchvision:*"."""
    json: bool = False
    """Print one JSON document."""


def run(args: Args) -> None:
    """Print the networks and the zoo, or networks of timm or torchvision."""
    if args.pattern:
        _print_library(args)
        return
    zoo = _zoo_entries()
    if args.json:
        print_json({"models": [network.describe() for network in NETWORKS], "zoo": zoo})
        return
    headings = ["network", "blocks", "image", "parameters, static", "routed", "M MACs static", "paper's unit, G"]
    rows = [
        [
            network.name,
            str(network.blocks),
            f"{network.image_size}×{network.image_size}",
            f"{network.parameters_static:,}",
            f"{network.parameters_routed:,}",
            f"{network.macs / 1e6:,.2f}",
            f"{network.macs * network.paper_unit / 1e9:.2f}",
        ]
        for network in NETWORKS
    ]
    print_table("Networks (MACs: one per multiply-add)", headings, rows)
    print("Networks of other libraries: timm:NAME and torchvision:NAME; codinet models 'timm:convnext*' lists some.")
    _print_zoo(zoo)


def _print_library(args: Args) -> None:
    """Print the matching networks of a library and, if they are not too many, their residual blocks."""
    library, colon, pattern = args.pattern.partition(":")
    if library not in (TIMM, TORCHVISION) or not colon:
        raise UserError(f"PATTERN must start with timm: or torchvision:, such as 'timm:convnext*', got {args.pattern}.")
    from codinet.adopt import import_vision

    package: Any = import_vision(library)
    known = package.list_models() if library == TIMM else package.models.list_models(module=package.models)
    names = [name for name in known if fnmatchcase(name, pattern)]
    if not names:
        raise UserError(f"{library} {package.__version__} has no network that matches {pattern!r}.")
    described: list[dict[str, Any]] = [{"name": f"{library}:{name}"} for name in names]
    if len(names) <= _MOST_BUILT:
        make = package.create_model if library == TIMM else package.models.get_model
        described = [{**entry, "blocks": _blocks_of(make, name)} for entry, name in zip(described, names, strict=True)]
    if args.json:
        print_json({"library": library, "version": package.__version__, "models": described})
        return
    rows = [
        [entry["name"], *([entry["blocks"] or "give --blocks"] if "blocks" in entry else [])] for entry in described
    ]
    headings = ["network", "residual blocks"][: len(rows[0])]
    print_table(f"{len(names)} networks of {library} {package.__version__}", headings, rows)
    if len(names) > _MOST_BUILT:
        note(f"their blocks are listed for patterns that match at most {_MOST_BUILT} networks.")


def _blocks_of(make: Any, name: str) -> str | None:
    """The names of the residual blocks that codinet selects; None if it does not know them."""
    import torch

    from codinet.adopt.families import family_pattern
    from codinet.adopt.resnet import AdoptedResNet

    try:
        with torch.device("meta"):
            module: nn.Module = make(name)
        pattern = family_pattern(module)
        if pattern is None:
            AdoptedResNet(module, None)
        return pattern or "layer*.*"
    except Exception:  # not a ResNet, or any error of the library
        return None


def _zoo_entries() -> list[dict[str, Any]]:
    """The main entries of each card. Cards of the package are tested; those of another folder are checked here."""
    from codinet.files import read_json
    from codinet.zoo.shelf import LISTED, PACKAGED, listed, zoo_folder

    if zoo_folder() == PACKAGED:
        with suppress(UserError, KeyError, TypeError):  # a damaged installation
            cards = [read_json(file) for file in sorted(PACKAGED.glob("*.json"))]
            return [{key: card[key] for key in LISTED} for card in cards]
    return listed()


def _print_zoo(entries: list[dict[str, Any]]) -> None:
    from codinet.zoo.shelf import ZOO

    rows = [
        [
            entry["name"],
            entry["data"],
            entry["arch"],
            f"{entry['accuracy']:.2f}",
            f"{entry['cost_share']:.3f}",
            f"{entry['distinct_paths']}",
        ]
        for entry in entries
    ]
    if rows:
        headings = ["trained network", "data", "network", "accuracy, %", "cost share", "paths"]
        print_table(f"The zoo: use as {ZOO}NAME, or create_model(…, pretrained=NAME)", headings, rows)
    else:
        print("The zoo is empty; add a network with python -m tools.zoo_add.")
