"""Weights of a library's network: reading files of other programs, and loading them into a routed network."""

import copy
import hashlib
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from codinet import UserError, create_model
from codinet.adopt import import_vision
from codinet.config import ModelConfig
from codinet.files import DamagedError
from codinet.model import RoutedNetwork
from codinet.networks import library_names, load_library_weights, pretrained_weights, read_weights

KINDS = {"test_resnet": "fc", "test_convnext": "head.fc"}  # a ResNet and a chain, with the names of their classifiers
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def saved() -> dict[str, Tensors]:
    """The weights of a network with 7 classes of each kind."""
    try:
        timm = import_vision("timm")
    except UserError as error:
        pytest.skip(str(error))
    torch.manual_seed(1)
    return {kind: timm.create_model(kind, num_classes=7).state_dict() for kind in KINDS}


@pytest.fixture(scope="module")
def networks(saved: dict[str, Tensors]) -> dict[str, RoutedNetwork]:
    """A routed network with 5 classes of each kind; tests leave them as they are."""
    return {kind: create_model(f"timm:{kind}", num_classes=5, image_shape=(3, 32, 32)) for kind in saved}


@pytest.fixture
def network(networks: dict[str, RoutedNetwork]) -> RoutedNetwork:
    return copy.deepcopy(networks["test_resnet"])


def write(tensors: Any, file: Path) -> Path:
    if file.suffix == ".safetensors":
        save_file(tensors, file)
    else:
        torch.save(tensors, file)
    return file


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_all_but_the_classifier_is_loaded_for_other_classes(
    saved: dict[str, Tensors], networks: dict[str, RoutedNetwork], kind: str, suffix: str, tmp_path: Path
) -> None:
    model, before = copy.deepcopy(networks[kind]), networks[kind].state_dict()
    read = read_weights(write(saved[kind], tmp_path / f"weights.{suffix}"))
    assert load_library_weights(model, read, "the file") == ["classifier"]
    names = library_names(model)
    for name, tensor in model.state_dict().items():
        kept = name.startswith("routers.") or names[name].startswith(f"{KINDS[kind]}.")
        assert torch.equal(tensor, before[name] if kept else saved[kind][names[name]]), name


def test_the_classifier_is_loaded_for_the_same_number_of_classes(saved: dict[str, Tensors]) -> None:
    model = create_model("timm:test_resnet", num_classes=7, image_shape=(3, 32, 32))
    assert load_library_weights(model, saved["test_resnet"], "the file") == []
    assert torch.equal(model.state_dict()["fc.weight"], saved["test_resnet"]["fc.weight"])


@pytest.mark.parametrize(
    "wrap",
    [
        lambda tensors: {"state_dict": tensors, "epoch": 3, "arch": "resnet"},
        lambda tensors: {"model": OrderedDict(tensors), "optimizer": {"state": {}}},
        lambda tensors: {"state_dict_ema": {f"module.{name}": value for name, value in tensors.items()}},
        lambda tensors: {"state_dict": {f"module._orig_mod.{name}": value for name, value in tensors.items()}},
        lambda tensors: {"n_averaged": torch.tensor(9), **{f"module.{name}": v for name, v in tensors.items()}},
        lambda tensors: {name: value.half() if value.is_floating_point() else value for name, value in tensors.items()},
        lambda tensors: {name: value for name, value in tensors.items() if "num_batches" not in name},
    ],
)
def test_wrappers_of_training_scripts_are_removed(
    saved: dict[str, Tensors], network: RoutedNetwork, wrap: Any, tmp_path: Path
) -> None:
    read = read_weights(write(wrap(saved["test_resnet"]), tmp_path / "weights.pth"))
    assert load_library_weights(network, read, "the file") == ["classifier"]
    got = network.state_dict()["layer1.0.conv1.weight"]
    torch.testing.assert_close(got, saved["test_resnet"]["layer1.0.conv1.weight"], rtol=1e-3, atol=1e-4)


