"""`codinet bench`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from codinet import cli
from codinet.commands.bench import Args, run


@pytest.fixture(autouse=True)
def _verb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.VERBS, "bench", "")


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict]:
    assert cli.main(["bench", *words, "--rounds", "2", "--images", "4", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["rows"]


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


def test_a_table_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    run(Args("resnet20", batch=(2,), engines=("gather",), rounds=1, images=2, plot=tmp_path / "bench.png"))
    assert "realised" in capsys.readouterr().out
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["resnet21"], "perhaps you meant resnet"),
        (["resnet20", "--run-rate", "1.5"], "no share"),
        (["resnet20", "--batch", "0"], "--batch 0"),
        (["resnet20", "--rounds", "0"], "--rounds 0"),
        (["resnet20", "--threshold", "2"], "no probability"),
        (["resnet20", "--engines", "brunch"], "perhaps you meant branch"),
    ],
)
def test_what_is_wrong_is_said(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *words]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def test_a_static_run_has_static_rows_alone(
    train_words: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(train_words(tmp_path / "static", "--no-routed")) == 0
    capsys.readouterr()
    rows = answer(capsys, str(tmp_path / "static"), "--batch", "1")
    assert all(row["engine"].startswith("static") for row in rows)
