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
from codinet.sweep.folder import keep_plan
from codinet.sweep.papers import PAPERS
from codinet.sweep.progress import epochs_done

Said = pytest.CaptureFixture[str]


def words_of(out: Path, source: Path, *more: str) -> list[str]:
    axes = ["--method", "static", "codinet", "--budget", "0.6", "0.001"]
    schedule = ["--epochs", "10", "--finetune", "1", "--batch", "16"]
    return ["sweep", str(source), "--out", str(out), "--arch", "resnet20", *axes, *schedule, "--device", "cpu", *more]


def of_folder(out: Path) -> list[int]:
    """Processes that name the folder in their words."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(out).encode() in file.read_bytes():
                found.append(int(file.parent.name))
        except OSError:
            continue
    return found


def wait_for(what: Any, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)


def test_a_killed_sweep_goes_on_and_reports_what_failed(tmp_path: Path, digits_npz: Path, capsys: Said) -> None:
    out = tmp_path / "sweep"
    words = words_of(out, digits_npz, "--workers", "2")
    with subprocess.Popen(
        [sys.executable, "-m", "codinet", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as first:
        wait_for(lambda: any(out.glob("*/metrics.jsonl")) or first.poll() is not None)
        os.kill(first.pid, signal.SIGKILL)
    wait_for(lambda: not of_folder(out), 20)  # the workers go with it
    assert not (out / "results.json").exists()
    begun = [file.parent for file in out.glob("*/config.json")]
    assert begun
    assert not all((folder / "evaluation.json").exists() for folder in begun)

    assert main([*words, "--json"]) == 2
    said = capsys.readouterr()
    content = json.loads(said.out)
    names = ["resnet20-static-seed0", "resnet20-codinet-budget0.6-seed0"]
    assert [run["name"] for run in content["runs"]] == names
    assert all(RunFolder.open(out / name).finished for name in names)
    assert content["runs"][0]["environment"]["commit"] == "tests"
    assert content["failures"][0]["name"] == "resnet20-codinet-budget0.001-seed0"
    assert any(file.read_text().count("$ ") == 2 for file in out.glob("*.log"))  # begun, and gone on with
    assert "(3 of 3)" in said.err
    sentence = said.err.splitlines()[-1]
    assert sentence.startswith(
        "codinet: 1 of 3 planned runs failed (resnet20-codinet-budget0.001-seed0: A budget of 0.001"
    )
    assert json.loads((out / "results.json").read_text())["groups"] == content["groups"]
    assert (out / "pareto.png").exists()
    assert (out / "pareto.svg").exists()

    assert main([*words, "--seed", "0", "1"]) == 2
    assert "holds another sweep (it lacks" in capsys.readouterr().err


def test_routed_runs_start_from_static_ones_through_a_kill_and_a_move(
    tmp_path: Path, digits_npz: Path, capsys: Said
) -> None:
    out, moved = tmp_path / "sweep", tmp_path / "moved"
    static, routed = "resnet20-static-seed0", "resnet20-codinet-budget0.6-seed0"
    schedule = ["--epochs", "10", "--finetune", "1", "--batch", "16", "--watch", "train", "--holdout", "8"]
    flags = ["--arch", "resnet20", "--budget", "0.6", *schedule, "--from-static", "--device", "cpu", "--no-plot"]
    words = [sys.executable, "-m", "codinet", "sweep", str(digits_npz), "--out", str(out), *flags]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        wait_for(lambda: epochs_done(out / routed) > 1 or first.poll() is not None)
        os.kill(first.pid, signal.SIGKILL)
    wait_for(lambda: not of_folder(out), 20)
    assert RunFolder.open(out / static).finished
    assert not RunFolder.open(out / routed).finished

    out.rename(moved)
    words = ["sweep", str(digits_npz), "--out", str(moved), *flags]
    assert main([*words, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [run["name"] for run in content["runs"]] == [static, routed]
    assert [run["config"]["extra"]["teacher"] for run in content["runs"]] == [None, static]
    assert (moved / f"{routed}.log").read_text().count("$ ") == 2  # begun, and gone on with
    config = RunFolder.open(moved / routed).config
    assert config.extra.start_sha256 == config.extra.teacher_sha256 == sha256_of(moved / static / "model.safetensors")
    assert (config.extra.distill, config.data.watch, config.data.holdout) == (0.5, "train", 8)

    assert main(words) == 0
    assert "2 of 2 planned runs were finished before" in capsys.readouterr().err
    words.remove("--from-static")
    assert main(words) == 2
    assert "it was begun with --from-static" in capsys.readouterr().err


def test_finished_runs_are_shown_in_a_table_without_training(
    tmp_path: Path, finished_run: Path, digits_npz: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    flags = ["--arch", "resnet20", "--epochs", "1", "--finetune", "1", "--batch", "16", "--device", "cpu"]
    words = ["sweep", str(digits_npz), "--out", str(tmp_path / "s"), *flags, "--no-plot"]
    (tmp_path / "s").mkdir()
    args = cli.parse(command.Args, words[1:], prog="codinet sweep")
    (planned,) = command._plan(args, gpu=False)
    keep_plan(tmp_path / "s", [planned])
    (tmp_path / "s" / planned.name).symlink_to(finished_run)
    assert main(words) == 0
    said = capsys.readouterr()
    assert "1 of 1 planned runs were finished before" in said.err
    assert f"1 run in {tmp_path / 's'}" in said.out
    assert "resnet20-codinet-budget0.6" in said.out
    assert not (tmp_path / "s" / "pareto.png").exists()


def test_the_papers_plans_are_listed(capsys: Said) -> None:
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
        ([], "nothing to sweep"),
        (["digits", "--preset", "papr"], "perhaps you meant paper"),
        (["digits", "--data-path", "x"], "--data-path is for tables"),
        (["digit"], "no data set, folder or .npz file"),
        (["paper-table-comparison-imagenet"], "needs an image folder"),
        (["paper-table-x"], "Unknown table or figure of the paper"),
        (["digits", "--method", "none"], "--method"),
        (["digits", "--workers", "0"], "--workers must be 1 or more, got 0"),
    ],
)
def test_what_is_the_users_to_fix_is_said_before_anything_is_trained(
    words: list[str], sentence: str, tmp_path: Path, capsys: Said
) -> None:
    assert main(["sweep", *words, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert not (tmp_path / "out").exists()


def test_devices_of_different_kinds_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    monkeypatch.setattr(command, "pick_device", torch.device)
    assert main(["sweep", "digits", "--device", "cpu", "meta"]) == 2
    assert "--device must name devices of one kind" in capsys.readouterr().err


def test_ctrl_c_is_told_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    def interrupted(*_args: Any, **_more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "carry_out", interrupted)
    with pytest.raises(SystemExit) as stop:
        main(["sweep", "digits", "--out", str(tmp_path), "--no-plot"])
    assert stop.value.code == 130
    assert capsys.readouterr().err == (
        "codinet: interrupted, and the workers stopped; the same command goes on from here.\n"
    )


def test_without_matplotlib_it_says_what_to_install(
    tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch, hide_package: Callable[[str], None]
) -> None:
    for name in ("codinet.report.style", "codinet.sweep.picture"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    hide_package("matplotlib")
    assert main(["sweep", "digits", "--out", str(tmp_path / "out")]) == 2
    assert "codinet[plot]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
