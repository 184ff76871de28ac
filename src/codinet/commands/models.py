"""`codinet models`: the networks that can be trained, and those that are: the zoo."""

from dataclasses import dataclass
from typing import Any

from codinet.backbones import ARCHITECTURES
from codinet.commands.shared import print_json
from codinet.commands.tables import print_table
from codinet.commands.zoo import print_zoo
from codinet.cost import block_costs
from codinet.model import create_model, list_models
from codinet.zoo.shelf import listed


@dataclass(frozen=True)
class Args:
    json: bool = False
    """Print one JSON document."""


def run(args: Args) -> None:
    models = [_describe(name) for name in list_models()]
    if args.json:
        print_json({"models": models, "zoo": listed()})
        return
    headings = ["network", "blocks", "image", "parameters, static", "routed", "M MACs static", "paper's unit, G"]
    rows = [
        [
            model["name"],
            str(model["blocks"]),
            f"{model['image_size']}×{model['image_size']}",
            f"{model['parameters_static']:,}",
            f"{model['parameters_routed']:,}",
            f"{model['macs'] / 1e6:,.2f}",
            f"{model['paper_gmaccs']:.2f}",
        ]
        for model in models
    ]
    print_table("Networks (MACs: one per multiply-add)", headings, rows)
    print_zoo()


def _describe(name: str) -> dict[str, Any]:
    shape = ARCHITECTURES[name]
    classes = 10 if shape.image_size == 32 else 1000
    static, routed = (create_model(name, num_classes=classes, routed=routed) for routed in (False, True))
    table = block_costs(static, (3, shape.image_size, shape.image_size))
    return {
        "name": name,
        "blocks": shape.blocks,
        "image_size": shape.image_size,
        "classes": classes,
        "parameters_static": sum(parameter.numel() for parameter in static.parameters()),
        "parameters_routed": sum(parameter.numel() for parameter in routed.parameters()),
        "macs": table.static_macs,
        "paper_gmaccs": table.paper_gmaccs(table.static_macs),
    }
