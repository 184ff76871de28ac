import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from codinet.config import RunConfig
from codinet.data import Dataset
from codinet.train import checkpoint, loop

SameRun = Callable[[Path, Path], None]
Train = Callable[..., Any]


def checkpoints(out: Path) -> list[Path]:
    return sorted((out / "checkpoints").glob("*.safetensors"))


@pytest.mark.parametrize("steps", [2, 4, 5, 8, 10, 12])
def test_a_stopped_run_goes_on_to_the_same_end(
    train: Train, tmp_path: Path, small_run: RunConfig, few: Dataset, whole: Path, assert_same_run: SameRun, steps: int
) -> None:
    train(tmp_path / "run", small_run, few, stop_after=steps)
    listener = train(tmp_path / "run", small_run, few, resume=True)
    assert listener.done == (steps - 1) // 4 * 4  # only whole epochs were kept
    assert listener.warnings == []
    assert_same_run(tmp_path / "run", whole)


def test_short_epochs_share_a_checkpoint(
    train: Train,
    tmp_path: Path,
    small_run: RunConfig,
    few: Dataset,
    whole: Path,
    assert_same_run: SameRun,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "PAUSE_SECONDS", 1000)
    saved: list[checkpoint.Position] = []
    save = checkpoint.save

    def note(folder: Path, position: checkpoint.Position, *rest: Any) -> None:
        saved.append(position)
        save(folder, position, *rest)

    monkeypatch.setattr(checkpoint, "save", note)
    train(tmp_path / "run", small_run, few)
    assert [(position.stage, position.epoch) for position in saved] == [(1, 0), (2, 0)]  # a stage's end is kept
    assert_same_run(tmp_path / "run", whole)


@pytest.mark.parametrize("steps", [2, 7, 11])
def test_a_checkpoint_within_an_epoch_goes_on_to_the_same_end(
    train: Train,
    tmp_path: Path,
    small_run: RunConfig,
    few: Dataset,
    whole: Path,
    assert_same_run: SameRun,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
) -> None:
    monkeypatch.setattr(loop, "SAVE_SECONDS", -1)
    train(tmp_path / "run", small_run, few, stop_after=steps)
    listener = train(tmp_path / "run", small_run, few, resume=True)
    assert listener.done == steps - 1
    assert listener.titles[0].startswith("Resuming resnet20")
    assert_same_run(tmp_path / "run", whole)


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
    train: Train,
    tmp_path: Path,
    small_run: RunConfig,
    few: Dataset,
    whole: Path,
    assert_same_run: SameRun,
    damage: Callable[[Path], None],
) -> None:
    train(tmp_path / "run", small_run, few, stop_after=9)
    newest = checkpoints(tmp_path / "run")[-1]
    damage(newest)
    listener = train(tmp_path / "run", small_run, few, resume=True)
    (warning,) = listener.warnings
    assert newest.name in warning
    assert "Going back to the checkpoint before it" in warning
    assert listener.done == 4
    assert_same_run(tmp_path / "run", whole)


def test_where_every_checkpoint_is_damaged_the_run_starts_again_and_says_so(
    train: Train, tmp_path: Path, small_run: RunConfig, few: Dataset, whole: Path, assert_same_run: SameRun
) -> None:
    train(tmp_path / "run", small_run, few, stop_after=9)
    for file in checkpoints(tmp_path / "run"):
        cut(file)
    listener = train(tmp_path / "run", small_run, few, resume=True)
    assert len(listener.warnings) == 2
    assert "Going back to the beginning" in listener.warnings[-1]
    assert listener.done == 0
    assert_same_run(tmp_path / "run", whole)


@pytest.mark.parametrize("tail", ['{"stage": "joint", "epo', '{"stage": "joint", "epoch": 7}\n'])
def test_lines_of_metrics_beyond_the_checkpoint_are_dropped(
    train: Train, tmp_path: Path, small_run: RunConfig, few: Dataset, whole: Path, assert_same_run: SameRun, tail: str
) -> None:
    train(tmp_path / "run", small_run, few, stop_after=6)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write(tail)
    train(tmp_path / "run", small_run, few, resume=True)
    assert_same_run(tmp_path / "run", whole)


def test_a_finished_run_is_evaluated_again_and_left_alone(
    train: Train, small_run: RunConfig, few: Dataset, whole: Path
) -> None:
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    listener = train(whole, small_run, few, resume=True)
    assert "finished already" in listener.warnings[0]
    assert listener.evaluation.summary() == json.loads((whole / "evaluation.json").read_text())
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


def test_what_a_kill_left_half_written_is_swept_away(
    train: Train, tmp_path: Path, small_run: RunConfig, few: Dataset
) -> None:
    train(tmp_path / "run", small_run, few, stop_after=6)
    halves = [tmp_path / "run" / ".config.json.1.tmp", tmp_path / "run" / "checkpoints" / ".x.safetensors.1.tmp"]
    for half in halves:
        half.write_bytes(b"half")
    train(tmp_path / "run", small_run, few, resume=True, stop_after=1)
    assert not any(half.exists() for half in halves)
