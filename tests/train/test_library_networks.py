"""Networks that are not codinet's own train like ours: resumed exactly, static, taught and teaching, at a budget."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from codinet import files
from codinet.cli import main
from codinet.config import NetworkConfig, RunConfig, to_dict
from codinet.data import Dataset
from codinet.errors import UserError
from codinet.model import RoutedNetwork, routed_step
from codinet.networks import build, supports_drop_path
from codinet.presets import as_static, default_preset, modern
from codinet.relaxation import gumbel
from codinet.resolving import resolve
from codinet.run_reader import DataInfo
from codinet.runs import RunFolder
from codinet.specs import allow_code
from codinet.train import loop
from codinet.train.distributed import synchronised

SameRun = Callable[[Path, Path], None]
Train = Callable[..., Any]

# A network with everything that draws random numbers or keeps statistics, and a constant that is not saved.
SOURCE = """
import torch
from torch import nn


class DropPath(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, x):
        if not self.training:
            return x
        return x * x.new_empty(len(x), 1, 1, 1).bernoulli_(1 - self.rate) / (1 - self.rate)


class Residual(nn.Module):
    def __init__(self, width, drop_path):
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.GELU()
        self.drop, self.drop_path = nn.Dropout(0.1), DropPath(drop_path)
        self.register_buffer("mask", torch.ones(1), persistent=False)

    def forward(self, x):
        return x + self.drop_path(self.drop(self.act(self.norm(self.conv(x))))) * self.mask


class Net(nn.Module):
    def __init__(self, classes, channels, drop_path):
        super().__init__()
        self.stem = nn.Conv2d(channels, 8, 3, padding=1)
        self.body = nn.Sequential(*(Residual(8, drop_path) for _ in range(3)))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(8, classes))

    def forward(self, x):
        return self.head(self.body(self.stem(x)))


def make_net(num_classes, in_channels, drop_path=0.0):
    return Net(num_classes, in_channels, drop_path)


def plain_net(num_classes, in_channels):
    return Net(num_classes, in_channels, 0.0)
