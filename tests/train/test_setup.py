"""The start and the teacher of a run, and its folder."""

import hashlib
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from codinet import files
from codinet.adopt import import_vision
from codinet.cli import main
from codinet.config import ExtraConfig, ModelConfig, NetworkConfig, RunConfig
from codinet.create import create_model
from codinet.data.dataset import Dataset
from codinet.errors import UserError
from codinet.files import load_tensors, save_tensors
from codinet.model import CoDiNet
from codinet.networks import load_parts
from codinet.run_reader import DataInfo
from codinet.runs import RunFolder
from codinet.train import loop, setup
from codinet.train.setup import Source, read_sources

CPU = torch.device("cpu")
Words = Callable[..., list[str]]
SameRun = Callable[[Path, Path], None]
Begun = tuple[Path, list[str]]
Said = pytest.CaptureFixture[str]


def source_of(model: CoDiNet) -> Source:
    brief = DataInfo("few", tuple("0123456789"), (0.0,), (1.0,), (1, 8, 8), "")
    network = NetworkConfig(arch=model.config.arch, routed=model.config.routed)
    return Source("runs/x", "0", network, brief, {name: each.clone() for name, each in model.state_dict().items()})


def networks(*, theirs: dict[str, object], ours: dict[str, object]) -> tuple[CoDiNet, CoDiNet]:
    torch.manual_seed(0)
    common: dict[str, object] = {"name": "resnet20", "in_channels": 1}
    return create_model(**common | theirs), create_model(**common | ours)  # type: ignore[arg-type, return-value]


def changed(before: dict[str, torch.Tensor], theirs: CoDiNet, ours: CoDiNet) -> set[str]:
    """Parts of the network that are now theirs; each is taken whole."""
    now = ours.state_dict()
    taken = {name for name in now if name in theirs.state_dict() and torch.equal(now[name], theirs.state_dict()[name])}
    kept = {name for name in now if torch.equal(now[name], before[name])}
    assert taken | kept == set(now)
    differing = taken - kept
    return {"routers" if "routers" in name else "fc" if name.startswith("fc") else "rest" for name in differing}


@pytest.mark.parametrize(
    ("theirs", "ours", "taken", "misfits"),
    [
        ({"routed": False}, {}, {"rest", "fc"}, []),
        ({"routed": False}, {"routed": False}, {"rest", "fc"}, []),
        ({}, {}, {"rest", "fc", "routers"}, []),
        ({}, {"routed": False}, {"rest", "fc"}, []),
        ({"router": "rnn"}, {}, {"rest", "fc"}, ["routers"]),
        ({"num_classes": 4, "routed": False}, {}, {"rest"}, ["classifier"]),
        ({"num_classes": 4, "router": "cnn"}, {}, {"rest"}, ["routers", "classifier"]),
    ],
)
def test_a_start_gives_what_fits(
    theirs: dict[str, object], ours: dict[str, object], taken: set[str], misfits: list[str]
) -> None:
    other, model = networks(theirs=theirs, ours=ours)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    assert load_parts(model, other.state_dict(), "--start runs/x") == misfits
    assert changed(before, other, model) == taken


@pytest.mark.parametrize("theirs", [{"name": "resnet32"}, {"name": "resnet20", "in_channels": 3}])
@pytest.mark.parametrize("turned", [False, True])
def test_a_start_that_does_not_fit_is_refused(theirs: dict[str, object], turned: bool) -> None:
    other, model = networks(theirs={} if turned else theirs, ours=theirs if turned else {})
    before = {name: each.clone() for name, each in model.state_dict().items()}
    with pytest.raises(
        UserError, match=r"--start runs/x does not fit this network: .* is (.* instead of|missing|not expected)"
    ):
        load_parts(model, other.state_dict(), "--start runs/x")
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_a_source_is_built_without_a_random_number_missing(finished_run: Path) -> None:
    source = read_sources(named(finished_run), Path("none"), resume=False).start.source
    assert source is not None
    torch.manual_seed(3)
    expected = torch.rand(())
    torch.manual_seed(3)
    model = source.build()
    assert torch.rand(()) == expected
    trained = RunFolder.open(finished_run).load_model().state_dict()
    assert all(torch.equal(each, trained[name]) for name, each in model.state_dict().items())


def named(run: Path, **more: str) -> RunConfig:
    return RunConfig("few", extra=ExtraConfig(start=str(run), **more))  # type: ignore[arg-type]


def test_the_digest_of_the_weights_file_is_noted(finished_run: Path) -> None:
    digest = hashlib.sha256((finished_run / "model.safetensors").read_bytes()).hexdigest()
    config = named(finished_run)
    noted = read_sources(config, Path("none"), resume=True).record_in(config)
    assert noted == replace(config, extra=replace(config.extra, start_sha256=digest))
    assert read_sources(noted, Path("none"), resume=True).record_in(noted) == noted
    with pytest.raises(UserError, match=rf"holds weights with sha256 {digest}, not 1f; restore them"):
        read_sources(named(finished_run, start_sha256="1f"), Path("none"), resume=False)


