"""`codinet export`."""

import json
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")

import torch

from codinet import cli
from codinet.data import Dataset, normalise
from codinet.engines.onnx import OnnxEngine
from codinet.runs import RunFolder


@pytest.fixture(autouse=True)
def _verb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.VERBS, "export", "")


@pytest.mark.parametrize("kind", ["routed", "masked", "static"])
def test_every_kind_is_exported(
    kind: str, finished_run: Path, tmp_path: Path, few: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.onnx"
    assert cli.main(["export", str(finished_run), "--out", str(file), "--kind", kind, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == kind
    assert told["checked_real"] == len(few.test)
    assert told["checked"] > told["checked_real"]
    engine, folder = OnnxEngine(file), RunFolder.open(finished_run)
    assert engine.about["classes"] == list(folder.data.classes)
    assert engine.about["std"] == list(folder.data.std)
    images = normalise(few.test.images_NCHW, torch.tensor(few.mean), torch.tensor(few.std))
    model = folder.load_model()
    with torch.no_grad():
        reference = model(images, force=torch.ones(9)) if kind == "static" else model(images)
    output = engine(images)
    assert torch.equal(output.path_BN, reference.path_BN)
    torch.testing.assert_close(output.logits_BK, reference.logits_BK, atol=1e-4, rtol=1e-4)


def test_a_path_makes_it_static(finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.onnx"
    assert cli.main(["export", str(finished_run), "--out", str(file), "--path", "101010101"]) == 0
    assert "static network" in capsys.readouterr().out
    assert OnnxEngine(file).about["path"] == [1, 0] * 4 + [1]


def test_without_the_data_random_images_are_checked(
    own_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((own_run / "config.json").read_text())
    config["config"]["source"] = str(tmp_path / "gone.npz")
    (own_run / "config.json").write_text(json.dumps(config))
    assert cli.main(["export", str(own_run), "--out", str(tmp_path / "model.onnx")]) == 0
    captured = capsys.readouterr()
    assert "random images only" in captured.err
    assert "0 of them real" in captured.out


@pytest.mark.parametrize("threshold", [0.5, 0.9])
def test_usual_decisions_are_those_of_the_test_images(
    threshold: float, finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, words = tmp_path / "model.onnx", ["--threshold", str(threshold)]
    rates = (RunFolder.open(finished_run).load_paths().run_probability_TN >= threshold).float().mean(dim=0).tolist()
    expected = [int(rate) if rate in (0, 1) else None for rate in rates]
    assert cli.main(["export", str(finished_run), "--out", str(file), *words]) == 0
    assert OnnxEngine(file).about["usual"] == expected
    assert cli.main(["export", str(finished_run), "--out", str(file), *words, "--no-usual"]) == 0
    assert "usual" not in OnnxEngine(file).about


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out", "model.pt"], ".onnx"),
        (["--out", "m.onnx", "--path", "10102"], "--path must have one digit per block"),
        (["--out", "m.onnx", "--path", "101"], "9 digits"),
        (["--out", "m.onnx", "--path", "101010101", "--kind", "masked"], "path is for the kind static"),
        (["--out", "m.onnx", "--threshold", "7"], "--threshold must be a number from 0 to 1"),
        (["--out", "m.onnx", "--opset", "3"], "opset must be from 13 to 22, got 3"),
        (["--out", "m.onnx", "--kind", "dynamic"], "--kind"),
        (["--out", "m.onnx", "--usual", "--kind", "masked"], "--usual applies to the kind routed"),
        (["--out", "m.onnx", "--threshold", "0.9", "--kind", "static"], "--threshold applies to the kinds routed and"),
        (["--out", "nowhere/m.onnx"], "Could not write"),
    ],
)
def test_invalid_arguments_are_refused(
    words: list[str],
    said: str,
    finished_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["export", str(finished_run), *words]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []
