import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from codinet.cli import main
from codinet.commands.analyze import short_names
from codinet.errors import UserError


def test_figures_are_printed_as_a_table(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(own_run), "--no-tsne", "--device", "cpu"]) == 0
    output = capsys.readouterr()
    assert "pairs with the same" in output.out
    assert "path entropy" in output.out
    swapped = json.loads((own_run / "analysis.json").read_text())["figures"]["swapped"]
    titles = {"accuracy_any": "accuracy with another image's path", "accuracy_class": "  … of the same class"}
    for key, title in titles.items():
        (line,) = (line for line in output.out.splitlines() if title in line)
        assert f" {swapped[key]:.2f} % " in line
    assert "run: augmented images" in output.err
    assert (own_run / "analysis.json").exists()


def test_json_is_one_document_and_a_saved_analysis_is_reused(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["analyze", str(own_run), "--no-tsne", "--images", "30", "--json"]
    assert main(words) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["runs"][0]["images"] == 30
    assert 0 <= first["runs"][0]["consistency"]["same_path"] <= 1
    assert main(words) == 0
    output = capsys.readouterr()
    assert json.loads(output.out) == first
    assert output.err == ""


def test_tsne_is_on_by_default(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(own_run), "--json", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["embedding"]["tsne_points"] == 40


def test_features_of_a_file_are_named(own_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "mine.npy", np.random.default_rng(0).random((40, 5)))
    words = ["analyze", str(own_run), "--features", str(tmp_path / "mine.npy"), "--no-tsne", "--json"]
    assert main([*words, "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["correlation"]["features"] == "the file mine.npy"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--images", "1"], "--images must be at least 2, got 1"),
        (["--seed", "-1"], "--seed must be"),
        (["--features", "none.npy"], "none.npy"),
        (["--static", "nowhere"], "nowhere"),
        (["--features", "a.npy", "--static", "b"], "cannot be used together"),
        (["--device", "abacus"], "abacus"),
    ],
)
def test_invalid_options_are_rejected(
    own_run: Path, capsys: pytest.CaptureFixture[str], more: list[str], why: str
) -> None:
    assert main(["analyze", str(own_run), "--no-tsne", *more]) == 2
    output = capsys.readouterr()
    assert why in output.err
    assert output.out == ""


def test_no_run_and_repeated_runs_are_rejected(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze"]) == 2
    assert "at least one run folder" in capsys.readouterr().err
    assert main(["analyze", str(own_run), str(own_run), "--device", "cpu"]) == 2
    assert "twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, how) for name in ("model.safetensors", "paths.safetensors", "config.json") for how in ("gone", "cut")),
        ("evaluation.json", "gone"),
    ],
)
def test_damaged_folders_are_rejected(own_run: Path, capsys: pytest.CaptureFixture[str], name: str, how: str) -> None:
    file = own_run / name
    file.write_bytes(file.read_bytes()[:20]) if how == "cut" else file.unlink()
    assert main(["analyze", str(own_run), "--no-tsne", "--device", "cpu"]) == 2
    assert capsys.readouterr().err.count("Traceback") == 0


def test_a_full_disk_leaves_no_partial_analysis(
    own_run: Path, disk_of: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    with disk_of(100):
        assert main(["analyze", str(own_run), "--no-tsne", "--device", "cpu"]) == 0
    output = capsys.readouterr()
    assert "The analysis is not saved: " in output.err
    assert "pairs with the same path" in output.out
    assert not list(own_run.glob("*analysis*"))


def test_short_names_are_as_short_as_possible() -> None:
    assert short_names([Path("/a/b/one"), Path("/a/c/two")]) == ["one", "two"]
    assert short_names([Path("/a/b/one"), Path("/a/c/one")]) == ["b/one", "c/one"]


def test_short_names_reject_the_same_folder_twice(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="twice"):
        short_names([tmp_path, tmp_path / "x" / ".."])
