from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from codinet.config import RunConfig
from codinet.files import DamagedError
from codinet.zoo.card import FIELDS, Card

NAME = "digits-resnet20-06"


@pytest.mark.parametrize("key", FIELDS)
def test_every_field_is_required(change_card: Callable[..., Path], key: str) -> None:
    file = change_card(**{key: "removed"})
    with pytest.raises(DamagedError, match=f"{key} is missing|is not a card that this version reads"):
        Card.read(file)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"format": 2}, "is not a card that this version reads"),
        ({"accuracy": "90"}, "accuracy is missing or of the wrong type"),
        ({"name": "other"}, "is the card of 'other'"),
        ({"image_shape": [1, 8]}, "is not a valid card"),
        ({"cost": {}}, "is not a valid card"),
        ({"normalisation": {}}, "is not a valid card"),
        ({"recipe": {"network": {"arch": 20}}}, r"is not a valid card \(config.network.arch .*20"),
        ({"recipe": {"network": {"arch": "resnet32"}}}, "arch is 'resnet20', but 'resnet32' in the recipe"),
        ({"recipe": {"schedule": {"views": 0}}}, "--views"),
        ({"recipe": {"network": []}}, "config.network"),
        ({"arch": "resnet32"}, "arch is 'resnet32', but 'resnet20' in the recipe"),
        ({"router": "rnn"}, "router is 'rnn', but 'fc' in the recipe"),
        ({"seed": 7}, "seed is 7, but 0 in the recipe"),
        ({"data": "cifar10"}, "data is 'cifar10', but 'digits' in the recipe"),
        ({"normalisation": {"mean": [1.0], "std": [0.0]}}, r"data.std is invalid, got \[0.0\]"),
        ({"normalisation": {"mean": [1.0], "std": ["x"]}}, r"data.std is invalid, got \['x'\]"),
        ({"normalisation": {"mean": [1.0, 2.0], "std": [1.0]}}, r"data.mean is invalid, got \[1.0, 2.0\]"),
        ({"classes": []}, r"data.classes is invalid, got \[\]"),
        ({"classes": [1, 2]}, r"data.classes is invalid, got \[1, 2\]"),
        ({"image_shape": [1, 8, "8"]}, "data.image_shape is invalid"),
        ({"image_shape": [1, 10**6, 10**6]}, "data.image_shape is invalid"),
        ({"accuracy": 101.0}, "accuracy is invalid"),
        ({"macs": -1.0}, "macs is invalid"),
        ({"n": 0}, "n is invalid"),
        ({"as_trained": {}}, "accuracy is invalid"),
        ({"threshold": 2.0}, "threshold is invalid, got 2.0"),
        ({"wall_s": -3.0}, "wall_s is invalid, got -3.0"),
        ({"sha256": "abc"}, "sha256 must be 64 hexadecimal digits, got 'abc'"),
        ({"bytes": 0}, "bytes is invalid, got 0"),
        ({"curve": [[0.5, 90.0, 0.6]]}, "curve is invalid"),
        ({"curve": [[0.5, 101.0, 0.6, 500]]}, "curve is invalid"),
        ({"curve": [[0.5, 90.0, 0.6, 500], [0.5, 91.0, 0.6, 500]]}, "curve must have ascending thresholds"),
        ({"versions": {"torch": []}}, "versions is invalid"),
    ],
)
def test_invalid_cards_are_refused(change_card: Callable[..., Path], values: dict[str, Any], words: str) -> None:
    with pytest.raises(DamagedError, match=words):
        Card.read(change_card(**values))


def test_invalid_json_is_refused(zoo: Path) -> None:
    (zoo / f"{NAME}.json").write_text("{")
    with pytest.raises(DamagedError, match=r"cannot be read as JSON \(.*\); restore it, or install codinet again"):
        Card.read(zoo / f"{NAME}.json")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "[" * 100_000])
@pytest.mark.parametrize("key", ["accuracy", "wall_s", "normalisation"])
def test_non_finite_numbers_and_endless_nesting_are_refused(
    change_card: Callable[..., Path], key: str, number: str
) -> None:
    file = change_card(**{key: {"mean": ["odd"], "std": [1.0]} if key == "normalisation" else "odd"})
    file.write_text(file.read_text().replace('"odd"', number))
    with pytest.raises(DamagedError, match="cannot be read as JSON"):
        Card.read(file)


@pytest.mark.parametrize(
    "cost",
    [
        {"run_N": [1, 2]},
        {"run_N": [0] * 9},
        {"skip_N": ["0"] * 9},
        {"router_N": [-1] * 9},
        {"fixed": 0},
        {"fixed": 1.5},
        {"paper_unit": 3},
        {"image_shape": [1, 9, 9]},
        {"image_shape": 3},
        {"more": 1},
    ],
)
def test_impossible_costs_are_refused(zoo: Path, change_card: Callable[..., Path], cost: dict[str, Any]) -> None:
    known = Card.read(zoo / f"{NAME}.json")["cost"]
    with pytest.raises(DamagedError, match="cost is invalid, got"):
        Card.read(change_card(cost={**known, **cost}))


def test_settings_may_be_added_or_removed_later(zoo: Path, change_card: Callable[..., Path]) -> None:
    recipe = Card.read(zoo / f"{NAME}.json")["recipe"]
    del recipe["losses"]["score_decay"], recipe["data"]
    recipe["network"]["once"] = 1
    config = Card.read(change_card(recipe=recipe)).config()
    assert config.losses.score_decay == RunConfig("").losses.score_decay
    assert config.network.arch == "resnet20"
