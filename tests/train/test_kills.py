"""Real kills of real processes, and a real lack of space."""

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from codinet.train import checkpoint

KILLS = 20
Life = Callable[..., dict[str, Any]]
SameRun = Callable[[Path, Path], None]


def finish(life: Life, out: Path, *more: str) -> None:
    end = life(out, *more)
    assert end["code"] == 0, end["said"]


def test_twenty_kills_leave_no_trace(tmp_path: Path, life: Life, assert_same_run: SameRun) -> None:
    schedule = ["--epochs", "3", "--finetune", "13"]  # 64 steps, and in the killed run a checkpoint after each
    began = time.monotonic()
    finish(life, tmp_path / "whole", *schedule)
    length = time.monotonic() - began

    # Each life may write three checkpoints at most, so twenty of them cannot reach the end.
    dice = random.Random(1)
    kills = caught = 0
    while kills < KILLS:
        fate = {"writing": True} if kills % 4 == 3 else {"after": dice.uniform(0, length / 6), "saves": 3}
        end = life(tmp_path / "killed", *schedule, save_seconds=-1, **fate)
        assert end["signal"] == signal.SIGKILL, end
        assert not (tmp_path / "killed" / "evaluation.json").exists()
        kills += 1
        caught += end["half"]
    assert kills == 20
    assert caught >= 1  # some died while they wrote a checkpoint

    assert (tmp_path / "killed" / "checkpoints").exists()
    finish(life, tmp_path / "killed", *schedule)
    assert_same_run(tmp_path / "killed", tmp_path / "whole")
    assert not list((tmp_path / "killed").rglob("*.tmp"))


def test_a_kill_at_every_file_that_is_written_leaves_no_trace(
    tmp_path: Path, life: Life, assert_same_run: SameRun
) -> None:
    finish(life, tmp_path / "whole")
    out, files = tmp_path / "killed", []
    for _ in range(20):
        before = content(out)
        if life(out, rename="before")["code"] == 0:
            break  # it was finished, and wrote nothing new
        assert content(out) == before
        assert life(out, rename="after")["signal"] == signal.SIGKILL
        files += sorted(content(out) - before)
    assert files == [
        "config.json",
        "metrics.jsonl",
        "checkpoints/1-00000-0000000.safetensors",
        "checkpoints/2-00000-0000000.safetensors",
        "model.safetensors",
        "paths.safetensors",
        "timing.json",
        "evaluation.json",
    ]
    assert_same_run(out, tmp_path / "whole")


def content(folder: Path) -> set[str]:
    """The whole files in a folder, without its lock."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("[!.]*.*")}


def test_a_full_disk_is_told_and_loses_nothing(tmp_path: Path, life: Life, assert_same_run: SameRun) -> None:
    schedule = ["--epochs", "3"]
    finish(life, tmp_path / "whole", *schedule)
    out = tmp_path / "full"
    assert life(out, *schedule, after=60, saves=1)["signal"] == signal.SIGKILL
    good = checkpoint.latest(out / "checkpoints", pytest.fail)
    assert good is not None

    end = life(out, *schedule, disk=1_000_000)
    assert end["code"] == 2
    sentence = end["said"].splitlines()[-1]
    assert sentence.startswith("codinet: Could not write ")
    assert "File too large; free some space" in sentence
    assert "Traceback" not in end["said"]
    assert not end["half"]
    still = checkpoint.latest(out / "checkpoints", pytest.fail)
    assert still is not None
    assert still.position == good.position

    finish(life, out, *schedule)
    assert_same_run(out, tmp_path / "whole")