def test_a_network_of_the_zoo_is_a_source_too(zoo: Path, digits_run: Path, train_words: Words, tmp_path: Path) -> None:
    name = "zoo:digits-resnet20-06"
    words = ["--start", name, "--teacher", name, "--arch", "resnet20", "--epochs", "1", "--finetune", "1"]
    assert main(train_words(tmp_path / "out", *words)) == 0
    extra = RunFolder.open(tmp_path / "out").config.extra
    digest = hashlib.sha256((zoo / "digits-resnet20-06.safetensors").read_bytes()).hexdigest()
    assert (extra.start, extra.start_sha256) == (extra.teacher, extra.teacher_sha256) == (name, digest)
    found = read_sources(RunConfig("few", extra=ExtraConfig(start=name)), tmp_path, resume=False).start.source
    assert found is not None
    trained = RunFolder.open(digits_run).load_tensors()
    assert all(torch.allclose(found.tensors[key].float(), trained[key].float(), atol=1e-2) for key in trained)
    with pytest.raises(UserError, match=r"--start zoo:none cannot be used: Unknown network of the zoo 'none'"):
        read_sources(RunConfig("few", extra=ExtraConfig(start="zoo:none")), tmp_path, resume=False)


def change_a_weight(run: Path) -> None:
    tensors, about = load_tensors(run / "model.safetensors")
    save_tensors(run / "model.safetensors", tensors | {"fc.bias": tensors["fc.bias"] + 1}, about=about)


@pytest.fixture
def begun(tmp_path: Path, own_run: Path, train_words: Words) -> Begun:
    """A run of two epochs that begins from `own_run` and is taught by it, and the words that go on with it."""
    out = tmp_path / "out"
    words = train_words(out, "--start", str(own_run), "--teacher", str(own_run), "--distill", "0.5", "--resume")
    assert main(words) == 0
    for name in ("model.safetensors", "paths.safetensors", "evaluation.json", "metrics.jsonl"):
        shutil.copy(out / name, tmp_path / name)
    unfinish(out, stage=1)
    return out, words


def unfinish(out: Path, *, stage: int) -> None:
    """As if killed at the beginning of a stage."""
    (out / "evaluation.json").unlink()
    for file in (out / "checkpoints").iterdir():
        if not file.name.startswith(f"{stage}-"):
            file.unlink()


def test_a_source_may_move_but_not_change(
    tmp_path: Path, begun: Begun, own_run: Path, assert_same_run: SameRun, capsys: Said
) -> None:
    out, words = begun
    capsys.readouterr()
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(own_run, elsewhere)
    change_a_weight(own_run)
    assert main(words) == 2
    assert f"--start {own_run} holds other weights than when {out} was started" in capsys.readouterr().err
    assert main([str(elsewhere) if word == str(own_run) else word for word in words]) == 0
    assert_same_run(out, tmp_path)
    assert RunFolder.open(out).config.extra.start == str(own_run)


def test_a_run_that_has_begun_needs_its_teacher_and_not_its_start(
    tmp_path: Path, begun: Begun, own_run: Path, assert_same_run: SameRun, capsys: Said
) -> None:
    out, words = begun
    capsys.readouterr()
    shutil.move(own_run, tmp_path / "away")
    assert main(words) == 2
    assert f"--teacher {own_run} cannot be used: There is no run folder" in capsys.readouterr().err
    shutil.copytree(tmp_path / "away", tmp_path / "teacher")
    words[words.index("--teacher") + 1] = str(tmp_path / "teacher")
    assert main(words) == 0
    assert_same_run(out, tmp_path)
    shutil.rmtree(tmp_path / "teacher")
    words[words.index("--teacher") + 1] = str(own_run)
    assert main(words) == 0  # it is finished, and needs nobody


def test_without_a_checkpoint_a_run_needs_its_start(begun: Begun, own_run: Path, capsys: Said) -> None:
    out, words = begun
    shutil.rmtree(out / "checkpoints")
    (own_run / "model.safetensors").unlink()
    capsys.readouterr()
    assert main(words) == 2
    assert f"--start {own_run} cannot be used: {own_run}/model.safetensors is missing" in capsys.readouterr().err


def test_two_trainings_do_not_share_a_run_folder(
    tmp_path: Path,
    small_run: RunConfig,
    few: Dataset,
    held_by_another: Callable[[Path], AbstractContextManager[None]],
) -> None:
    out = tmp_path / "run"
    with (
        held_by_another(out / "checkpoints"),
        pytest.raises(UserError, match=r"Another training is running in .*run; wait for it or choose another --out"),
    ):
        loop.train(out, small_run, few, device=CPU, resume=True)
    assert not (out / "metrics.jsonl").exists()
    loop.train(out, small_run, few, device=CPU, resume=True)  # the other one was killed: it is free again
    assert (out / "evaluation.json").exists()


