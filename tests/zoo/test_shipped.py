"""The networks that come with codinet are what their cards say."""

from importlib.resources import files
from pathlib import Path

import pytest
import torch

from codinet.cost import block_costs
from codinet.data import DATA_ROOT
from codinet.data.catalogue import KNOWN
from codinet.evaluate import TOP5, evaluate_test_set, summarise
from codinet.records import PathTable
from codinet.zoo.card import BATCH
from codinet.zoo.shelf import PACKAGED, cards
from codinet.zoo.zoo_run import open_card
from tools.zoo_add import LIMIT

SHIPPED = [pytest.param(card, id=card.name) for card in cards(PACKAGED)]


def test_the_files_are_in_the_package() -> None:
    assert files("codinet.zoo").joinpath("weights", "README.md").is_file()
    assert Path(str(files("codinet.zoo").joinpath("weights"))) == PACKAGED


def test_every_network_has_both_files_and_all_are_small() -> None:
    weights, about = ({file.stem for file in PACKAGED.glob(f"*.{kind}")} for kind in ("safetensors", "json"))
    assert weights == about == {card.name for card in cards(PACKAGED)}  # which leaves out files that are not cards
    assert sum(file.stat().st_size for file in PACKAGED.glob("*.safetensors")) <= LIMIT


@pytest.mark.parametrize("card", SHIPPED)
def test_the_cost_is_that_of_the_card(card) -> None:
    model = open_card(card, PACKAGED).load_model()  # which checks the sha256
    assert block_costs(model, tuple(card["image_shape"])) == card.table()
    assert card["cost_share"] == pytest.approx(card["macs"] / card.table().static_macs)
    assert card["data"] in {known.name for known in KNOWN.values()}


@pytest.mark.parametrize("card", SHIPPED)
def test_the_paths_give_the_figures(card) -> None:
    paths = open_card(card, PACKAGED).load_paths()
    top5 = card.figures().get(TOP5)  # paths hold the answers only
    found = summarise(paths, card.table(), loss=card["loss"], top5=top5 and round(top5 * len(paths.label_T) / 100))
    assert found.summary() == pytest.approx(card.figures())


@pytest.mark.parametrize("card", SHIPPED)
def test_sample_images_and_a_curve_come_along(card) -> None:
    run = open_card(card, PACKAGED)
    samples, curve = run.sample_images(), run.threshold_curve()
    assert samples is not None
    assert len(samples.split) == 30
    paths = run.load_paths()
    assert torch.equal(paths.label_T[samples.index_S], samples.split.labels_N)
    assert len(samples.split.labels_N.unique()) == min(30, len(card["classes"]))
    (middle,) = (point for point in curve if point.threshold == 0.5)
    first = summarise(PathTable(*(column[: middle.n] for column in paths)), card.table(), loss=0)
    assert middle.accuracy == pytest.approx(first.accuracy, abs=0.2)  # engines may decide close cases differently
    assert middle.cost_share == pytest.approx(first.cost_share, abs=1e-3)
    assert (curve[0].threshold, curve[-1].threshold) == (0, 1)
    assert sum(file.stat().st_size for file in PACKAGED.glob("*.npz")) < 400_000


@pytest.mark.parametrize("card", SHIPPED)
def test_the_figures_are_reproduced(card) -> None:
    (known,) = (known for known in KNOWN.values() if known.name == card["data"])
    if known.layouts and known.locate(DATA_ROOT) is None:
        pytest.skip(f"{card['data']} is not under {DATA_ROOT}; CODINET_DATA names another place")
    entry = open_card(card, PACKAGED)
    device = torch.device("cpu")
    found = evaluate_test_set(entry.load_model(), entry.load_own_dataset(DATA_ROOT), device, batch=BATCH).summary()
    assert found["accuracy"] == card["accuracy"]
    assert found["cost_share"] == pytest.approx(card["cost_share"], abs=1e-4)
