import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from codinet import cli
from tools.results.__main__ import main
from tools.results.record import Record, save_records

Said = pytest.CaptureFixture[str]


def refused(capsys: Said, *words: str) -> str:
    assert main([*words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


def test_add_and_render(finished_run: Path, tmp_path: Path, capsys: Said) -> None:
    shutil.copytree(finished_run, tmp_path / "sweep" / "one")
    folder, page = tmp_path / "results", tmp_path / "results.md"
    words = ["--table", "results", "ablation", "--results", str(folder)]
    assert main(["add", str(tmp_path / "sweep"), *words]) == 0
    assert capsys.readouterr().out.startswith(f"Wrote 1 result to {folder};")
    assert main(["render", "--results", str(folder), "--out", str(page), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"page": str(page), "figures": [], "results": 1}
    text = page.read_text()
    accuracy = json.loads((finished_run / "evaluation.json").read_text())["accuracy"]
    assert text.count(f"| ResNet-20, CoDiNet | `paper`, batch 16 | 1 + 1 | 0.6 | {accuracy:.2f} (1) |") == 2
    assert str(tmp_path) not in text
    assert main(["render", "--results", str(folder), "--out", str(page)]) == 0
    assert capsys.readouterr().out == f"Wrote {page} with 1 result.\n"
    assert page.read_text() == text


def test_render_writes_the_figure_of_the_page(record: Callable[..., Record], tmp_path: Path, capsys: Said) -> None:
    folder, page, figure = (tmp_path / name for name in ("results", "docs/results.md", "docs/images/results.svg"))
    page.parent.mkdir()
    save_records([record()], folder, replace=False)
    assert main(["render", "--results", str(folder), "--out", str(page)]) == 0
    assert capsys.readouterr().out == f"Wrote {page}, {figure} with 1 result.\n"
    assert "(images/results.svg)" in page.read_text()
    assert "<svg" in figure.read_text()


def test_a_rejected_run_leaves_nothing(
    finished_run: Path, tmp_path: Path, train_words: Callable[..., list[str]], capsys: Said
) -> None:
    assert cli.main(train_words(tmp_path / "held", "--holdout", "16")) == 0
    capsys.readouterr()
    words = [str(finished_run), str(tmp_path / "held"), "--results", str(tmp_path / "results")]
    assert "was trained with --holdout 16" in refused(capsys, "add", *words)
    assert not (tmp_path / "results").exists()


def test_routing_table(finished_run: Path, tmp_path: Path, train_words: Callable[..., list[str]], capsys: Said) -> None:
    """Uses a real analysis, because the row shows where its features come from."""
    run, static, folder, page = (tmp_path / name for name in ("run", "static", "results", "results.md"))
    shutil.copytree(finished_run, run)
    assert cli.main(train_words(static, "--no-routed")) == 0
    add = ["add", str(run), "--table", "routing", "--results", str(folder)]
    capsys.readouterr()
    assert f"{run} has no analysis" in refused(capsys, *add)
    for words, features in (([], "own last layer"), (["--static", str(static)], "a static run's last layer")):
        assert cli.main(["analyze", str(run), "--no-tsne", "--device", "cpu", *words]) == 0
        assert main(add) == 0
        assert main(["render", "--results", str(folder), "--out", str(page)]) == 0
        text = page.read_text()
        assert "## Routing behaviour: few" in text
        assert f"| {features} |" in text
    capsys.readouterr()
    assert "is a static run" in refused(capsys, "add", str(static), *add[2:])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["add"], "No runs given"),
        (["add", "no/such/run"], "There is no run folder no/such/run"),
        (["add", "RUN", "--table", "ablatoin"], "Unknown table 'ablatoin' (perhaps you meant ablation)"),
        (["add", "zoo:x"], "Unknown network of the zoo 'x'"),
        (["render", "RUN"], "render takes no runs"),
        (["render", "--results", "no/such/folder"], "no/such/folder is not a folder"),
    ],
)
def test_errors(finished_run: Path, words: list[str], sentence: str, capsys: Said) -> None:
    assert sentence in refused(capsys, *(str(finished_run) if word == "RUN" else word for word in words))
