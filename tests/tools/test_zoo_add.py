import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from codinet import files
from codinet.data import load
from codinet.errors import UserError
from codinet.evaluate import FIGURES, TOP5, evaluate_test_set
from codinet.runs import RunFolder
from codinet.zoo.card import FIELDS, Card
from codinet.zoo.shelf import find
from codinet.zoo.zoo_run import PREFIX, open_card
from tools import zoo_add
from tools.zoo_add import add

NAME, CPU = "digits-resnet20-06", torch.device("cpu")


@pytest.fixture
def own_digits_run(digits_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(digits_run, tmp_path / "run")


def test_the_card_describes_the_run(stocked: Path, digits_run: Path) -> None:
    card, run = find(NAME, stocked), RunFolder.open(digits_run)
    assert set(card.content) == {*FIELDS, TOP5}  # it has ten classes
    assert card.config() == run.config
    assert card.data_info() == run.data
    assert card["as_trained"] == {key: run.load_evaluation()[key] for key in (*FIGURES, TOP5)}
    assert (card["seed"], card["commit"], card["device"], card["n"]) == (0, "tests", "cpu", 500)
    assert card["versions"]["torch"] == torch.__version__
    assert card["wall_s"] == run.wall_seconds()
    assert card["wall_s"] > 0
    assert card["measured"]["batch"] == 250


def test_weights_are_in_half_precision(stocked: Path, digits_run: Path) -> None:
    file = stocked / f"{NAME}.safetensors"
    both, _ = files.load_tensors(file)
    half = {name: tensor for name, tensor in both.items() if not name.startswith(PREFIX)}
    whole, _ = files.load_tensors(digits_run / "model.safetensors")
    assert half.keys() == whole.keys()
    assert {tensor.dtype for tensor in half.values()} == {torch.float16, torch.int64}
    assert all(torch.equal(half[name], whole[name].to(half[name].dtype)) for name in half)
    card = find(NAME, stocked)
    assert card["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert card["bytes"] == file.stat().st_size < (digits_run / "model.safetensors").stat().st_size


def test_metrics_are_those_of_the_loaded_weights(stocked: Path) -> None:
    card = find(NAME, stocked)
    model = open_card(card, stocked).load_model()
    assert evaluate_test_set(model, load("digits", Path()), CPU).summary() == card.figures()


def test_the_same_run_gives_the_same_files(stocked: Path, digits_run: Path, tmp_path: Path) -> None:
    add(RunFolder.open(digits_run), NAME, Path(), device=CPU, into=tmp_path)
    for file in stocked.iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()


def test_names_are_unique(zoo: Path, digits_run: Path) -> None:
    run = RunFolder.open(digits_run)
    with pytest.raises(UserError, match=rf"The zoo already has {NAME}; choose another --name, or pass --replace"):
        add(run, NAME, Path(), device=CPU)
    (zoo / f"{NAME}.safetensors").write_bytes(b"damaged")
    assert add(run, NAME, Path(), device=CPU, replace=True)["sha256"] == find(NAME)["sha256"]
    open_card(find(NAME)).load_model()


@pytest.mark.parametrize("name", ["", "../up", "a/b", "Big", "-dash", "a" * 65, "zoo:x"])
def test_invalid_names(name: str, digits_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--name must consist of lowercase letters"):
        add(RunFolder.open(digits_run), name, Path(), device=CPU, into=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_unfinished_runs_are_refused(own_digits_run: Path, tmp_path: Path) -> None:
    (own_digits_run / "evaluation.json").unlink()
    with pytest.raises(UserError, match="is not finished; finish it with codinet train … --resume"):
        add(RunFolder.open(own_digits_run), NAME, Path(), device=CPU, into=tmp_path / "zoo")


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("evaluation.json", b"[]", "is not an evaluation"),
        ("evaluation.json", b"{", "cannot be read as JSON"),
        ("model.safetensors", b"nothing", "damaged or not a safetensors file"),
    ],
)
def test_damaged_runs_are_refused(own_digits_run: Path, tmp_path: Path, file: str, content: bytes, words: str) -> None:
    (own_digits_run / file).write_bytes(content)
    with pytest.raises(UserError, match=words):
        add(RunFolder.open(own_digits_run), NAME, Path(), device=CPU, into=tmp_path / "zoo")
    assert not (tmp_path / "zoo").exists()


def test_other_data_is_refused(digits_run: Path, tmp_path: Path) -> None:
    run = RunFolder.open(digits_run)
    run = replace(run, data=replace(run.data, sha256="0" * 64))
    with pytest.raises(UserError, match="was trained on other data than digits holds now; check --data-root"):
        add(run, NAME, Path(), device=CPU, into=tmp_path)


def test_private_data_is_refused(finished_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"was trained on few\.npz; the zoo accepts networks trained on digits,"):
        add(RunFolder.open(finished_run), NAME, Path(), device=CPU, into=tmp_path)


def test_weights_beyond_half_precision_are_refused(own_digits_run: Path, tmp_path: Path) -> None:
    file = own_digits_run / "model.safetensors"
    tensors, about = files.load_tensors(file)
    tensors["fc.weight"][0, 0] = 1e6
    files.save_tensors(file, tensors, about)
    with pytest.raises(UserError, match=r"fc\.weight of .* is too large for half precision"):
        add(RunFolder.open(own_digits_run), NAME, Path(), device=CPU, into=tmp_path / "zoo")


def test_size_limit(digits_run: Path, zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo_add, "LIMIT", 10**6)
    with pytest.raises(UserError, match=r"The zoo would grow to 1\.\d MB, and its limit is 1 MB"):
        add(RunFolder.open(digits_run), "second", Path(), device=CPU)
    assert not (zoo / "second.safetensors").exists()
    add(RunFolder.open(digits_run), NAME, Path(), device=CPU, replace=True)  # its own file does not count twice


def test_the_card_contains_no_paths_of_this_machine(own_digits_run: Path, tmp_path: Path) -> None:
    file = own_digits_run / "config.json"
    content = json.loads(file.read_text())
    content["config"]["extra"] |= {"start": "/home/somebody/runs/static", "start_sha256": "0" * 64}
    file.write_text(json.dumps(content))
    card = add(RunFolder.open(own_digits_run), NAME, Path(), device=CPU, into=tmp_path / "zoo")
    assert card["recipe"]["extra"]["start"] == "static"
    assert "somebody" not in (tmp_path / "zoo" / f"{NAME}.json").read_text()


def test_command_line(empty_zoo: Path, digits_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert zoo_add.main([str(digits_run), "--name", "mine", "--json"]) == 0
    card = json.loads(capsys.readouterr().out)
    assert Card.read(empty_zoo / "mine.json").content == card
    assert zoo_add.main([str(digits_run), "--name", "mine", "--replace"]) == 0
    assert "Added mine to the zoo" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["RUN"], "--name"),
        (["RUN", "--name", NAME], f"The zoo already has {NAME}"),
        (["no/such/run", "--name", "x"], "There is no run folder no/such/run"),
        ([f"zoo:{NAME}", "--name", "x"], "comes from the zoo"),
    ],
)
def test_errors(
    zoo: Path, digits_run: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert zoo_add.main([str(digits_run) if word == "RUN" else word for word in words]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert message in output.err
