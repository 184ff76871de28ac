import contextlib
import io
import json

import pytest
import torch

from codinet import block_costs, create_model, list_models
from codinet.backbones import ARCHITECTURES
from codinet.cli import main
from codinet.commands.models import NETWORKS, Network


@pytest.fixture(scope="module")
def document() -> dict[str, list[dict[str, object]]]:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main(["models", "--json"]) == 0
    return json.loads(said.getvalue())


def test_every_network_is_listed(document: dict[str, list[dict[str, object]]]) -> None:
    assert [model["name"] for model in document["models"]] == list_models()
    assert isinstance(document["zoo"], list)


def test_the_numbers_are_the_papers(document: dict[str, list[dict[str, object]]]) -> None:
    (model,) = (model for model in document["models"] if model["name"] == "resnet110")
    assert model["blocks"] == 54
    assert model["parameters_static"] == 1_727_962
    assert model["parameters_routed"] == 1_826_902
    assert model["macs"] == 252_887_680
    assert model["paper_gmaccs"] == pytest.approx(0.51, abs=0.005)


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)
def test_the_stored_numbers_are_the_real_count(network: Network) -> None:
    side = ARCHITECTURES[network.name].image_size
    classes = 10 if side == 32 else 1000
    with torch.device("meta"):  # nothing is computed; only shapes count
        static, routed = (create_model(network.name, num_classes=classes, routed=routed) for routed in (False, True))
    table = block_costs(static, (3, side, side))
    assert network.describe() == {
        "name": network.name,
        "blocks": ARCHITECTURES[network.name].blocks,
        "image_size": side,
        "classes": classes,
        "parameters_static": sum(parameter.numel() for parameter in static.parameters()),
        "parameters_routed": sum(parameter.numel() for parameter in routed.parameters()),
        "macs": table.static_macs,
        "paper_gmaccs": table.paper_gmaccs(table.static_macs),
    }
