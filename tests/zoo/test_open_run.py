import json
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
    with pytest.raises(UserError, match=rf"'digits-resnet20-07' is no network of the zoo .*perhaps you meant {NAME}"):
        open_run("zoo:digits-resnet20-07")


@pytest.mark.parametrize("name", ["", "../secret", "/etc/passwd", "."])
def test_a_name_leads_nowhere_else(zoo: Path, name: str) -> None:
    with pytest.raises(UserError, match="is no network of the zoo"):
        open_run(f"zoo:{name}")


def test_an_empty_zoo_says_so(empty_zoo: Path) -> None:
    with pytest.raises(UserError, match="the zoo holds no networks yet; add one with codinet zoo add RUN"):
        open_run("zoo:anything")


def test_what_needs_a_folder_says_how_to_get_one(zoo: Path) -> None:
    with pytest.raises(UserError, match=rf"is no folder to work in; .*codinet zoo unpack {NAME} --out DIR"):
        RunFolder.open(Path(f"zoo:{NAME}"))


def test_a_network_without_its_paths_says_how_to_get_them(zoo: Path) -> None:
    file = zoo / f"{NAME}.safetensors"
    tensors, about = files.load_tensors(file)
    files.save_tensors(file, {name: tensor for name, tensor in tensors.items() if not name.startswith(PREFIX)}, about)
    change(zoo, sha256=files.sha256_of(file))
    open_run(f"zoo:{NAME}").load_model()
    with pytest.raises(UserError, match=rf"comes without its path table; .*codinet zoo unpack {NAME}"):
        open_run(f"zoo:{NAME}").load_paths()


def test_weights_that_are_not_the_cards_are_refused(zoo: Path) -> None:
    file = zoo / f"{NAME}.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamagedError, match="is not the file that its card speaks of: the sha256 differs"):
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
    with pytest.raises(DamagedError, match=f"{key} is missing|is no card that this version reads"):
        Card.read(file)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"format": 2}, "is no card that this version reads"),
        ({"accuracy": "90"}, "accuracy is missing or of another kind"),
        ({"name": "other"}, "is the card of other"),
        ({"image_shape": [1, 8]}, "does not describe a network"),
        ({"cost": {}}, "does not describe a network"),
        ({"normalisation": {}}, "does not describe a network"),
        ({"recipe": {"network": {"arch": 20}}}, r"does not describe a network \(config.network.arch holds 20"),
    ],
)
def test_a_card_of_another_kind_is_refused(zoo: Path, values: dict[str, Any], words: str) -> None:
    with pytest.raises(DamagedError, match=words):
        Card.read(change(zoo, **values))


def test_a_card_that_is_no_json_is_refused(zoo: Path) -> None:
    (zoo / f"{NAME}.json").write_text("{")
    with pytest.raises(DamagedError, match="cannot be read as JSON; restore it, or install codinet again"):
        open_run(f"zoo:{NAME}")


def test_a_card_outlives_changes_of_the_settings(zoo: Path) -> None:
    recipe = Card.read(zoo / f"{NAME}.json")["recipe"]
    del recipe["losses"]["score_decay"], recipe["data"]
    recipe["network"]["once"] = 1
    config = Card.read(change(zoo, recipe=recipe)).config()
    assert config.losses.score_decay == RunConfig("").losses.score_decay
    assert config.network.arch == "resnet20"
