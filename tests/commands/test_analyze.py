import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from codinet.cli import main


def test_figures_are_a_table_for_people(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(own_run), "--no-tsne", "--device", "cpu"]) == 0
    said = capsys.readouterr()
    assert "pairs with the same" in said.out
    assert "path entropy" in said.out
    swapped = json.loads((own_run / "analysis.json").read_text())["figures"]["swapped"]
    for title, key in (("accuracy with another image's path", "accuracy_any"), ("  … of its class", "accuracy_class")):
        (line,) = (line for line in said.out.splitlines() if title in line)
        assert f" {swapped[key]:.2f} % " in line
    assert "run: augmented images" in said.err  # progress is no part of the answer
    assert (own_run / "analysis.json").exists()


def test_json_is_one_document_and_the_second_time_is_quick(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["analyze", str(own_run), "--no-tsne", "--images", "30", "--json"]
    assert main(words) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["runs"][0]["images"] == 30
    assert 0 <= first["runs"][0]["consistency"]["same_path"] <= 1
    assert main(words) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == first
    assert said.err == ""


def test_tsne_is_laid_out_unless_told_otherwise(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(own_run), "--json", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["embedding"]["tsne_points"] == 40


def test_features_of_a_file_are_named(own_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "mine.npy", np.random.default_rng(0).random((40, 5)))
    assert (
        main(
            [
                "analyze",
                str(own_run),
                "--features",
                str(tmp_path / "mine.npy"),
                "--no-tsne",
                "--json",
                "--device",
                "cpu",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["runs"][0]["correlation"]["features"] == "the file mine.npy"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--images", "1"], "--images must be 2 or more, got 1"),
        (["--seed", "-1"], "--seed must be a whole number from 0 to 2147483647, got -1"),
        (["--features", "none.npy"], "none.npy"),
        (["--static", "nowhere"], "nowhere"),
        (["--features", "a.npy", "--static", "b"], "exclude each other"),
        (["--device", "abacus"], "abacus"),
    ],
)
def test_wrong_flags_end_in_a_sentence(
    own_run: Path, capsys: pytest.CaptureFixture[str], more: list[str], why: str
) -> None:
    assert main(["analyze", str(own_run), "--no-tsne", *more]) == 2
    said = capsys.readouterr()
    assert why in said.err
    assert said.out == ""


def test_nothing_and_the_same_twice_are_refused(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze"]) == 2
    assert "nothing to analyse" in capsys.readouterr().err
    assert main(["analyze", str(own_run), str(own_run), "--device", "cpu"]) == 2
    assert "twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, how) for name in ("model.safetensors", "paths.safetensors", "config.json") for how in ("gone", "cut")),
        ("evaluation.json", "gone"),
    ],
)
def test_damaged_folders_end_in_a_sentence(
    own_run: Path, capsys: pytest.CaptureFixture[str], name: str, how: str
) -> None:
    file = own_run / name
    file.write_bytes(file.read_bytes()[:20]) if how == "cut" else file.unlink()
    assert main(["analyze", str(own_run), "--no-tsne", "--device", "cpu"]) == 2
    assert capsys.readouterr().err.count("Traceback") == 0


def test_a_full_disk_leaves_no_half_analysis(
    own_run: Path, disk_of: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    with disk_of(100):
        assert main(["analyze", str(own_run), "--no-tsne", "--device", "cpu"]) == 0
    said = capsys.readouterr()
    assert "The analysis is not kept: Could not write" in said.err
    assert "pairs with the same path" in said.out
    assert not list(own_run.glob("*analysis*"))
