"""Every command on a network of timm that was trained on an image folder, prepared as timm states."""

import base64
import contextlib
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from codinet.adopt import import_vision
from codinet.bench.by_name import create_untrained
from codinet.cli import main
from codinet.commands.library_input import library_input
from codinet.config import DataConfig, NetworkConfig, RunConfig
from codinet.data import load
from codinet.errors import UserError
from codinet.files import load_tensors, save_tensors
from codinet.networks import input_info
from codinet.predictor import Predictor
from codinet.runs import RunFolder
from codinet.sweep.plan import PlannedRun
from codinet.sweep.sweep_folder import is_finished
from codinet.zoo.zoo_run import open_zoo
from tools.zoo_add import add

ARCH = "timm:test_resnet"
CLASSES = 6
CPU = torch.device("cpu")
Said = pytest.CaptureFixture[str]


@dataclass(frozen=True)
class Trained:
    """A run on photographs, and what its training said."""

    photos: Path
    run: Path
    said: str


def train(source: Path | str, out: Path, *more: str) -> str:
    """Trains 1 + 1 epochs and returns what is printed on stderr."""
    words = ["train", str(source), "--arch", ARCH, "--epochs", "1", "--finetune", "1", "--device", "cpu"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        assert main([*words, "--out", str(out), *more]) == 0
    return said.getvalue()


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    try:
        import_vision("timm")
    except UserError as error:
        pytest.skip(str(error))
    photos, run = tmp_path_factory.mktemp("data") / "photos", tmp_path_factory.mktemp("runs") / "adopted"
    noise = np.random.default_rng(0)
    for label in range(CLASSES):
        (photos / f"class{label}").mkdir(parents=True)
        for number in range(6):
            values_HWC = noise.integers(0, 40, (40, 52, 3)) + 30 * label
            Image.fromarray(values_HWC.astype(np.uint8)).save(photos / f"class{label}" / f"{number}.png")
    return Trained(photos, run, train(photos, run, "--image-size", "32", "--batch", "10"))


@pytest.fixture
def answer(capsys: Said) -> Callable[..., Any]:
    """What a command prints with --json."""

    def ask(*words: str) -> Any:
        assert main([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return ask


def test_the_library_states_how_images_are_prepared(trained: Trained) -> None:
    stated, run = input_info(ARCH), RunFolder.open(trained.run)
    assert stated is not None
    assert stated.crop < 1
    assert (run.config.data.image_size, run.config.data.crop) == (32, stated.crop)
    assert (run.data.mean, run.data.std, run.data.crop) == (stated.mean, stated.std, stated.crop)
    assert run.groups == (1, 1, 1, 1)
    assert f"crop {stated.crop:g} (--crop)" in trained.said
    assert f"32×32, crop {stated.crop:g}\n" in trained.said
    assert "use --pretrained to start from weights that timm publishes" in trained.said


def test_settings_that_are_given_win_and_a_continued_run_keeps_its_own(trained: Trained, tmp_path: Path) -> None:
    config, stated = RunConfig("photos", network=NetworkConfig(arch=ARCH)), input_info(ARCH)
    assert stated is not None
    new = library_input(config, tmp_path, resume=False, folder=True)
    assert new.config.data == DataConfig(image_size=stated.size, crop=stated.crop)
    given = replace(config, data=DataConfig(image_size=48, crop=0.5))
    assert library_input(given, tmp_path, resume=False, folder=True).config == given
    arrays = library_input(config, tmp_path, resume=True, folder=False)
    assert (arrays.config, arrays.mean) == (config, stated.mean)
    continued = library_input(config, trained.run, resume=True, folder=True)
    assert continued.config.data == DataConfig(image_size=32, crop=stated.crop)
    own = replace(config, network=NetworkConfig())
    assert library_input(own, tmp_path, resume=False, folder=True) == (own, (), (), ())


def test_a_run_repeats_from_its_config_and_continues(
    trained: Trained, tmp_path: Path, assert_same_run: Callable[[Path, Path], None]
) -> None:
    shutil.copytree(trained.run, tmp_path / "run", ignore=shutil.ignore_patterns("evaluation.json", "paths.*"))
    train(trained.photos, tmp_path / "run", "--image-size", "32", "--batch", "10", "--resume")
    assert_same_run(trained.run, tmp_path / "run")
    assert main(["train", "--config", str(trained.run), "--out", str(tmp_path / "again"), "--device", "cpu"]) == 0
    assert_same_run(trained.run, tmp_path / "again")


def test_eval_repeats_the_evaluation_with_the_top_five(
    trained: Trained, answer: Callable[..., Any], capsys: Said
) -> None:
    expected = json.loads((trained.run / "evaluation.json").read_text())
    found = answer("eval", str(trained.run), "--device", "cpu", "--curve", "0.4")
    assert {key: value for key, value in found.items() if key != "curve"} == expected
    assert expected["accuracy"] <= expected["top5_accuracy"] <= 100
    assert [point["top5_accuracy"] for point in found["curve"]][-1] == expected["top5_accuracy"]
    assert main(["eval", str(trained.run), "--device", "cpu"]) == 0
    assert f"top-5 accuracy │ {expected['top5_accuracy']:.2f} %" in " ".join(capsys.readouterr().out.split())


def test_predict_and_explore_read_files_as_the_training_did(trained: Trained) -> None:
    from fastapi.testclient import TestClient

    from codinet.explorer.app import create_app

    run = RunFolder.open(trained.run)
    dataset, paths = run.load_own_dataset(trained.photos.parent), run.load_paths()
    predictor = Predictor(run, CPU)
    files = sorted(trained.photos.glob("*/*.png"))
    held_out = [file for file in files if predictor.read(file).tolist() in dataset.test.images_NCHW.tolist()]
    assert len(held_out) == len(dataset.test)
    found = [predictor.predict(file) for file in held_out]
    assert [one.path for one in found] == [tuple(path) for path in paths.path_TN.tolist()]
    whole = load(str(trained.photos), Path(), image_size=32)
    assert not torch.equal(whole.test.images_NCHW, dataset.test.images_NCHW)
    with TestClient(create_app(run, dataset), base_url="http://127.0.0.1:8000") as client:
        assert client.get("/api/run").json()["groups"] == [1, 1, 1, 1]
        octets = {"content-type": "application/octet-stream"}
        sent = client.post("/api/route", content=held_out[0].read_bytes(), headers=octets).json()["image"]
        picture = base64.b64decode(sent["picture"].partition(",")[2])  # as the page sends it from then on
        again = client.post("/api/route", params={"cropped": True}, content=picture, headers=octets).json()["image"]
        chosen = client.get("/api/images/0/route").json()["image"]
    assert sent == again == chosen
    assert tuple(sent["path"]) == found[0].path


def test_report_shows_groups_and_top_five(trained: Trained, tmp_path: Path) -> None:
    run = shutil.copytree(trained.run, tmp_path / "run")
    assert main(["report", str(run), "--out", str(tmp_path / "report"), "--device", "cpu"]) == 0
    page = (tmp_path / "report" / "index.html").read_text()
    assert "top-5 accuracy, %" in page
    assert ARCH in page
    analysis = json.loads((run / "analysis.json").read_text())
    assert "the routed network's own last layer" in json.dumps(analysis)


@pytest.mark.parametrize("more", [[], ["--train"]])
def test_bench_by_name(trained: Trained, answer: Callable[..., Any], more: list[str]) -> None:
    size = ["--image-size", "32", "--batch", "2", "--rounds", "1"]
    rows = answer("bench", "timm:test_convnext", *size, *(more or ["--engines", "gather", "--images", "2"]))["rows"]
    if more:
        assert [(row["routed"], row["arch"]) for row in rows] == [
            (False, "timm:test_convnext"),
            (True, "timm:test_convnext"),
        ]
    else:
        assert "gather" in [row["engine"] for row in rows]


def test_networks_by_name_get_the_size_they_were_published_for() -> None:
    assert create_untrained("resnet20").image_shape == (3, 32, 32)
    assert create_untrained("resnet20", image_size=16).image_shape == (3, 16, 16)
    model, shape, classes = create_untrained("torchvision:mobilenet_v3_small", image_size=64)
    assert (shape, classes, model.image_shape) == ((3, 64, 64), 1000, (3, 64, 64))
    with pytest.raises(UserError, match="--image-size must be a whole number from 8"):
        create_untrained(ARCH, image_size=2)


def test_bench_of_a_run_uses_its_own_images(trained: Trained, answer: Callable[..., Any], capsys: Said) -> None:
    rows = answer("bench", str(trained.run), "--batch", "2", "--rounds", "1", "--images", "2", "--engines", "gather")
    assert rows["rows"][-1]["engine"] == "gather"
    assert main(["bench", str(trained.run), "--image-size", "64"]) == 2
    assert "--image-size applies to networks by name" in capsys.readouterr().err


def test_models_lists_networks_of_a_library(trained: Trained, answer: Callable[..., Any], capsys: Said) -> None:
    listed = answer("models", "timm:test_*t")
    blocks = {entry["name"]: entry["blocks"] for entry in listed["models"]}
    assert blocks[ARCH] == "layer*.*"
    assert blocks["timm:test_convnext"] == "stages.*.blocks.*"
    assert "blocks" not in answer("models", "timm:*")["models"][0]
    assert main(["models"]) == 0
    assert "timm:NAME" in capsys.readouterr().out


def test_a_sweep_knows_a_finished_run_whose_size_the_library_chose(trained: Trained) -> None:
    config = RunFolder.open(trained.run).config

    def finished(data: DataConfig) -> bool:
        return is_finished(trained.run.parent, PlannedRun(trained.run.name, "", replace(config, data=data)))

    assert finished(DataConfig())
    assert finished(config.data)
    assert not finished(DataConfig(image_size=64))
    assert not finished(DataConfig(crop=1.0))


def test_the_zoo_holds_a_network_of_a_library(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = train("digits", tmp_path / "run", "--batch", "256", "--finetune", "0")
    run = RunFolder.open(tmp_path / "run")
    assert (run.config.data, run.data.crop) == (DataConfig(), 1)
    assert run.data.mean == load("digits", Path()).mean  # of grey images
    assert "states for it" not in said
    monkeypatch.setenv("CODINET_ZOO", str(tmp_path / "zoo"))
    card = add(run, "digits-test-resnet", Path(), device=CPU)
    assert card.content["groups"] == [1, 1, 1, 1]
    assert card["versions"]["timm"] == run.environment["timm"]
    assert card.figures()["top5_accuracy"] >= card.figures()["accuracy"]
    zoo = open_zoo("digits-test-resnet")
    assert zoo.groups == run.groups
    assert zoo.load_evaluation()["distinct_paths"] == len(zoo.load_paths().path_TN.unique(dim=0))
    images_BCHW = torch.randn(2, *run.data.image_shape)
    ours, theirs = (each.load_model()(images_BCHW).logits_BK for each in (run, zoo))
    torch.testing.assert_close(ours, theirs, atol=0.02, rtol=0)


# Bad input


def refused(words: list[str], capsys: Said) -> str:
    """The last line of stderr of a command that is refused; others are notes."""
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--arch", "timm:resnet19"], "has no network 'resnet19' (perhaps you meant resnet18)"),
        (["--arch", "torchvision:resnet19"], "has no network 'resnet19' (perhaps you meant resnet18)"),
        (["--arch", "timm:"], "timm: must be followed by the name of a network"),
        (["--arch", "torch:resnet18:x"], "A network must be one of codinet's own, timm:NAME, torchvision:NAME or"),
        (["--arch", "no_such_package.nets:make"], "no_such_package.nets:make cannot be imported"),
        (["--arch", ARCH, "--pretrained"], f"The published weights of {ARCH} cannot be loaded"),
        (
            ["--arch", ARCH, "--weights", "{photos}/misfit.safetensors"],
            "does not fit this network: bn1.bias is float32 1 instead of",
        ),
        (["--arch", ARCH, "--weights", "{photos}/none.pth"], "none.pth does not exist"),
        (["--arch", ARCH, "--blocks", "nothing.*"], f"{ARCH} cannot be routed"),
        (["--arch", ARCH, "--crop", "0"], "--crop must be from 0.01 to 1, got 0"),
        (["--arch", "resnet20", "--pretrained"], "--pretrained requires a network of timm or torchvision"),
    ],
)
def test_networks_and_weights_that_cannot_be_used(
    trained: Trained, tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch, flags: list[str], expected: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # as without a network, but at once
    tensors, _ = load_tensors(trained.run / "model.safetensors")
    misfit = tmp_path / "misfit.safetensors"
    save_tensors(misfit, {name: tensor[..., :1].clone() for name, tensor in tensors.items() if tensor.ndim})
    words = [flag.replace("{photos}", str(tmp_path)) for flag in flags]
    out = ["--image-size", "32", "--batch", "10", "--device", "cpu", "--out", str(tmp_path / "out")]
    assert expected in refused(["train", str(trained.photos), *out, *words], capsys)
    assert not (tmp_path / "out").exists()


def test_a_missing_extra_names_the_command_that_installs_it(
    trained: Trained, tmp_path: Path, capsys: Said, hidden_timm: None
) -> None:
    for words in (["train", str(trained.photos), "--arch", ARCH, "--out", str(tmp_path / "out")], ["bench", ARCH]):
        said = refused([*words, "--device", "cpu"], capsys)
        assert "install it with pip install timm torchvision" in said
    assert "pip install timm torchvision" in refused(["models", "timm:*"], capsys)


@pytest.fixture
def hidden_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    """timm looks as if it were not installed."""
    import importlib

    real = importlib.import_module

    def without(name: str, package: str | None = None) -> Any:
        if name.split(".")[0] == "timm":
            raise ImportError("No module named 'timm'")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", without)


def test_arrays_cannot_be_cropped(digits_npz: Path, tmp_path: Path, capsys: Said) -> None:
    words = ["train", str(digits_npz), "--crop", "0.9", "--device", "cpu", "--out", str(tmp_path / "out")]
    assert "Only image folders can be cropped" in refused(words, capsys)


def test_a_function_of_the_current_folder_is_a_network(
    trained: Trained, tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_nets.py").write_text(
        "import timm\n\n\ndef make(num_classes):\n    return timm.create_model('test_resnet', num_classes=num_classes)"
    )
    monkeypatch.chdir(tmp_path)
    words = ["--arch", "own_nets:make", "--image-size", "32", "--batch", "10"]
    said = train(trained.photos, tmp_path / "run", *words)
    assert "states for it" not in said
    run = RunFolder.open(tmp_path / "run")
    assert run.config.data.crop is None
    from codinet import specs

    monkeypatch.setattr(specs, "_allowed", set())
    assert "set CODINET_ALLOW_CODE=own_nets:make" in refused(["eval", "run", "--device", "cpu"], capsys)
    monkeypatch.setenv(specs.ALLOWED_CODE, "own_nets:make")
    assert main(["eval", "run", "--device", "cpu"]) == 0
