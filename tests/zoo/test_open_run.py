import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from codinet import files
from codinet.config import RunConfig
from codinet.errors import UserError
from codinet.files import DamagedError
from codinet.runs import RunFolder
from codinet.zoo.card import FIELDS, Card
from codinet.zoo.open_run import ZooRun, open_run
from codinet.zoo.paths import PREFIX

NAME = "digits-resnet20-06"


def test_both_kinds_open_alike(zoo: Path, digits_run: Path) -> None:
    folder, entry = open_run(digits_run), open_run(Path(f"zoo:{NAME}"))
    assert folder == RunFolder.open(digits_run)
    assert isinstance(entry, ZooRun)
    assert entry.finished
    assert entry.metrics() == []
    assert (entry.config, entry.data) == (folder.config, folder.data)
    assert entry.load_evaluation() == entry.card.figures()
    assert entry.environment["commit"] == folder.environment["commit"]
    images_BCHW = torch.randn(4, 1, 8, 8)
    theirs, ours = (run.load_model()(images_BCHW).logits_BK for run in (folder, entry))
    assert ours.dtype == torch.float32
    assert torch.allclose(ours, theirs, atol=0.05)
    assert not torch.equal(ours, theirs)


def test_a_name_that_is_not_there_is_told_with_those_that_are(zoo: Path) -> None:
    with pytest.raises(UserError, match=rf"Unknown network of the zoo 'digits-resnet20-07' \(perhaps you meant {NAME}"):
        open_run("zoo:digits-resnet20-07")


@pytest.mark.parametrize("name", ["", "../secret", "/etc/passwd", "."])
def test_a_name_leads_nowhere_else(zoo: Path, name: str) -> None:
    with pytest.raises(UserError, match="Unknown network of the zoo"):
        open_run(f"zoo:{name}")


def test_an_empty_zoo_says_so(empty_zoo: Path) -> None:
    with pytest.raises(UserError, match="the zoo is empty; add a network with codinet zoo add RUN"):
        open_run("zoo:anything")


def test_what_needs_a_folder_says_how_to_get_one(zoo: Path) -> None:
    with pytest.raises(UserError, match=rf"is not a folder; .*codinet zoo unpack {NAME} --out DIR"):
        RunFolder.open(Path(f"zoo:{NAME}"))


def test_a_network_without_its_paths_says_how_to_get_them(zoo: Path) -> None:
    file = zoo / f"{NAME}.safetensors"
    tensors, about = files.load_tensors(file)
    files.save_tensors(file, {name: tensor for name, tensor in tensors.items() if not name.startswith(PREFIX)}, about)
    change(zoo, sha256=files.sha256_of(file), bytes=file.stat().st_size)
    open_run(f"zoo:{NAME}").load_model()
    with pytest.raises(UserError, match=rf"comes without its path table; .*codinet zoo unpack {NAME}"):
        open_run(f"zoo:{NAME}").load_paths()


def test_weights_that_are_not_the_cards_are_refused(zoo: Path) -> None:
    file = zoo / f"{NAME}.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamagedError, match="is not the file that its card describes: the sha256 differs"):
        open_run(f"zoo:{NAME}").load_model()
    file.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        open_run(f"zoo:{NAME}").load_model()


def change(zoo: Path, **values: Any) -> Path:
    file = zoo / f"{NAME}.json"
    content = {**json.loads(file.read_text()), **values}
    file.write_text(json.dumps({key: value for key, value in content.items() if value != "gone"}))
    return file


