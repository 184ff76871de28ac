"""`create_model(…, pretrained=…)`; the registry is tested in test_model.py."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from codinet import UserError, create_model, list_pretrained
from codinet.config import ModelConfig
from codinet.runs import open_run
from codinet.zoo.shelf import listed

NAME = "digits-resnet20-06"


def put(zoo: Path, name: str, **values: Any) -> None:
    """Another entry with the same weights."""
    content = {**json.loads((zoo / f"{NAME}.json").read_text()), "name": name, **values}
    (zoo / f"{name}.json").write_text(json.dumps(content))
    shutil.copy(zoo / f"{NAME}.safetensors", zoo / f"{name}.safetensors")


@pytest.mark.parametrize("pretrained", [NAME, "digits"])
def test_a_pretrained_network_has_the_weights_of_the_zoo(zoo: Path, pretrained: str) -> None:
    model = create_model("resnet20", pretrained=pretrained)
    assert not model.training
    wanted = open_run(f"zoo:{NAME}").load_model().state_dict()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in model.state_dict().items())
    assert create_model("resnet20", num_classes=10, in_channels=1, pretrained=pretrained).config == model.config


def test_a_data_set_selects_the_most_accurate_network(zoo: Path) -> None:
    accuracy = listed()[0]["accuracy"]
    put(zoo, "worse", accuracy=accuracy - 1, cost_share=0.1)
    put(zoo, "cheaper", cost_share=0.1)
    recipe = json.loads((zoo / f"{NAME}.json").read_text())["recipe"]
    static = {**recipe, "network": {**recipe["network"], "routed": False}, "losses": {"budget": None}}
    put(zoo, "static", accuracy=accuracy + 1, recipe=static, routed=False)
    assert list_pretrained() == ["cheaper", NAME, "static", "worse"]
    (zoo / f"{NAME}.safetensors").unlink()
    (zoo / "worse.safetensors").unlink()
    create_model("resnet20", pretrained="digits")  # which is neither of the two
    with pytest.raises(UserError, match="static of the zoo has routed=False, got True"):
        create_model("resnet20", pretrained="static")


@pytest.mark.parametrize(
    ("arch", "words", "sentence"),
    [
        ("resnet20", {"num_classes": 7}, "has num_classes=10, got 7; pass 10, or leave it out"),
        ("resnet20", {"in_channels": 3}, "has in_channels=1, got 3"),
        ("resnet20", {"router": "rnn"}, "has router='fc', got 'rnn'"),
        ("resnet32", {}, "has arch='resnet20', got 'resnet32'"),
        ("resnet21", {}, "Unknown architecture 'resnet21'"),
    ],
)
def test_differing_arguments_are_refused(zoo: Path, arch: str, words: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        create_model(arch, pretrained=NAME, **words)


def test_a_wrong_number_of_classes_for_a_data_set_is_refused(zoo: Path) -> None:
    with pytest.raises(UserError, match=f"{NAME} of the zoo has num_classes=10, got 100"):
        create_model("resnet20", num_classes=100, pretrained="digits")


def test_an_unknown_name_lists_the_known_ones(zoo: Path) -> None:
    with pytest.raises(UserError, match=rf"'digit' \(perhaps you meant digits\); choose from digits, {NAME}"):
        create_model("resnet20", pretrained="digit")
    with pytest.raises(UserError, match=rf"The zoo has no resnet32 with router fc for digits; it has {NAME}"):
        create_model("resnet32", pretrained="digits")


def test_an_empty_zoo_is_reported(empty_zoo: Path) -> None:
    assert list_pretrained() == []
    with pytest.raises(UserError, match="the zoo is empty"):
        create_model("resnet20", pretrained="cifar10")


def test_without_pretrained_the_zoo_is_not_read(zoo: Path) -> None:
    (zoo / f"{NAME}.json").write_text("{")
    assert create_model("resnet20").config == ModelConfig("resnet20")
    assert create_model("resnet20", num_classes=3, in_channels=1).in_channels == 1


@pytest.mark.parametrize("value", [torch.ones(2), ["weights"], 2])
def test_arguments_of_odd_types_are_refused(value: object) -> None:
    for name in ("pretrained", "widths", "blocks"):
        with pytest.raises(UserError, match=name):
            create_model("resnet14", **{name: value})  # type: ignore[arg-type]
