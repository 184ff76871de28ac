"""What the README's first command does, on few images for few epochs."""

import io
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from codinet import demo
from codinet.presets import demo as preset
from codinet.runs import RunFolder

KINDS = ["static", "vanilla", "codinet"]


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
    assert list((out / "report" / "figures").glob("*.png"))

    made = {file: file.stat().st_mtime_ns for name in KINDS for file in (out / name).rglob("*.safetensors")}
    assert made
    assert demo.compare(out, config) == 0
    assert {file: file.stat().st_mtime_ns for file in made} == made
    assert picture.read_bytes() == drawn


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