@pytest.mark.parametrize("key", FIELDS)
def test_every_field_of_a_card_is_needed(zoo: Path, key: str) -> None:
    file = change(zoo, **{key: "gone"})
    with pytest.raises(DamagedError, match=f"{key} is missing|is not a card that this version reads"):
        Card.read(file)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"format": 2}, "is not a card that this version reads"),
        ({"accuracy": "90"}, "accuracy is missing or of the wrong type"),
        ({"name": "other"}, "is the card of 'other'"),
        ({"image_shape": [1, 8]}, "does not describe a network"),
        ({"cost": {}}, "does not describe a network"),
        ({"normalisation": {}}, "does not describe a network"),
        ({"recipe": {"network": {"arch": 20}}}, r"does not describe a network \(config.network.arch .*20"),
        ({"recipe": {"network": {"arch": "resnet32"}}}, "arch is 'resnet20', but 'resnet32' in the recipe"),
        ({"recipe": {"schedule": {"views": 0}}}, "--views"),
        ({"recipe": {"network": []}}, "config.network"),
        ({"arch": "resnet32"}, "arch is 'resnet32', but 'resnet20' in the recipe"),
        ({"router": "rnn"}, "router is 'rnn', but 'fc' in the recipe"),
        ({"seed": 7}, "seed is 7, but 0 in the recipe"),
        ({"data": "cifar10"}, "data is 'cifar10', but 'digits' in the recipe"),
        ({"normalisation": {"mean": [1.0], "std": [0.0]}}, r"data.std holds \[0.0\]"),
        ({"normalisation": {"mean": [1.0], "std": ["x"]}}, r"data.std holds \['x'\]"),
        ({"normalisation": {"mean": [1.0, 2.0], "std": [1.0]}}, r"data.mean holds \[1.0, 2.0\]"),
        ({"classes": []}, r"data.classes holds \[\]"),
        ({"classes": [1, 2]}, r"data.classes holds \[1, 2\]"),
        ({"image_shape": [1, 8, "8"]}, "data.image_shape holds"),
        ({"image_shape": [1, 10**6, 10**6]}, "data.image_shape holds"),
        ({"accuracy": 101.0}, "accuracy is not a possible figure"),
        ({"macs": -1.0}, "macs is not a possible figure"),
        ({"n": 0}, "n is not a possible figure"),
        ({"as_trained": {}}, "accuracy is not a possible figure"),
        ({"threshold": 2.0}, "threshold holds 2.0"),
        ({"wall_s": -3.0}, "wall_s holds -3.0"),
        ({"sha256": "abc"}, "sha256 is 'abc', not 64 hexadecimal digits"),
        ({"bytes": 0}, "bytes holds 0"),
        ({"versions": {"torch": []}}, "versions holds"),
    ],
)
def test_a_card_of_another_kind_is_refused(zoo: Path, values: dict[str, Any], words: str) -> None:
    with pytest.raises(DamagedError, match=words):
        Card.read(change(zoo, **values))


def test_a_card_that_is_no_json_is_refused(zoo: Path) -> None:
    (zoo / f"{NAME}.json").write_text("{")
    with pytest.raises(DamagedError, match=r"cannot be read as JSON \(.*\); restore it, or install codinet again"):
        open_run(f"zoo:{NAME}")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "[" * 100_000])
@pytest.mark.parametrize("key", ["accuracy", "wall_s", "normalisation"])
def test_a_card_with_numbers_that_are_not_finite_is_refused(zoo: Path, key: str, number: str) -> None:
    file = change(zoo, **{key: {"mean": ["odd"], "std": [1.0]} if key == "normalisation" else "odd"})
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
def test_costs_that_no_network_has_are_refused(zoo: Path, cost: dict[str, Any]) -> None:
    known = Card.read(zoo / f"{NAME}.json")["cost"]
    with pytest.raises(DamagedError, match=r"cost holds .*, which does not fit"):
        Card.read(change(zoo, cost={**known, **cost}))


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("run_probability", lambda tensor: tensor[:, :3]),
        ("run_probability", lambda tensor: tensor.float()),
        ("label", lambda tensor: tensor + 10),
        ("label", lambda tensor: tensor[:3]),
        ("prediction", lambda tensor: tensor - 10),
        ("confidence", lambda tensor: tensor * torch.nan),
        ("confidence", lambda tensor: tensor.long()),
        ("confidence", None),
    ],
)
def test_a_path_table_of_another_network_is_refused(zoo: Path, name: str, spoil: Any) -> None:
    file = zoo / f"{NAME}.safetensors"
    tensors, about = files.load_tensors(file)
    column = tensors.pop(PREFIX + name)
    files.save_tensors(file, tensors if spoil is None else {**tensors, PREFIX + name: spoil(column)}, about)
    change(zoo, sha256=files.sha256_of(file), bytes=file.stat().st_size)
    with pytest.raises(DamagedError, match=r"has the path table of another network \("):
        open_run(f"zoo:{NAME}").load_paths()


def test_weights_that_are_a_named_pipe_are_refused_and_do_not_block(zoo: Path) -> None:
    (zoo / f"{NAME}.safetensors").unlink()
    os.mkfifo(zoo / f"{NAME}.safetensors")
    with pytest.raises(UserError, match="is not the file that its card describes: its size differs"):
        open_run(f"zoo:{NAME}").load_model()
    (zoo / f"{NAME}.json").unlink()
    os.mkfifo(zoo / f"{NAME}.json")
    with pytest.raises(UserError, match="cannot be read"):
        open_run(f"zoo:{NAME}")


def test_a_card_outlives_changes_of_the_settings(zoo: Path) -> None:
    recipe = Card.read(zoo / f"{NAME}.json")["recipe"]
    del recipe["losses"]["score_decay"], recipe["data"]
    recipe["network"]["once"] = 1
    config = Card.read(change(zoo, recipe=recipe)).config()
    assert config.losses.score_decay == RunConfig("").losses.score_decay
    assert config.network.arch == "resnet20"
