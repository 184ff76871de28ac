"""What the documentation says about `Predictor` and the Hugging Face hub, without a network connection."""

import re
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from PIL import Image

from codinet import CoDiNet, UserError, open_run

DOCS = Path(__file__).parents[1] / "docs" / "inference.md"


def code_with(text: str) -> str:
    (code,) = [part for part in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL) if text in part]
    return code


@pytest.fixture
def place(finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with what the examples use."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(finished_run)
    (tmp_path / "photos").mkdir()
    for file in ("cat.jpg", "photos/a.png", "photos/b.jpg"):
        Image.new("RGB", (30, 20), "gray").save(tmp_path / file)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_documented_predictor(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(code_with("predict_files"), {})
    first, *files = capsys.readouterr().out.splitlines()
    assert first.split()[0] in open_run("runs/mine").data.classes
    assert [line.split()[0] for line in files] == ["photos/a.png", "photos/b.jpg"]
    assert all("Prediction(" in line for line in files)


def test_the_documented_way_to_the_hub_and_back(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def push(model: CoDiNet, repo_id: str, *, results: dict[str, Any]) -> str:
        model.save_pretrained(place / repo_id, results=results, repo_id=repo_id)
        return "address"

    monkeypatch.setattr(CoDiNet, "push_to_hub", push)
    names: dict[str, Any] = {}
    exec(code_with("push_to_hub"), names)
    run, config = open_run("runs/mine"), names["config"]
    assert (config.classes, config.mean, config.std) == (run.data.classes, run.data.mean, run.data.std)
    assert config == run.load_model().config
    card = ModelCard.load(place / "me" / "flowers" / "README.md")
    assert 'from_pretrained("me/flowers")' in card.text
    assert f"| accuracy | {run.load_evaluation()['accuracy']:.2f} % |" in card.text
    assert f"| data | {Path(run.data.name).name} |".replace("_", "\\_") in card.text
    assert capsys.readouterr().out.splitlines()[-1].split()[0] in config.classes


def test_a_run_that_is_not_finished_is_not_published(own_run: Path, tmp_path: Path) -> None:
    (own_run / "evaluation.json").unlink()
    for publish in (open_run(own_run).save_pretrained, open_run(own_run).push_to_hub):
        with pytest.raises(UserError, match="is not finished"):
            publish(str(tmp_path / "out"))
