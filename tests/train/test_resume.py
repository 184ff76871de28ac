import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from codinet.config import RunConfig
from codinet.data import Dataset
from codinet.errors import UserError
from codinet.train import checkpoint, loop

SameRun = Callable[[Path, Path], None]
Train = Callable[..., Any]
Damage = Callable[[Path], None]


def checkpoints(out: Path) -> list[Path]:
    return sorted((out / "checkpoints").glob("*.safetensors"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def go(train: Train, out: Path, small_run: RunConfig, few: Dataset) -> Train:
    """Trains `whole`'s run in a folder of its own."""
    return partial(train, out, small_run, few)


@pytest.fixture
def assert_same_end(out: Path, whole: Path, assert_same_run: SameRun) -> Callable[[], None]:
    return partial(assert_same_run, out, whole)


@pytest.mark.parametrize("steps", [2, 4, 5, 8, 10, 12])
def test_a_stopped_run_goes_on_to_the_same_end(go: Train, assert_same_end: Callable[[], None], steps: int) -> None:
    go(stop_after=steps)
    listener = go(resume=True)
    assert listener.done == (steps - 1) // 4 * 4  # only whole epochs were kept
    assert listener.warnings == []
    assert_same_end()


def test_short_epochs_share_a_checkpoint(
    go: Train, assert_same_end: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "PAUSE_SECONDS", 1000)
    saved: list[checkpoint.Position] = []
    save = checkpoint.save

    def note(folder: Path, position: checkpoint.Position, *rest: Any) -> None:
        saved.append(position)
        save(folder, position, *rest)

    monkeypatch.setattr(checkpoint, "save", note)
    go()
    assert [(position.stage, position.epoch) for position in saved] == [(1, 0), (2, 0)]  # a stage's end is kept
    assert_same_end()


@pytest.mark.parametrize("steps", [2, 7, 11])
def test_a_checkpoint_within_an_epoch_goes_on_to_the_same_end(
    go: Train, assert_same_end: Callable[[], None], monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr(loop, "SAVE_SECONDS", -1)
    go(stop_after=steps)
    listener = go(resume=True)
    assert listener.done == steps - 1
    assert listener.titles[0].startswith("Resuming resnet20")
    assert_same_end()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1000])


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut, flip_a_bit, empty])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_leads_to_the_same_end(
    go: Train, assert_same_end: Callable[[], None], out: Path, damage: Damage
) -> None:
    go(stop_after=9)
    newest = checkpoints(out)[-1]
    damage(newest)
    listener = go(resume=True)
    (warning,) = listener.warnings
    assert newest.name in warning
    assert "Going back to the checkpoint before it" in warning
    assert listener.done == 4
    assert_same_end()


def test_where_every_checkpoint_is_damaged_the_run_starts_again_and_says_so(
    go: Train, assert_same_end: Callable[[], None], out: Path
) -> None:
    go(stop_after=9)
    for file in checkpoints(out):
        cut(file)
    listener = go(resume=True)
    assert len(listener.warnings) == 2
    assert "Going back to the start" in listener.warnings[-1]
    assert listener.done == 0
    assert_same_end()


@pytest.mark.parametrize("tail", ['{"stage": "joint", "epo', '{"stage": "joint", "epoch": 7}\n'])
def test_lines_of_metrics_beyond_the_checkpoint_are_dropped(
    go: Train, assert_same_end: Callable[[], None], out: Path, tail: str
) -> None:
    go(stop_after=6)
    with (out / "metrics.jsonl").open("a") as file:
        file.write(tail)
    go(resume=True)
    assert_same_end()


def test_a_finished_run_is_evaluated_again_and_left_alone(
    train: Train, small_run: RunConfig, few: Dataset, whole: Path
) -> None:
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    listener = train(whole, small_run, few, resume=True)
    assert "already finished" in listener.warnings[0]
    assert listener.evaluation.summary() == json.loads((whole / "evaluation.json").read_text())
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("damage", [cut, Path.unlink])
def test_lost_weights_of_a_finished_run_come_from_the_last_checkpoint(
    train: Train, tmp_path: Path, small_run: RunConfig, few: Dataset, whole: Path, damage: Callable[[Path], None]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    damage(out / "model.safetensors")
    listener = train(out, small_run, few, resume=True)
    assert "model.safetensors was missing or damaged; the last checkpoint restored it." in listener.warnings[0]
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    damage(out / "model.safetensors")
    checkpoints(out)[-1].unlink()
    with pytest.raises(UserError, match=r"but model\.safetensors is missing or damaged, and so is the last"):
        train(out, small_run, few, resume=True)
    assert (out / "metrics.jsonl").read_bytes() == before[out / "metrics.jsonl"]


def test_what_a_kill_left_half_written_is_swept_away(go: Train, out: Path) -> None:
    go(stop_after=6)
    halves = [out / ".config.json.1.tmp", out / "checkpoints" / ".x.safetensors.1.tmp"]
    for half in halves:
        half.write_bytes(b"half")
    go(resume=True, stop_after=1)
    assert not any(half.exists() for half in halves)
