"""What the README's first command does, on few images for few epochs."""

import html
import io
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from codinet import demo
from codinet.evaluate import Evaluation
from codinet.presets import demo as preset
from codinet.runs import RunFolder

KINDS = ["static", "vanilla", "codinet"]


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report's figures are drawn, but not rendered, which takes most of the time."""

    def save(_figure: object, folder: Path, name: str, _alt: str) -> str:
        (folder / f"{name}.png").write_text("")
        return '<svg viewBox="0 0 1 1"></svg>'

    monkeypatch.setattr("codinet.report.build_report.save_figure", save)


@pytest.mark.usefixtures("unrendered")
def test_it_leaves_what_it_promises_and_shows_it_again(
    tmp_path: Path, digits_npz: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = preset(str(digits_npz))
    config = replace(config, schedule=replace(config.schedule, epochs=1, finetune=1, batch=16))
    out = tmp_path / "demo"
    assert demo.compare(out, config) == 0
    said = capsys.readouterr().out

    runs = {name: RunFolder.open(out / name) for name in KINDS}
    assert all(run.finished for run in runs.values())
    assert not runs["static"].config.network.routed
    assert (runs["vanilla"].config.losses.alpha, runs["vanilla"].config.losses.beta) == (0, 0)
    assert runs["vanilla"].config.losses.budget == runs["codinet"].config.losses.budget == 0.6
    assert "Few, resnet20, budget 0.6" in said
    table = [[cell.strip() for cell in line.split("│")[1:3]] for line in said.splitlines() if "│" in line]
    assert table == [[name, f"{run.load_evaluation()['accuracy']:.2f}"] for name, run in runs.items()]

    picture, page = out / "paths.png", out / "report" / "index.html"
    assert said.endswith(f"block: {picture}. The report: {page}.\n")
    drawn = picture.read_bytes()
    with Image.open(io.BytesIO(drawn)) as image:
        image.load()
        assert len(image.convert("RGB").getcolors(maxcolors=2**24) or []) > 2
    assert all(name in page.read_text() for name in KINDS)
    (remark,) = (line for line in said.splitlines() if line.startswith("The accuracies are static "))
    assert html.escape(remark) in page.read_text()
    assert list((out / "report" / "figures").glob("*.png"))

    made = {file: file.stat().st_mtime_ns for name in KINDS for file in (out / name).rglob("*.safetensors")}
    assert made
    assert demo.compare(out, config) == 0
    assert {file: file.stat().st_mtime_ns for file in made} == made
    assert picture.read_bytes() == drawn


def test_the_remark_follows_the_results() -> None:
    def found(accuracy: float, paths: int) -> Evaluation:
        few = SimpleNamespace(label_T=range(500))
        return SimpleNamespace(accuracy=accuracy, distinct_paths=paths, paths=few)  # type: ignore[return-value]

    static = found(99.2, 1)
    said = demo.explain({"static": static, "vanilla": found(99.2, 4), "codinet": found(99.0, 28)})
    assert "static 99.2 %, vanilla 99.2 %, codinet 99.0 %, and one test image is 0.2 %: these digits are too" in said
    assert "28 instead of 4" in said
    assert said.count(". ") == 1
    said = demo.explain({"static": static, "vanilla": found(97.0, 4), "codinet": found(99.0, 4)})
    assert "too easy" not in said
    assert "instead of" not in said


def test_as_a_command_it_tells_what_it_cannot_do_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("a file")
    monkeypatch.setattr(sys, "argv", ["demo", "--out", str(tmp_path / "taken")])
    monkeypatch.delitem(sys.modules, "codinet.demo")  # Python warns of a module that is imported and run
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("codinet.demo", run_name="__main__")
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("codinet: ")
    assert f"{tmp_path / 'taken' / 'static'}" in said
    assert "Not a directory; choose another --out" in said
    assert said.count("\n") == 1
