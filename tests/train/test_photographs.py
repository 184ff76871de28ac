"""Training on image files: views of random parts, from a folder and from shards, interrupted and continued."""

import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from codinet.cli import main
from codinet.config import DataConfig, NetworkConfig
from codinet.data import batches
from codinet.data.image_folder import load_folder
from codinet.data.packing import pack
from codinet.errors import UserError
from codinet.presets import quick
from codinet.resolving import resolve
from codinet.runs import RunFolder
from codinet.train import checkpoint
from codinet.train.accelerate import Execution

SameRun = Callable[[Path, Path], None]
Life = Callable[..., dict[str, Any]]
WORDS = ("--arch", "resnet14", "--image-size", "24", "--view", "resized", "--batch", "8", "--start", "none")


@pytest.fixture(scope="module")
def sources(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    packed = tmp_path_factory.mktemp("packed") / "photos"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("codinet.data.packing.MB", 8000)
        found = pack(photos, str(packed), shard_mb=1)
    assert found.shards > 5
    return {"folder": photos, "shards": packed}


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kind", ["folder", "shards"])
def test_a_kill_within_an_epoch_leaves_no_trace(
    sources: dict[str, Path], kind: str, size: int, tmp_path: Path, life: Life, assert_same_run: SameRun
) -> None:
    words = (*WORDS, "--epochs", "2")
    whole = life(tmp_path / "whole", *words, size=size, source=sources[kind])
    assert whole["codes"] == [0] * size, whole["said"]
    assert "24×24, views of random parts" in whole["said"]
    out = tmp_path / "killed"
    killed = life(out, *words, size=size, source=sources[kind], save_seconds=-1, ask_every=1, after=60, saves=6)
    assert killed["signal"] == signal.SIGKILL
    found = checkpoint.latest(out / "checkpoints", pytest.fail)
    assert found is not None
    assert found.position.step > 0
    again = life(out, *words, size=size, source=sources[kind])
    assert again["codes"] == [0] * size, again["said"]
    assert_same_run(tmp_path / "whole", out)


def test_a_run_resumes_with_the_loader_it_began_with(
    train: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assert_same_run: SameRun
) -> None:
    """Resident files are scaled to squares before views are cut, so a run with both would be another run."""
    source, draw = tmp_path / "squares", np.random.default_rng(0)
    for name in ("a", "b"):
        (source / name).mkdir(parents=True)
        for index in range(16):
            Image.fromarray(draw.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(source / name / f"{index}.png")
    config = replace(
        quick(str(source)),
        data=DataConfig(image_size=24, view="resized", watch="train"),
        network=NetworkConfig("resnet14"),
        schedule=replace(quick("").schedule, epochs=2, finetune=1, batch=8),
    )
    config, data = resolve(config), load_folder(source, image_size=24, whole=True)
    train(tmp_path / "whole", config, data)
    assert RunFolder.open(tmp_path / "whole").environment["loader"] == "resident"
    train(tmp_path / "killed", config, data, stop_after=5)
    monkeypatch.setattr(batches, "free_bytes", lambda _device: 100_000)  # too little to choose it again
    train(tmp_path / "killed", config, data, resume=True, stop_after=7)
    with pytest.raises(UserError, match="was started with --loader resident, and views of image files"):
        train(tmp_path / "killed", config, data, resume=True, execution=Execution(loader="stream"))
    train(tmp_path / "killed", config, data, resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


def test_folders_of_large_images_show_random_parts_by_default(photos: Path, tmp_path: Path, train_words: Any) -> None:
    few = tmp_path / "few"
    for file in sorted(photos.glob("*/*.jpg"))[::4]:
        (few / file.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(file, few / file.parent.name)
    words = ["--arch", "resnet14", "--batch", "8", "--start", "none", "--epochs", "1", "--finetune", "0"]
    for side, view in ((65, "resized"), (64, "padded")):
        out = tmp_path / str(side)
        assert main(train_words(out, *words, "--image-size", str(side), source=few)) == 0
        assert RunFolder.open(out).config.data.view == view


def test_damaged_files_are_named_once(photos: Path, tmp_path: Path, train_words: Any, capsys: Any) -> None:
    folder = shutil.copytree(photos, tmp_path / "photos")
    for name in ("dark/00.jpg", "bright/01.jpg"):
        (folder / name).write_bytes((folder / name).read_bytes()[:400])
    words = train_words(tmp_path / "run", *WORDS, source=folder)
    assert main(words) == 2
    assert ".jpg is damaged or truncated" in capsys.readouterr().err
    assert main([*words, "--on-damaged", "skip", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("damaged image files are skipped") == 1
    assert "2 damaged image files are skipped" in captured.err
    assert "bright/01.jpg" in captured.err
    tested = json.loads(captured.out)["n"]
    assert main(["eval", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == tested


def test_a_packed_data_set_works_in_every_command_that_reads_data(
    sources: dict[str, Path], tmp_path: Path, train_words: Any, capsys: Any
) -> None:
    run = tmp_path / "run"
    assert main(train_words(run, *WORDS, source=sources["shards"])) == 0
    assert RunFolder.open(run).config.source == str(sources["shards"])
    capsys.readouterr()
    assert main(["eval", str(run), "--json", "--budget", "0.7"]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 8
    assert main(["analyze", str(run), "--no-tsne"]) == 0
    labels = RunFolder.open(run).load_paths().label_T
    assert torch.equal(labels.sort().values, torch.tensor([0] * 4 + [1] * 4))
