"""`codinet bench`."""

import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch

from codinet import cli
from codinet.commands.bench import Args, run
from codinet.errors import UserError
from codinet.runs import RunFolder


@pytest.fixture(autouse=True)
def _verb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.VERBS, "bench", "")


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict]:
    assert cli.main(["bench", *words, "--rounds", "2", "--images", "4", "--json", "--device", "cpu"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""  # no progress bar outside a terminal
    return json.loads(captured.out)["rows"]


def test_a_network_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    rows = answer(capsys, "resnet20", "--run-rate", "0.5", "--batch", "1", "4", "--threads", "1")
    found = {(row["engine"], row["batch"]): row for row in rows}
    assert {("static", 1), ("branch", 1), ("masked", 1), ("static", 4), ("gather", 4)} <= set(found)
    gather = found["gather", 4]
    assert gather["mac_speedup"] == pytest.approx(1.98, abs=0.03)
    assert gather["realised"] == pytest.approx(gather["speedup"] / gather["mac_speedup"])
    assert found["static", 1]["realised"] == 1
    assert {row["device"] for row in rows} == {"cpu"}
    assert {row["threads"] for row in rows} == {1}


def test_a_run_takes_its_own_paths(finished_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = answer(capsys, str(finished_run), "--batch", "4", "--engines", "gather")
    drawn = answer(capsys, str(finished_run), "--batch", "4", "--engines", "gather", "--run-rate", "0")
    assert [row["engine"] for row in own if not row["engine"].startswith("static")] == ["gather"]
    assert own[-1]["mac_speedup"] < drawn[-1]["mac_speedup"]


@pytest.mark.parametrize("has_paths", [True, False])
def test_a_run_without_its_data_routes_at_its_own_rates(
    finished_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, has_paths: bool
) -> None:
    def missing(*_: object) -> None:
        raise UserError("The data is gone.")

    # Half of all blocks in the mean; by its path table, four blocks always and one for every other image.
    path_TN = torch.tensor([[1, 1, 0, 0, 1, 0, 0, 1, 0], [1, 1, 0, 0, 1, 0, 0, 1, 1]], dtype=torch.uint8)
    paths = RunFolder.open(finished_run).load_paths()._replace(path_TN=path_TN)
    monkeypatch.setattr(RunFolder, "load_dataset", missing)
    monkeypatch.setattr(RunFolder, "load_paths", (lambda _folder: paths) if has_paths else missing)
    monkeypatch.setattr(RunFolder, "load_evaluation", lambda _folder: {"mean_blocks": 4.5})
    run(Args(str(finished_run), batch=(8,), engines=("gather",), rounds=1, images=8, json=True, device="cpu"))
    said = capsys.readouterr()
    assert "using random images, routed at the run's own rates (mean 0.50), because its data" in said.err
    assert "The data is gone." in said.err
    (row,) = (row for row in json.loads(said.out)["rows"] if row["engine"] == "gather")
    assert 1.7 < row["mac_speedup"] < 2.1
    run(
        Args(
            str(finished_run),
            run_rate=1.0,
            batch=(8,),
            engines=("gather",),
            rounds=1,
            images=8,
            json=True,
            device="cpu",
        )
    )
    (row,) = (row for row in json.loads(capsys.readouterr().out)["rows"] if row["engine"] == "gather")
    assert row["mac_speedup"] < 1


def test_a_table_and_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    run(
        Args("resnet20", batch=(2,), engines=("gather",), rounds=1, images=2, plot=tmp_path / "bench.png", device="cpu")
    )
    assert "realised" in capsys.readouterr().out
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["resnet21"], "perhaps you meant resnet"),
        (["resnet20", "--run-rate", "1.5"], "--run-rate must be a number from 0 to 1, got 1.5"),
        (["resnet20", "--batch", "0"], "--batch must be 1 or more, got 0"),
        (["resnet20", "--rounds", "0"], "--rounds must be 1 or more, got 0"),
        (["resnet20", "--threads", "1000000"], "--threads must be at most 1024, got 1000000"),
        (["resnet20", "--threshold", "2"], "--threshold must be a number from 0 to 1, got 2"),
        (["resnet20", "--engines", "brunch"], "perhaps you meant branch"),
        (["resnet20", "--precision", "bfloat16"], "--precision must be float32 on a CPU, got bfloat16"),
        (["resnet20", "--precision", "float61"], "perhaps you meant float16"),
        (["resnet20", "--seed", "18446744073709551616"], "got 18446744073709551616"),
        (["resnet20", "--seed", "-1"], "--seed must be a whole number from 0 to 4294967295, got -1"),
        (
            ["resnet20", "--batch", "100000000", "--rounds", "1"],
            "too little memory for this benchmark",
        ),
        (["resnet20", "--views", "3"], "--views applies to training"),
        (["resnet20", "--amp"], "--amp applies to training"),
        (["resnet20", "--train", "--compiled"], "--compiled applies to inference"),
        (["resnet20", "--train", "--engines", "gather"], "--engines applies to inference"),
        (["resnet20", "--train", "--run-rate", "0.5"], "--run-rate applies to inference"),
        (["resnet20", "--train", "--threshold", "0.4"], "--threshold applies to inference"),
        (["resnet20", "--train", "--batch", "1"], "--batch must be 2 or more, got 1"),
        (["resnet20", "--train", "--views", "1"], "--views must be 2 or more"),
        (["resnet20", "--train", "--modes", "graph"], "needs a CUDA device"),
        (["resnet20", "--train", "--router", "gru"], "Unknown router 'gru'"),
        (["resnet21", "--train"], "perhaps you meant resnet"),
    ],
)
def test_invalid_flags_are_rejected(
    words: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    memory_of: Callable[[int], AbstractContextManager[None]],
) -> None:
    with memory_of(2**36):
        assert cli.main(["bench", *words, "--device", "cpu"]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def test_a_static_run_has_static_rows_only(
    train_words: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(train_words(tmp_path / "static", "--no-routed")) == 0
    capsys.readouterr()
    rows = answer(capsys, str(tmp_path / "static"), "--batch", "1")
    assert all(row["engine"].startswith("static") for row in rows)
    for words, said in (("--run-rate 0.5", "is static; remove it"), ("--router cnn", "its own routers")):
        assert cli.main(["bench", str(tmp_path / "static"), *words.split(), "--device", "cpu"]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("images", [1, 3])
def test_few_images_meet_a_rate_in_the_mean(images: int, capsys: pytest.CaptureFixture[str]) -> None:
    run(Args("resnet20", batch=(1,), engines=("branch",), rounds=1, images=images, json=True, device="cpu"))
    (row,) = (row for row in json.loads(capsys.readouterr().out)["rows"] if row["engine"] == "branch")
    assert 1.7 < row["mac_speedup"] < 2.3  # four or five of nine blocks


def test_numbers_are_printed_even_if_the_figure_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "resnet14", "--batch", "1", "--rounds", "1", "--images", "1", "--engines", "branch", "--json"]
    words += ["--device", "cpu"]
    assert cli.main([*words, "--plot", str(tmp_path / "none" / "x.png")]) == 2
    said = capsys.readouterr()
    assert json.loads(said.out)["rows"]
    assert "choose another --plot" in said.err


def test_progress_in_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes stderr for a terminal
    words = ["bench", "resnet14", "--batch", "1", "2", "--engines", "gather", "--images", "2", "--rounds", "2"]
    assert cli.main([*words, "--device", "cpu", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["rows"]
    for text in ("preparing", "batch 1, gather: warm-up", "batch 2, round 2 of 2"):
        assert text in captured.err


def test_training(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["bench", "resnet14", "--train", "--rounds", "1", "--device", "cpu", "--batch"]
    assert cli.main([*words, "3", "--profile"]) == 0
    captured = capsys.readouterr()
    assert "Longest in a step: routed, eager" in captured.out
    assert "aten::" in captured.out
    assert "resnet14, training on cpu, 1 threads, float32, 6 inputs per step" in captured.out
    estimates = re.findall(r"codinet: eager, (static|routed): about [\d,]+ inputs/s\n", captured.err)
    assert estimates == ["static", "routed"]
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert cli.main([*words, "2", "3", "--amp", "--json"]) == 0
    captured = capsys.readouterr()
    rows = json.loads(captured.out)["rows"]
    assert [(row["inputs_per_step"], row["routed"]) for row in rows] == [(4, False), (4, True), (6, False), (6, True)]
    keys = {"arch", "routed", "mode", "inputs_per_step", "inputs_per_s", "ms_per_step", "peak_mb", "device"}
    assert all(keys | {"conv_share", "against_static", "against_eager"} <= set(row) for row in rows)
    assert {row["precision"] for row in rows} == {"bfloat16"}
    assert {row["longest"] for row in rows} == {row["conv_share"] for row in rows} == {None}
    assert "batch 2, eager, routed: warm-up" in captured.err
    assert "batch 3, round 1 of 1" in captured.err
