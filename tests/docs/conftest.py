"""A folder with what the pages of the documentation take for granted, and the names that their Python code does."""

import contextlib
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.docs.shell import Shell
from tests.drawn_shapes import save_shapes
from tests.few_digits import save_few_digits
from torch import nn

from codinet import open_run
from codinet.cli import main
from codinet.runs import RunFolder
from tools.zoo_add import add

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def save_cifar10(root: Path, rows: int = 4, tests: int = 12) -> None:
    """Write images of noise in the official layout of CIFAR-10."""
    folder, draws = root / "cifar-10-batches-bin", np.random.default_rng(0)
    folder.mkdir(parents=True)
    for number, name in enumerate([*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]):
        count = tests if name == "test_batch.bin" else rows
        labels = (np.arange(count) + number * rows) % 10
        images = draws.integers(0, 256, (count, 3072)) // 2 + 12 * labels[:, None]
        (folder / name).write_bytes(np.hstack([labels[:, None], images]).astype(np.uint8).tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(CIFAR10) + "\n")


@pytest.fixture(scope="session")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder with data, images, runs and an ONNX file, to be copied; and a zoo for its data."""
    folder, zoo = tmp_path_factory.mktemp("docs") / "place", tmp_path_factory.mktemp("docs-zoo")
    save_cifar10(folder / "data")
    save_few_digits(folder / "few.npz")
    save_shapes(folder / "photos", 15)
    save_shapes(folder / "shapes", 15)
    (folder / "new-photos").mkdir()
    (folder / "docs").mkdir()
    for name in ("cat.jpg", "dog.png", "new-photos/a.png", "new-photos/b.jpg"):
        with Image.open(folder / "photos" / "circle" / "0000.jpg") as image:
            image.save(folder / name)
    schedule = ["--arch", "resnet14", "--epochs", "1", "--finetune", "1", "--batch", "10"]
    runs = folder / "runs"
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for out, flags in (("mine", ["--budget", "0.6"]), ("static", ["--no-routed"])):
            assert main(["train", "cifar10", *schedule, *flags, "--out", f"runs/{out}"]) == 0
        assert main(["export", "runs/mine", "--out", "model.onnx"]) == 0
        add(RunFolder.open(runs / "mine"), "cifar10-resnet32-065", Path("data"), device=torch.device("cpu"), into=zoo)
    for name in ("demo/codinet", "ablation/resnet14-codinet"):
        shutil.copytree(runs / "mine", runs / name)
    return folder, zoo


@pytest.fixture(scope="session")
def commands_seen() -> set[str]:
    """The expensive commands that have run in this process."""
    return set()


@pytest.fixture
def shell(
    furnished: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands_seen: set[str]
) -> Shell:
    """A shell in a folder of its own."""
    place, home = shutil.copytree(furnished[0], tmp_path / "place"), tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("HOME", str(home))
    given = {path.relative_to(place) for path in (place / "runs").glob("*")}
    return Shell(monkeypatch, given, furnished[1], commands_seen)


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(64, 64, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layer(x).relu()


class _Group(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(_Block(), _Block())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x)


def _network() -> nn.Module:
    """A network with the module names of the documentation, layers.*.blocks.*."""
    body = nn.Sequential()
    body.add_module("stem", nn.Conv2d(3, 64, 16, stride=16))
    body.add_module("layers", nn.Sequential(_Group(), _Group()))
    body.add_module("head", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 3)))
    return body


Names = dict[str, Any]
# What the Python code of a page uses without saying where it comes from.
GIVEN: dict[str, Callable[[Names], Any]] = {
    "model": lambda _: open_run("runs/mine").load_model(),
    "images": lambda _: open_run("runs/mine").test_images(Path("data"), 12),
    "network": lambda _: _network(),
    "epochs": lambda _: 1,
    "loader": lambda _: [(torch.randn(2, 3, 224, 224), torch.tensor([0, 1]))],
    "augment": lambda _: lambda images: images.flip(-1) if torch.rand(()) < 0.5 else images,
    "optimizer": lambda names: torch.optim.SGD(names["model"].parameters(), lr=0.01),
    "some_training_images": lambda _: torch.randn(16, 3, 224, 224),
}


@pytest.fixture
def given() -> dict[str, Callable[[Names], Any]]:
    return GIVEN
