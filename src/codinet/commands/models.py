"""`codinet models`: the networks that can be trained, and the trained ones of the zoo.

The numbers of the networks are stored here, because counting them takes seconds; a test compares them with the real
count. This command does not import torch.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from codinet.commands.printing import print_json, print_table
from codinet.errors import UserError


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
    Network("resnet50", 16, 25_557_032, 41_525_768, 4_089_184_256, image_size=224, classes=1000, paper_unit=1),
    Network("resnet101", 33, 44_549_160, 78_395_946, 7_801_405_440, image_size=224, classes=1000, paper_unit=1),
)


@dataclass(frozen=True)
class Args:
    json: bool = False
    """Print one JSON document."""


def run(args: Args) -> None:
    """Print the networks and the zoo."""
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
    _print_zoo(zoo)


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