def test_a_refused_training_changes_nothing(
    tmp_path: Path,
    small_run: RunConfig,
    few: Dataset,
    held_by_another: Callable[[Path], AbstractContextManager[None]],
) -> None:
    out = tmp_path / "run"
    with held_by_another(out / "checkpoints"):
        for resume in (False, True):
            with pytest.raises(UserError, match="Another training is running in"):
                loop.train(out, replace(small_run, seed=5), few, device=CPU, resume=resume)
        assert [path.name for path in out.rglob("*")] == ["checkpoints", ".lock"]


def test_a_training_killed_before_it_wrote_anything_can_be_repeated(
    tmp_path: Path, small_run: RunConfig, few: Dataset
) -> None:
    out = tmp_path / "run"
    (out / "checkpoints").mkdir(parents=True)
    (out / "checkpoints" / ".lock").touch()
    (out / ".config.json.123.tmp").touch()
    loop.train(out, small_run, few, device=CPU)
    assert (out / "evaluation.json").exists()


def test_checkpoints_without_a_config_continue_the_same_run_only(
    tmp_path: Path, small_run: RunConfig, few: Dataset, assert_same_run: Callable[[Path, Path], None]
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "run"
    loop.train(whole, small_run, few, device=CPU)
    shutil.copytree(whole, out)
    for name in ("config.json", "evaluation.json", "model.safetensors"):
        (out / name).unlink()
    for other in (replace(small_run, seed=5), replace(small_run, network=replace(small_run.network, arch="resnet32"))):
        with pytest.raises(UserError, match=r"checkpoints of another run \((seed|arch) was .*\); restore"):
            loop.train(out, other, few, device=CPU, resume=True)
        assert not (out / "config.json").exists()
    loop.train(out, small_run, few, device=CPU, resume=True)
    assert_same_run(whole, out)


def test_checkpoints_that_record_no_run_need_its_config(tmp_path: Path, small_run: RunConfig, few: Dataset) -> None:
    out = tmp_path / "run"
    loop.train(out, small_run, few, device=CPU)
    for file in (out / "checkpoints").glob("*.safetensors"):  # as versions before this one wrote them
        tensors, about = files.load_tensors(file)
        del about["run"]
        files.save_tensors(file, tensors, about)
    (out / "evaluation.json").unlink()
    loop.train(out, small_run, few, device=CPU, resume=True)
    for name in ("config.json", "evaluation.json"):
        (out / name).unlink()
    for file in (out / "checkpoints").glob("*.safetensors"):
        tensors, about = files.load_tensors(file)
        about.pop("run", None)
        files.save_tensors(file, tensors, about)
    with pytest.raises(UserError, match=r"holds checkpoints but no config\.json"):
        loop.train(out, small_run, few, device=CPU, resume=True)


def test_published_weights_of_torchvision_are_a_source_of_our_own_network(
    tmp_path: Path, train_words: Words, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    vision = import_vision("torchvision")
    torch.manual_seed(3)
    published = vision.models.resnet50().state_dict()
    weights = vision.models.ResNet50_Weights
    monkeypatch.setattr(weights, "get_state_dict", lambda *_args, **_options: published)  # would be a download
    words = [
        "--arch",
        "resnet50",
        "--start",
        "torchvision:resnet50",
        "--epochs",
        "1",
        "--finetune",
        "0",
        "--budget",
        "0.9",
    ]
    colours = tmp_path / "colours.npz"
    pixels = np.random.default_rng(0).integers(0, 256, (24, 16, 16, 3), dtype=np.uint8)
    np.savez(colours, x_train=pixels[:16], y_train=np.arange(16) % 2, x_test=pixels[16:], y_test=np.arange(8) % 2)
    config = RunConfig(str(colours), extra=ExtraConfig(start="torchvision:resnet50"))
    model = CoDiNet(ModelConfig(arch="resnet50", num_classes=2))
    sources = read_sources(config, tmp_path, resume=False)
    assert setup._load_initial(model, sources, config.extra) == ["classifier"]
    for name in ("conv1.weight", "layer4.2.bn3.bias"):
        assert torch.equal(model.state_dict()[name], published[name])
    assert main(train_words(tmp_path / "out", *words, source=colours)) == 0
    assert "The classifier of torchvision:resnet50 does not fit; initialising a new one" in capsys.readouterr().err
    extra = RunFolder.open(tmp_path / "out").config.extra
    assert (extra.start, extra.start_sha256) == ("torchvision:resnet50", sources.start.sha256)
    assert main(train_words(tmp_path / "other", "--start", "torchvision:resnet50", source=colours)) == 2
    assert "--start torchvision:resnet50 does not fit this network" in capsys.readouterr().err.splitlines()[-1]