def test_weights_without_a_classifier_leave_the_initial_one(saved: dict[str, Tensors], network: RoutedNetwork) -> None:
    features = {name: value for name, value in saved["test_resnet"].items() if not name.startswith("fc.")}
    assert load_library_weights(network, features, "the file") == ["classifier"]
    assert torch.equal(network.state_dict()["conv1.0.weight"], features["conv1.0.weight"])


def test_weights_that_do_not_fit_are_named(saved: dict[str, Tensors], network: RoutedNetwork) -> None:
    tensors, before = saved["test_resnet"], {name: value.clone() for name, value in network.state_dict().items()}
    missing = {name: value for name, value in tensors.items() if name != "layer1.0.conv1.weight"}
    for wrong, sentence in (
        (missing, r"the file does not fit this network: layer1\.0\.conv1\.weight is missing\."),
        ({**tensors, "layer9.weight": torch.ones(2)}, r"layer9\.weight is not expected\."),
        ({**tensors, "bn1.weight": torch.ones(2)}, r"bn1\.weight is float32 2 instead of float32 32\."),
        ({"other": torch.ones(2)}, r"more differ\."),
    ):
        with pytest.raises(UserError, match=sentence):
            load_library_weights(network, wrong, "the file")
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


class Malicious:
    """Runs a command when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.file),)


def test_pickled_code_is_not_run(tmp_path: Path) -> None:
    trap, file = tmp_path / "trapped", tmp_path / "weights.pth"
    torch.save({"state_dict": {"a": torch.ones(2)}, "extra": Malicious(trap)}, file)
    with pytest.raises(DamagedError, match=r"weights\.pth is damaged or does not hold only tensors"):
        read_weights(file)
    file.write_bytes(pickle.dumps(Malicious(trap)))
    with pytest.raises(DamagedError, match="does not hold only tensors"):
        read_weights(file)
    assert not trap.exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ([torch.ones(2)], "does not hold weights by name"),
        ({"state_dict": {}}, "does not hold weights by name"),
        ({1: torch.ones(2)}, "does not hold weights by name"),
        (torch.ones(2), "does not hold weights by name"),
    ],
)
def test_other_contents_are_refused(content: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match=sentence):
        read_weights(write(content, tmp_path / "weights.pth"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for name in ("absent.pth", "absent.safetensors"):
        with pytest.raises(UserError, match=f"{name} does not exist; check the path"):
            read_weights(tmp_path / name)
    (tmp_path / "text.pth").write_text("text")
    (tmp_path / "text.safetensors").write_text("text")
    for name in ("text.pth", "text.safetensors"):
        with pytest.raises(DamagedError, match=f"{name} is damaged or"):
            read_weights(tmp_path / name)
    with pytest.raises(UserError, match="cannot be read"):
        read_weights(tmp_path)


def test_only_libraries_publish_weights() -> None:
    with pytest.raises(UserError, match="--pretrained requires a network of timm or torchvision, got resnet14"):
        pretrained_weights(ModelConfig("resnet14"))


def test_published_weights_bring_their_classes_and_print_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        torchvision = import_vision("torchvision")
    except UserError as error:
        pytest.skip(str(error))
    tensors = torchvision.models.resnet18(num_classes=1000).state_dict()
    digest = hashlib.sha256(write(tensors, tmp_path / "weights.pth").read_bytes()).hexdigest()
    file = (tmp_path / "weights.pth").rename(tmp_path / f"resnet18-{digest[:8]}.pth")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    published = type(torchvision.models.ResNet18_Weights.DEFAULT)
    monkeypatch.setattr(published, "url", property(lambda _: file.as_uri()))

    whole = create_model("torchvision:resnet18", pretrained=True)
    assert whole.config is not None
    assert whole.config.num_classes == 1000
    assert torch.equal(whole.get_submodule(whole.classifier).weight, tensors["fc.weight"])  # type: ignore[arg-type]
    new = create_model("torchvision:resnet18", pretrained=True, num_classes=3)
    assert len(new.get_submodule(new.classifier).weight) == 3  # type: ignore[arg-type]
    assert torch.equal(new.state_dict()["layer1.0.conv1.weight"], tensors["layer1.0.conv1.weight"])
    assert capsys.readouterr().out == ""