"""
ARCH = "nets_of_a_user:make_net"
BLOCKS = "body.*"


@pytest.fixture(scope="module", autouse=True)
def user_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a module of the user's own that can be imported."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "nets_of_a_user.py").write_text(SOURCE)
    sys.path.insert(0, str(folder))
    allow_code(ARCH)
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def config(digits_npz: Path) -> RunConfig:
    """2 + 1 epochs of four steps by the preset for such networks."""
    made = modern(str(digits_npz))
    schedule = replace(made.schedule, epochs=2, finetune=1, batch=16, lr=3e-3)
    network = NetworkConfig(arch=ARCH, blocks=BLOCKS, drop_path=0.2)
    return resolve(replace(made, network=network, schedule=schedule, extra=replace(made.extra, ema=0.9)))


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory, config: RunConfig, few: Dataset, train: Train) -> Path:
    """The run that nothing stopped."""
    out = tmp_path_factory.mktemp("library") / "uncut"
    train(out, config, few)
    return out


@pytest.mark.parametrize("steps", [3, 6, 11])
def test_a_stopped_run_with_dropout_and_drop_path_goes_on_exactly(
    tmp_path: Path,
    train: Train,
    config: RunConfig,
    few: Dataset,
    uncut: Path,
    assert_same_run: SameRun,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
) -> None:
    monkeypatch.setattr(loop, "SAVE_SECONDS", -1)
    train(tmp_path / "run", config, few, stop_after=steps)
    listener = train(tmp_path / "run", config, few, resume=True)
    assert listener.done == steps - 1
    assert_same_run(tmp_path / "run", uncut)


def test_such_networks_are_static_too_and_any_network_teaches_any_other(
    tmp_path: Path, train: Train, config: RunConfig, few: Dataset, small_run: RunConfig, uncut: Path, finished_run: Path
) -> None:
    def short(of: RunConfig, teacher: Path) -> RunConfig:
        extra = replace(of.extra, teacher=str(teacher), distill=0.5)
        return resolve(replace(of, schedule=replace(of.schedule, epochs=1, finetune=1), extra=extra))

    listener = train(tmp_path / "static", short(as_static(config), finished_run), few)
    assert [row["cost_share"] for row in listener.rows] == [1.0]
    assert listener.rows[0]["distillation"] > 0
    listener = train(tmp_path / "ours", short(small_run, uncut), few)
    assert all(row["distillation"] > 0 for row in listener.rows)
    start = replace(config, extra=replace(config.extra, start=str(tmp_path / "static")))
    assert train(tmp_path / "routed", start, few, stop_after=1).warnings == []


def test_a_run_of_an_older_version_goes_on(
    tmp_path: Path, train: Train, small_run: RunConfig, few: Dataset, whole: Path, assert_same_run: SameRun
) -> None:
    out = tmp_path / "old"
    train(out, small_run, few, stop_after=6)
    later = {"crop", "blocks", "drop_path", "optimizer", "decay_norms", "clip"} | {"pretrained", "weights"}
    later |= {"weights_sha256"}

    def older(values: dict[str, Any]) -> dict[str, Any]:
        return {k: older(v) if isinstance(v, dict) else v for k, v in values.items() if k not in later}

    content = json.loads((out / "config.json").read_text())
    del content["groups"]
    (out / "config.json").write_text(json.dumps(content | {"config": older(content["config"])}))
    (file,) = (out / "checkpoints").glob("*.safetensors")
    tensors, about = files.load_tensors(file)
    assert later <= {key for part in about["run"]["config"].values() if isinstance(part, dict) for key in part}
    about["run"]["config"] = older(about["run"]["config"])
    files.save_tensors(file, tensors, about=about)
    listener = train(out, small_run, few, resume=True)
    assert listener.done == 4
    assert_same_run(out, whole)
    assert to_dict(RunFolder.open(out).config) == to_dict(small_run)


def network(few: Dataset, arch: str = ARCH, blocks: str | None = BLOCKS) -> RoutedNetwork:
    config = DataInfo.of(few).model_config(NetworkConfig(arch=arch, blocks=blocks, drop_path=0.2))
    return build(config).train()


def test_the_step_is_one_graph_for_torch_compile(few: Dataset) -> None:
    torch._dynamo.reset()  # other tests compile the same function, and torch gives up after so many versions
    model = network(few)
    compile = partial(torch.compile, backend="eager", fullgraph=True, dynamic=False)
    images = torch.randn(2, *few.image_shape)
    x = compile(model.stem)(images).detach()
    assert torch.equal(x, model.stem(images))
    assert model.routers is not None
    arguments = model.blocks[1], model.routers.router(1), x, (), gumbel, None
    results = []
    for step in (routed_step, compile(routed_step)):
        torch.manual_seed(0)
        results.append(step(*arguments)[:3])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    torch._dynamo.reset()


def test_drop_path_is_set_only_where_there_is_one(few: Dataset) -> None:
    allow_code("nets_of_a_user:plain_net")
    assert supports_drop_path(ARCH)
    assert not supports_drop_path("nets_of_a_user:plain_net")
    assert not supports_drop_path("resnet20")
    with pytest.raises(UserError, match="plain_net has no argument drop_path; leave --drop-path out"):
        network(few, "nets_of_a_user:plain_net")


@pytest.mark.parametrize(
    ("arch", "trained", "name"),
    [("resnet32", True, "paper"), ("timm:resnet18", False, "modern"), (ARCH, True, "pretrained")],
)
def test_the_default_preset_depends_on_the_network(arch: str, trained: bool, name: str) -> None:
    assert default_preset(arch, trained=trained) == name


@pytest.mark.parametrize("library", ["timm"], indirect=True)
def test_a_timm_network_is_trained_by_the_command(
    tmp_path: Path, library: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert supports_drop_path("timm:test_resnet")
    assert not supports_drop_path("timm:vgg11")
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (24, 32, 32, 3), dtype=np.uint8)
    np.savez("few.npz", x_train=images, y_train=np.arange(24) % 2, x_test=images[:8], y_test=np.arange(8) % 2)
    words = ["train", "few.npz", "--arch", "timm:test_resnet", "--epochs", "1", "--device", "cpu"]
    assert main(words) == 0
    assert "timm:test_resnet is trained with --preset modern, --drop-path 0.1, --batch 6;" in capsys.readouterr().err
    run = RunFolder.open(tmp_path / "runs" / "few-timm-test_resnet-routed-seed0")
    assert run.config.schedule == replace(modern("").schedule, epochs=1, batch=6)
    assert (run.config.network.drop_path, run.config.losses.budget) == (0.1, 0.6)
    assert run.environment["timm"] == library.__version__
    # The settings of a run are complete, so no preset is named, and a start replaces what the network started from.
    again = ["train", "--config", str(run.path), "--start", str(run.path), "--no-routed", "--out", "again"]
    assert main([*again, "--device", "cpu"]) == 0
    assert "--preset" not in capsys.readouterr().err
    assert RunFolder.open("again").config.schedule == run.config.schedule


@pytest.mark.parametrize("library", ["timm"], indirect=True)
def test_synchronised_norms_keep_the_activation_of_timm(library: Any) -> None:
    module = nn.Sequential(library.layers.BatchNormAct2d(4), nn.BatchNorm2d(4)).eval()
    images = torch.randn(2, 4, 3, 3)
    expected = module(images)
    assert (module[0](images) >= 0).all()
    converted = synchronised(module)
    assert all(isinstance(part, nn.SyncBatchNorm) for part in converted)
    assert torch.equal(converted(images), expected)
    assert isinstance(synchronised(nn.Sequential(nn.BatchNorm2d(4)))[0], nn.SyncBatchNorm)
