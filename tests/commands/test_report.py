import contextlib
import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import codinet.report
from codinet import files
from codinet.cli import main


@pytest.fixture(scope="module")
def reported(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A run with a report, and what the command printed on stdout and stderr."""
    run = shutil.copytree(finished_run, tmp_path_factory.mktemp("reports") / "run")
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert main(["report", str(run), "--no-tsne", "--json", "--device", "cpu"]) == 0
    return run, out.getvalue(), err.getvalue()


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are drawn, but not rendered, which takes most of the time of a report."""

    def save(_figure: object, folder: Path, name: str, _alt: str) -> str:
        for kind in ("svg", "png"):
            (folder / f"{name}.{kind}").write_text("")
        return '<svg viewBox="0 0 1 1"></svg>'

    monkeypatch.setattr("codinet.report.build_report.save_figure", save)


def test_the_report_is_written_into_the_run_folder(reported: tuple[Path, str, str]) -> None:
    run, out, err = reported
    result = json.loads(out)
    assert result["report"] == str(run / "report" / "index.html")
    assert "fig-run-rates-run" in (run / "report" / "index.html").read_text()
    assert {"accuracy-cost.svg", "accuracy-cost.png"} <= set(result["figures"])
    assert "run: augmented images" in err  # the analysis that was missing
    assert (run / "analysis.json").exists()
    [time] = result["times"]
    assert time == json.loads((run / "inference_time.json").read_text())["time"]
    assert f"measured on {time['device']}, 1 thread, on {time['measured'][:10]}" in (
        run / "report" / "index.html"
    ).read_text().replace("&#x27;", "'")


@pytest.mark.usefixtures("unrendered")
def test_a_saved_analysis_is_used(
    reported: tuple[Path, str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _, _ = reported
    before = (run / "inference_time.json").stat().st_mtime_ns
    assert main(["report", str(run), "--out", str(tmp_path / "deep" / "er"), "--device", "cpu"]) == 0
    assert (run / "inference_time.json").stat().st_mtime_ns == before
    output = capsys.readouterr()
    assert "augmented images" not in output.err
    assert "index.html" in output.out
    assert (tmp_path / "deep" / "er" / "index.html").exists()


@pytest.mark.usefixtures("unrendered")
def test_figures_of_an_earlier_report_are_deleted(
    reported: tuple[Path, str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, figures = tmp_path / "report", tmp_path / "report" / "figures"
    other = shutil.copytree(reported[0], tmp_path / "other")
    assert main(["report", str(other), str(reported[0]), "--out", str(out), "--device", "cpu"]) == 0
    assert (figures / "effort-other.png").exists()
    (figures / "effort-mine.png").write_text("a user's file")
    capsys.readouterr()
    assert main(["report", str(reported[0]), "--out", str(out), "--json", "--device", "cpu"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["figures"] == sorted(file.name for file in figures.iterdir() if file.name != "effort-mine.png")
    assert "effort-run.svg" in result["figures"]
    assert not any("other" in name for name in result["figures"])
    assert (figures / "effort-mine.png").read_text() == "a user's file"


@pytest.mark.usefixtures("unrendered")
def test_features_come_from_a_static_run_in_the_same_report(
    own_run: Path, tmp_path: Path, train_words: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(train_words(tmp_path / "plain", "--no-routed")) == 0
    capsys.readouterr()
    words = ["report", str(own_run), str(tmp_path / "plain"), "--no-tsne", "--no-time", "--device", "cpu"]
    assert main(words) == 0
    page = (own_run / "report" / "index.html").read_text()
    assert "ms per image" not in page
    assert not (own_run / "inference_time.json").exists()
    assert "the last layer of the static run plain" in page


def test_a_report_of_a_network_with_one_path(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors, about = files.load_tensors(own_run / "model.safetensors")
    still = {name: torch.zeros_like(tensor) if "router" in name else tensor for name, tensor in tensors.items()}
    files.save_tensors(own_run / "model.safetensors", still, about)
    assert main(["eval", str(own_run), "--json", "--device", "cpu"]) == 0
    evaluation = json.loads(capsys.readouterr().out)
    assert evaluation["distinct_paths"] == 1
    files.write_json(own_run / "evaluation.json", evaluation)
    assert main(["report", str(own_run), "--no-time", "--device", "cpu"]) == 0
    figures = json.loads((own_run / "analysis.json").read_text())["figures"]
    assert figures["consistency"]["same_path"] == 1
    assert figures["correlation"]["pcc_relaxed"] is figures["correlation"]["pcc_hard"] is None
    assert figures["embedding"]["tsne_points"] == 0
    assert "PCC undefined" in (own_run / "report" / "index.html").read_text()


def test_an_unwritable_folder_is_rejected(
    reported: tuple[Path, str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert main(["report", str(reported[0]), "--out", str(tmp_path / "file" / "report"), "--device", "cpu"]) == 2
    assert "choose another --out" in capsys.readouterr().err


@pytest.mark.usefixtures("unrendered")
def test_a_read_only_run_can_be_reported_with_out(
    own_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_run / "analysis.safetensors").mkdir()  # which no file can replace
    words = ["report", str(own_run), "--no-tsne", "--no-time", "--out", str(tmp_path / "report"), "--device", "cpu"]
    assert main(words) == 0
    assert "The analysis is not saved: " in capsys.readouterr().err
    assert (tmp_path / "report" / "index.html").exists()


@pytest.mark.usefixtures("unrendered")
def test_damaged_metrics_are_skipped(
    reported: tuple[Path, str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(reported[0], tmp_path / "run")
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b"[1]\n\xff\n")
    assert main(["report", str(run), "--no-tsne", "--device", "cpu"]) == 0


def test_unfinished_damaged_and_missing_runs_are_rejected(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report"]) == 2
    assert "at least one run folder" in capsys.readouterr().err
    assert main(["report", str(own_run / "none"), "--device", "cpu"]) == 2
    assert "no run folder" in capsys.readouterr().err
    (own_run / "evaluation.json").write_text('{"accuracy": "high"}')
    assert main(["report", str(own_run), "--no-tsne", "--device", "cpu"]) == 2
    assert "evaluation.json" in capsys.readouterr().err
    (own_run / "evaluation.json").unlink()
    assert main(["report", str(own_run), "--device", "cpu"]) == 2
    assert "not finished" in capsys.readouterr().err


def test_without_matplotlib(
    own_run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    hide_package: Callable[[str], None],
) -> None:
    monkeypatch.setattr(codinet, "report", codinet.report)  # importing it again would replace it for later tests
    for name in [name for name in sys.modules if name.startswith("codinet.report")]:
        monkeypatch.delitem(sys.modules, name)
    hide_package("matplotlib")
    assert main(["report", str(own_run), "--device", "cpu"]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err
