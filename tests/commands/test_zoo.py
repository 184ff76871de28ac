"""`codinet zoo`, and zoo:NAME wherever a run folder can stand."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from codinet.cli import VERBS, main
from codinet.commands import models
from codinet.runs import RunFolder
from codinet.zoo.card import Card

Said = pytest.CaptureFixture[str]
NAME = "digits-resnet20-06"


def told(capsys: Said, *words: str) -> Any:
    """The JSON that a command prints."""
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: Said, *words: str) -> str:
    assert main(list(words)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


def test_a_run_is_added_and_listed(empty_zoo: Path, digits_run: Path, capsys: Said) -> None:
    assert told(capsys, "zoo") == {"zoo": []}
    assert main(["zoo"]) == 0
    assert capsys.readouterr().out == (
        "The zoo holds no trained networks yet; codinet zoo add RUN --name NAME adds one.\n"
    )
    card = told(capsys, "zoo", "add", str(digits_run), "--name", "mine")
    assert Card.read(empty_zoo / "mine.json").content == card
    assert told(capsys, "zoo", "list") == {"zoo": [card]}
    assert main(["zoo", "add", str(digits_run), "--name", "mine", "--replace"]) == 0
    assert "mine is in the zoo" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["list", "foo"], "list shows all there are, and does not take 'foo'; leave it out."),
        (["add"], "Say which run to add and what to call it"),
        (["add", "RUN"], "Say which run to add and what to call it"),
        (["add", "RUN", "--name", NAME], f"The zoo already has {NAME}"),
        (["add", "no/such/run", "--name", "x"], "There is no run folder no/such/run"),
        (["add", f"zoo:{NAME}", "--name", "x"], "is not a folder; unpack it"),
        (["unpack", NAME], "Say which network to unpack and where"),
        (["unpack", "digits-resnet20", "--out", "x"], f"perhaps you meant {NAME}"),
    ],
)
def test_what_cannot_be_done_is_said(
    zoo: Path, digits_run: Path, words: list[str], sentence: str, capsys: Said
) -> None:
    words = [str(digits_run) if word == "RUN" else word for word in words]
    assert sentence in refused(capsys, "zoo", *words)


def test_models_lists_the_zoo(zoo: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    monkeypatch.setattr(models, "list_models", lambda: ["resnet20"])  # the large ones take seconds to build
    (entry,) = told(capsys, "models")["zoo"]
    card = Card.read(zoo / f"{NAME}.json")
    assert list(entry) == ["name", "data", "arch", "accuracy", "cost_share", "distinct_paths", "sha256"]
    assert all(card[key] == value for key, value in entry.items())
    assert main(["models"]) == 0
    said = capsys.readouterr().out
    assert re.search(rf"{NAME}\W+digits\W+resnet20\W+{card['accuracy']:.2f}\b", said)


def test_eval_finds_what_the_card_says(zoo: Path, capsys: Said) -> None:
    before = {file.name: file.read_bytes() for file in zoo.iterdir()}
    found = told(capsys, "eval", f"zoo:{NAME}", "--device", "cpu")
    card = Card.read(zoo / f"{NAME}.json").figures()
    assert {key: found[key] for key in card} == card
    assert found["same_as_card"] is True
    assert found["card"] == {key: value for key, value in card.items() if key != "loss"}
    assert main(["eval", f"zoo:{NAME}", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert said.count(f"{card['accuracy']:.2f} %") == 2
    assert "Measured is what the card says." in said
    assert {file.name: file.read_bytes() for file in zoo.iterdir()} == before


def test_eval_says_when_the_card_is_not_true(zoo: Path, capsys: Said) -> None:
    file = zoo / f"{NAME}.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"accuracy": 99.0}))
    assert told(capsys, "eval", f"zoo:{NAME}", "--device", "cpu")["same_as_card"] is False
    assert main(["eval", f"zoo:{NAME}", "--device", "cpu"]) == 0
    assert "Measured is not quite what the card says." in capsys.readouterr().out


def test_eval_at_another_threshold_leaves_the_card_out(zoo: Path, tmp_path: Path, capsys: Said) -> None:
    words = ["--threshold", "1", "--paths", str(tmp_path / "paths"), "--device", "cpu"]
    found = told(capsys, "eval", f"zoo:{NAME}", *words)
    assert "card" not in found
    assert found["mean_blocks"] == 0
    assert (tmp_path / "paths").exists()


def test_predict_export_and_bench_take_it(zoo: Path, tmp_path: Path, capsys: Said) -> None:
    picture, entry = tmp_path / "image.png", f"zoo:{NAME}"
    Image.new("L", (8, 8), 128).save(picture)
    (answer,) = told(capsys, "predict", entry, str(picture), "--device", "cpu")["predictions"]
    assert len(answer["path"]) == 9
    exported = told(capsys, "export", entry, "--out", str(tmp_path / "model.onnx"))
    assert exported["checked_real"] == 64
    rows = told(
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
def test_a_name_that_is_not_there_is_one_sentence(zoo: Path, words: list[str], capsys: Said) -> None:
    words = ["zoo:digits-resnet20" if word == "RUN" else word for word in words]
    assert "Unknown network of the zoo 'digits-resnet20'" in refused(capsys, *words)


def test_the_explorer_shows_it(zoo: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
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


def test_the_readme_says_which_verbs_take_it(capsys: Said) -> None:
    def helps(verb: str) -> str:
        assert main([verb, "--help"]) == 0
        return capsys.readouterr().out

    readme = (Path(__file__).parents[2] / "README.md").read_text()
    found = re.search(r"come with it, as the `RUN` of (.*?);", readme, re.DOTALL)
    assert found is not None
    assert {verb for verb in VERBS if "zoo:NAME" in helps(verb)} == set(re.findall(r"`(\w+)`", found[1]))


@pytest.mark.parametrize("verb", ["analyze", "report"])
def test_what_writes_into_a_run_says_how_to_get_one(zoo: Path, verb: str, capsys: Said) -> None:
    assert f"codinet zoo unpack {NAME} --out DIR" in refused(capsys, verb, f"zoo:{NAME}")


def test_an_unpacked_one_is_analysed(zoo: Path, tmp_path: Path, capsys: Said) -> None:
    out = tmp_path / "run"
    found = told(capsys, "zoo", "unpack", f"zoo:{NAME}", "--out", str(out))
    assert found["accuracy"] == Card.read(zoo / f"{NAME}.json")["accuracy"]
    assert RunFolder.open(out).finished
    (run,) = told(capsys, "analyze", str(out), "--no-tsne", "--images", "20", "--device", "cpu")["runs"]
    assert run["usage"]["distinct_paths"] == found["distinct_paths"]
