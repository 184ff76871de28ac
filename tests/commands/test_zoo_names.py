"""zoo:NAME wherever a command takes a run."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from codinet.cli import VERBS, main
from codinet.runs import open_run
from codinet.zoo.card import Card

Captured = pytest.CaptureFixture[str]
NAME = "digits-resnet20-06"


def json_of(capsys: Captured, *words: str) -> Any:
    """The JSON that a command prints."""
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: Captured, *words: str) -> str:
    assert main(list(words)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


def test_models_lists_the_zoo(zoo: Path, capsys: Captured) -> None:
    (entry,) = json_of(capsys, "models")["zoo"]
    card = Card.read(zoo / f"{NAME}.json")
    assert list(entry) == ["name", "data", "arch", "accuracy", "cost_share", "distinct_paths", "sha256"]
    assert all(card[key] == value for key, value in entry.items())
    assert main(["models"]) == 0
    said = capsys.readouterr().out
    assert re.search(rf"{NAME}\W+digits\W+resnet20\W+{card['accuracy']:.2f}\b", said)


def test_eval_reproduces_the_card(zoo: Path, capsys: Captured) -> None:
    before = {file.name: file.read_bytes() for file in zoo.iterdir()}
    found = json_of(capsys, "eval", f"zoo:{NAME}", "--device", "cpu")
    card = Card.read(zoo / f"{NAME}.json").figures()
    assert {key: found[key] for key in card} == card
    assert found["same_as_card"] is True
    assert found["card"] == {key: value for key, value in card.items() if key != "loss"}
    assert main(["eval", f"zoo:{NAME}", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert said.count(f"{card['accuracy']:.2f} %") == 2
    assert "The results are those on the card." in said
    assert {file.name: file.read_bytes() for file in zoo.iterdir()} == before


def test_eval_reports_a_difference_from_the_card(zoo: Path, capsys: Captured) -> None:
    file = zoo / f"{NAME}.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"accuracy": 99.0}))
    assert json_of(capsys, "eval", f"zoo:{NAME}", "--device", "cpu")["same_as_card"] is False
    assert main(["eval", f"zoo:{NAME}", "--device", "cpu"]) == 0
    assert "The results differ from those on the card." in capsys.readouterr().out


def test_eval_at_another_threshold_leaves_the_card_out(zoo: Path, tmp_path: Path, capsys: Captured) -> None:
    words = ["--threshold", "1", "--paths", str(tmp_path / "paths"), "--device", "cpu"]
    found = json_of(capsys, "eval", f"zoo:{NAME}", *words)
    assert "card" not in found
    assert found["mean_blocks"] == 0
    assert (tmp_path / "paths").exists()


def test_predict_export_and_bench_accept_it(zoo: Path, tmp_path: Path, capsys: Captured) -> None:
    picture, entry = tmp_path / "image.png", f"zoo:{NAME}"
    Image.new("L", (8, 8), 128).save(picture)
    (answer,) = json_of(capsys, "predict", entry, str(picture), "--device", "cpu")["predictions"]
    assert len(answer["path"]) == 9
    exported = json_of(capsys, "export", entry, "--out", str(tmp_path / "model.onnx"))
    assert exported["checked_real"] == 64
    rows = json_of(
        capsys,
        "bench",
        entry,
        "--batch",
        "1",
        "--rounds",
        "2",
        "--images",
        "2",
        "--engines",
        "branch",
        "--device",
        "cpu",
    )["rows"]
    assert "branch" in {row["engine"] for row in rows}


@pytest.mark.parametrize(
    "words", [["eval", "RUN"], ["predict", "RUN", "a.png"], ["export", "RUN", "--out", "a.onnx"], ["bench", "RUN"]]
)
def test_an_unknown_name_is_one_line(zoo: Path, words: list[str], capsys: Captured) -> None:
    words = ["zoo:digits-resnet20" if word == "RUN" else word for word in words]
    assert "Unknown network of the zoo 'digits-resnet20'" in refused(capsys, *words)


def test_the_explorer_shows_it(zoo: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    from codinet.explorer import serve

    seen: dict[str, Any] = {}

    def ask(app: Any, listener: Any, *, open_at: str | None) -> None:
        """In the place of a server that waits for a browser."""
        listener.close()
        with TestClient(app, base_url="http://127.0.0.1") as browser:
            seen.update(browser.get("/api/run").json())
            seen["routed image"] = browser.get("/api/images/3/route").json()

    monkeypatch.setattr(serve, "serve", ask)
    assert main(["explore", f"zoo:{NAME}", "--port", "0", "--device", "cpu"]) == 0
    assert seen["evaluation"]["accuracy"] == Card.read(zoo / f"{NAME}.json")["accuracy"]
    assert (seen["images"], seen["maps"][0]) == (500, "pca")
    assert len(seen["routed image"]["image"]["path"]) == 9
    assert "without" not in capsys.readouterr().err


def test_every_verb_that_takes_a_run_accepts_it(capsys: Captured) -> None:
    def helps(verb: str) -> str:
        assert main([verb, "--help"]) == 0
        return capsys.readouterr().out

    texts = {verb: helps(verb) for verb in VERBS}
    takes_run = {verb for verb, text in texts.items() if re.search(r"\bRUNS?\b", text.split("options")[0])}
    assert takes_run == {"eval", "predict", "analyze", "report", "explore", "export"}
    # bench takes a network or a run; train and sweep take runs as --start and --teacher
    assert {verb for verb, text in texts.items() if "zoo:NAME" in text} == {*takes_run, "bench", "train", "sweep"}


def test_analyze_and_report_unpack_it(
    zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    build_report = pytest.importorskip("codinet.report.build_report")  # needs matplotlib
    monkeypatch.chdir(tmp_path)
    card = Card.read(zoo / f"{NAME}.json")
    words = [f"zoo:{NAME}", "--no-tsne", "--device", "cpu", "--json"]
    assert main(["analyze", *words, "--images", "20"]) == 0
    said = capsys.readouterr()
    assert said.err.startswith(f"codinet: unpacking zoo:{NAME} into runs/{NAME}\n")
    (run,) = json.loads(said.out)["runs"]
    assert run["usage"]["distinct_paths"] == card["distinct_paths"]
    assert open_run(f"runs/{NAME}").load_evaluation() == card.figures()
    seen: list[Any] = []

    def write_report(runs: list[Any], out: Path, **_options: object) -> SimpleNamespace:
        """Stands in for the drawing of figures, which takes seconds."""
        seen.extend(run.folder.path for run in runs)
        return SimpleNamespace(page=out / "index.html", figures=[])

    monkeypatch.setattr(build_report, "write_report", write_report)
    assert main(["report", *words]) == 0  # with the analysis that is there
    assert seen == [Path("runs", NAME)]
    said = capsys.readouterr()
    assert "unpacking" not in said.err
    assert json.loads(said.out)["report"] == f"runs/{NAME}/report/index.html"
