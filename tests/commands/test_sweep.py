import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from codinet import cli
from codinet.cli import main
from codinet.commands import sweep as command
from codinet.files import sha256_of
from codinet.runs import RunFolder
from codinet.sweep.papers import PAPERS
from codinet.sweep.sweep_folder import save_plan
from codinet.sweep.sweep_progress import epochs_done

Said = pytest.CaptureFixture[str]


def processes_of(out: Path) -> list[int]:
    """The processes that have the folder in their arguments."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(out).encode() in file.read_bytes():
                found.append(int(file.parent.name))
        except OSError:
            continue
    return found


def wait_for(condition: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.01)


def test_a_killed_sweep_can_be_moved_continues_and_reports_failures(
    tmp_path: Path, digits_npz: Path, capsys: Said
) -> None:
    out, moved = tmp_path / "sweep", tmp_path / "moved"
    static, routed, failed = (
        f"resnet20-{name}-seed0" for name in ("static", "codinet-budget0.6", "codinet-budget0.001")
    )
    schedule = ["--epochs", "5", "--finetune", "1", "--batch", "16", "--watch", "train", "--holdout", "8"]
    flags = ["--arch", "resnet20", "--budget", "0.6", "0.001", *schedule, "--from-static", "--workers", "2"]
    flags += ["--device", "cpu"]
    words = [sys.executable, "-m", "codinet", "sweep", str(digits_npz), "--out", str(out), *flags]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        wait_for(lambda: epochs_done(out / routed) > 1 or first.poll() is not None)
        os.kill(first.pid, signal.SIGKILL)
    wait_for(lambda: not processes_of(out), 20)  # the workers end too
    assert not (out / "results.json").exists()
    assert (out / static / "evaluation.json").exists()
    assert not (out / routed / "evaluation.json").exists()

    out.rename(moved)
    words = ["sweep", str(digits_npz), "--out", str(moved), *flags]
    assert main([*words, "--json"]) == 2
    said = capsys.readouterr()
    content = json.loads(said.out)
    assert "1 of 3 planned runs are already finished" in said.err
    assert [run["name"] for run in content["runs"]] == [static, routed]
    assert [run["config"]["extra"]["teacher"] for run in content["runs"]] == [None, static]
    assert content["runs"][0]["environment"]["commit"] == "tests"
    assert content["failures"][0]["name"] == failed
    assert "(3 of 3)" in said.err
    assert said.err.splitlines()[-1].startswith(f"codinet: 1 of 3 planned runs failed ({failed}: ")
    assert json.loads((moved / "results.json").read_text())["groups"] == content["groups"]
    assert (moved / "pareto.png").exists()
    assert (moved / "pareto.svg").exists()
    assert (moved / f"{routed}.log").read_text().count("$ ") == 2  # started, then resumed
    config = RunFolder.open(moved / routed).config
    assert config.extra.start_sha256 == config.extra.teacher_sha256 == sha256_of(moved / static / "model.safetensors")
    assert (config.extra.distill, config.data.watch, config.data.holdout) == (0.5, "train", 8)

    assert main([*words, "--seed", "0", "1"]) == 2
    assert "holds another sweep (it lacks" in capsys.readouterr().err
    words.remove("--from-static")
    assert main(words) == 2
    assert f"holds another sweep (it has {static})" in capsys.readouterr().err


def test_finished_runs_are_shown_in_a_table_without_training(
    tmp_path: Path, finished_run: Path, digits_npz: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    flags = ["--arch", "resnet20", "--epochs", "1", "--finetune", "1", "--batch", "16", "--device", "cpu"]
    words = ["sweep", str(digits_npz), "--out", str(tmp_path / "s"), *flags, "--no-plot"]
    (tmp_path / "s").mkdir()
    args = cli.parse(command.Args, words[1:], prog="codinet sweep")
    (planned,) = command._plan(args, gpu=False)
    save_plan(tmp_path / "s", [planned])
    (tmp_path / "s" / planned.name).symlink_to(finished_run)
    assert main(words) == 0
    said = capsys.readouterr()
    assert "1 of 1 planned runs are already finished" in said.err
    assert f"1 run in {tmp_path / 's'}" in said.out
    assert "resnet20-codinet-budget0.6" in said.out
    assert not (tmp_path / "s" / "pareto.png").exists()


def test_list_shows_the_plans_of_the_paper(capsys: Said) -> None:
    assert main(["sweep", "--list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["presets"]
    assert [row["name"] for row in rows] == list(PAPERS)
    assert rows[0] == {
        "name": "paper-table-tradeoff",
        "makes": "Table 2: accuracy and cost over γ, ResNet-110",
        "source": "cifar10",
        "runs": 6,
        "then": "the sweep's own table",
    }
    assert main(["sweep", "--list"]) == 0
    assert "Figure 14a" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "SOURCE is required"),
        (["digits", "--preset", "papr"], "perhaps you meant paper"),
        (["digits", "--data-path", "x"], "--data-path applies only to tables"),
        (["digit"], "perhaps you meant digits"),
        (["paper-table-comparison-imagenet"], "needs an image folder"),
        (["paper-table-x"], "Unknown table or figure of the paper"),
        (["digits", "--method", "none"], "--method"),
        (["digits", "--workers", "0"], "--workers must be 1 or more, got 0"),
    ],
)
def test_invalid_arguments_are_refused_before_training(
    words: list[str], sentence: str, tmp_path: Path, capsys: Said
) -> None:
    assert main(["sweep", *words, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert not (tmp_path / "out").exists()


def test_devices_of_different_kinds_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    monkeypatch.setattr("codinet.environment.pick_device", torch.device)
    assert main(["sweep", "digits", "--device", "cpu", "meta"]) == 2
    assert "--device must name devices of one kind" in capsys.readouterr().err


def test_ctrl_c_prints_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    def interrupted(*_args: Any, **_more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_sweep", interrupted)
    with pytest.raises(SystemExit) as stop:
        main(["sweep", "digits", "--out", str(tmp_path), "--no-plot"])
    assert stop.value.code == 130
    assert capsys.readouterr().err == (
        "codinet: interrupted; the workers have stopped. Repeat the command to continue.\n"
    )


def test_a_missing_matplotlib_is_reported_before_training(
    tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch, hide_package: Callable[[str], None]
) -> None:
    for name in ("codinet.report.drawing", "codinet.sweep.pareto_figure"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    hide_package("matplotlib")
    assert main(["sweep", "digits", "--out", str(tmp_path / "out")]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
