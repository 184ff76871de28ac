"""`save_pretrained` and `from_pretrained` of codinet's own networks."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard

from codinet import CoDiNet, ModelConfig, UserError, create_model


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(
            *("resnet20", True, "rnn"),
            num_classes=3,
            in_channels=1,
            image_shape=(1, 28, 28),
            classes=("zero", "one", "two|<b>"),
            mean=(33.3,),
            std=(78.6,),
            crop=0.9,
        ),
        ModelConfig("resnet32", routed=False, stride_on="1x1"),
    ],
)
def test_saving_and_loading_keep_config_and_weights(config: ModelConfig, tmp_path: Path) -> None:
    model = CoDiNet(config).eval()
    model.save_pretrained(tmp_path)
    loaded = CoDiNet.from_pretrained(tmp_path)
    assert loaded.config == config
    assert type(loaded.config) is ModelConfig
    assert type(loaded) is CoDiNet
    assert loaded.image_shape == config.image_shape
    state = loaded.state_dict()
    assert list(state) == list(model.state_dict())
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    x_BCHW = torch.randn(2, config.in_channels, 32, 32)
    with torch.no_grad():
        pairs = zip(model(x_BCHW), loaded.eval()(x_BCHW), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not list(tmp_path.glob("*.bin"))  # weights travel as safetensors only
    card = (tmp_path / "README.md").read_text()
    assert "license: mit\n" in card
    assert f'codinet.load("{tmp_path.name}")' in card
    assert "## Results" not in card
    if config.classes:
        assert "| classes | 3: zero, one, two\\|&lt;b&gt; |" in card
        assert "| images, C×H×W | 1×28×28 |\n| mean of bytes | 33.3 |\n| std of bytes | 78.6 |\n| crop" in card


def test_a_model_card_states_the_results_and_an_existing_card_is_kept(tmp_path: Path) -> None:
    model = create_model("resnet14")
    results = {"data": "mine", "accuracy": 87.654, "cost_share": 0.6004, "n": 1200}
    model.save_pretrained(tmp_path, results=results)
    card = ModelCard.load(tmp_path / "README.md")
    (measured,) = card.data.eval_results
    assert (measured.dataset_name, measured.metric_value) == ("mine", 87.65)
    assert {"codinet", "dynamic-inference", "resnet14"} <= set(card.data.tags)
    for row in (
        "| data | mine |",
        "| accuracy | 87.65 % |",
        "| mean cost, of the static network | 0.600 |",
        "| 1,200 |",
    ):
        assert row in card.text
    (tmp_path / "README.md").write_text("mine")
    model.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"
    for wrong in ({"speed": 3}, {"accuracy": "good"}, ["accuracy"]):
        with pytest.raises(UserError, match=r"of results is invalid|results must have names among data, accuracy"):
            model.save_pretrained(tmp_path, results=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("config.json", b"{", "cannot be read as JSON"),
        ("config.json", b"[]", "must be a JSON object with the name of a network as arch"),
        (
            "config.json",
            {"num_classes": 4},
            "of another network than resnet14: fc.bias is float32 3 instead of float32 4",
        ),
        ("config.json", {"num_classes": "3"}, "num_classes must be a whole number from 1 to 1000000, got '3'"),
        ("config.json", {"classes": ["a", 2, "c"]}, "classes must be names, got"),
        ("config.json", {"classes": ["a", "b"]}, "classes must have 3 entries, got 2"),
        ("config.json", {"mean": [1, 2, "3"]}, "mean must be finite numbers, got"),
        ("config.json", {"std": [1, 2, 0]}, "std must be positive numbers, got"),
        ("config.json", {"crop": 2}, "crop must be a finite number from 0.01 to 1, got 2"),
        ("config.json", {"std": [1.0]}, "std must have 3 entries, got 1"),
        ("config.json", {"arch": "resnet15"}, "Unknown architecture 'resnet15'"),
        ("model.safetensors", b"damaged", "is damaged or not a safetensors file"),
        ("model.safetensors", None, "model.safetensors does not exist; check the path"),
    ],
)
def test_invalid_saved_networks_are_refused(
    name: str, content: bytes | dict[str, Any] | None, sentence: str, tmp_path: Path
) -> None:
    create_model("resnet14", num_classes=3).save_pretrained(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    elif isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        (tmp_path / name).write_text(json.dumps(json.loads((tmp_path / name).read_text()) | content))
    with pytest.raises(UserError, match=sentence):
        CoDiNet.from_pretrained(tmp_path)


def test_configs_saved_without_image_shape_stay_loadable(tmp_path: Path) -> None:
    create_model("resnet14", num_classes=3).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    content = json.loads(file.read_text())
    for later in ("image_shape", "relaxation", "tau", "classes", "mean", "std", "crop"):
        del content[later]
    file.write_text(json.dumps(content))
    loaded = CoDiNet.from_pretrained(tmp_path)
    assert (loaded.config.num_classes, loaded.image_shape) == (3, None)
