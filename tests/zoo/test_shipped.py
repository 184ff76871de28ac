"""The networks that come with codinet are what their cards say."""

from importlib.resources import files
from pathlib import Path

import pytest
import torch

from codinet.cost import block_costs
from codinet.data import DATA_ROOT
from codinet.data.catalogue import list_known
from codinet.evaluate import summarise
from codinet.runs import measure
from codinet.zoo.add import BATCH, LIMIT
from codinet.zoo.open_run import open_entry
from codinet.zoo.same_images import same_data
from codinet.zoo.shelf import PACKAGED, cards

SHIPPED = [pytest.param(card, id=card.name) for card in cards(PACKAGED)]


def test_they_are_files_of_the_package() -> None:
    assert files("codinet.zoo").joinpath("weights", "README.md").is_file()
    assert Path(str(files("codinet.zoo").joinpath("weights"))) == PACKAGED


def test_every_file_has_its_other_half_and_all_are_small() -> None:
    weights, about = ({file.stem for file in PACKAGED.glob(f"*.{kind}")} for kind in ("safetensors", "json"))
    assert weights == about == {card.name for card in cards(PACKAGED)}  # which leaves out what is no card
    assert sum(file.stat().st_size for file in PACKAGED.glob("*.safetensors")) <= LIMIT


@pytest.mark.parametrize("card", SHIPPED)
def test_the_network_builds_and_costs_what_its_card_says(card) -> None:
    model = open_entry(card, PACKAGED).load_model()  # which checks the sha256
    assert block_costs(model, tuple(card["image_shape"])) == card.table()
    assert card["cost_share"] == pytest.approx(card["macs"] / card.table().static_macs)
    assert card["data"] in {known.name for known in list_known()}


@pytest.mark.parametrize("card", SHIPPED)
def test_its_paths_are_those_of_its_figures(card) -> None:
    paths = open_entry(card, PACKAGED).load_paths()
    assert summarise(paths, card.table(), loss=card["loss"]).summary() == pytest.approx(card.figures())


@pytest.mark.parametrize("card", SHIPPED)
def test_the_figures_are_found_again(card) -> None:
    (known,) = (known for known in list_known() if known.name == card["data"])
    if known.layouts and known.locate(DATA_ROOT) is None:
        pytest.skip(f"{card['data']} is not under {DATA_ROOT}; CODINET_DATA names another place")
    entry = open_entry(card, PACKAGED)
    device = torch.device("cpu")
    found = measure(entry.load_model(), same_data(entry, DATA_ROOT), device, batch=BATCH).summary()
    assert found["accuracy"] == card["accuracy"]
    assert found["cost_share"] == pytest.approx(card["cost_share"], abs=1e-4)
