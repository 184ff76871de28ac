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
from codinet.evaluate import FIGURES
from codinet.runs import RunFolder, measure
from codinet.zoo import add as adding
from codinet.zoo.add import add
from codinet.zoo.card import FIELDS
from codinet.zoo.open_run import open_entry
from codinet.zoo.paths import PREFIX
from codinet.zoo.shelf import find

NAME, CPU = "digits-resnet20-06", torch.device("cpu")


@pytest.fixture
def own_digits_run(digits_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(digits_run, tmp_path / "run")


def test_the_card_tells_the_whole_run(stocked: Path, digits_run: Path) -> None:
    card, run = find(NAME, stocked), RunFolder.open(digits_run)
    assert set(card.content) == set(FIELDS)
    assert card.config() == run.config
    assert card.brief() == run.data
    assert card["as_trained"] == {key: run.load_evaluation()[key] for key in FIGURES}
    assert (card["seed"], card["commit"], card["device"], card["n"]) == (0, "tests", "cpu", 500)
    assert card["versions"]["torch"] == torch.__version__
    assert card["wall_s"] == run.wall_seconds()
    assert card["wall_s"] > 0
    assert card["measured"]["batch"] == 250


def test_the_weights_are_the_runs_in_half_precision(stocked: Path, digits_run: Path) -> None:
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


def test_the_figures_are_those_of_the_weights_as_loaded(stocked: Path) -> None:
    card = find(NAME, stocked)
    model = open_entry(card, stocked).load_model()
    assert measure(model, load("digits", Path()), CPU).summary() == card.figures()


def test_the_same_run_gives_the_same_files(stocked: Path, digits_run: Path, tmp_path: Path) -> None:
    add(RunFolder.open(digits_run), NAME, Path(), device=CPU, into=tmp_path)
    for file in stocked.iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()


def test_a_name_is_taken_once(zoo: Path, digits_run: Path) -> None:
    run = RunFolder.open(digits_run)
    with pytest.raises(UserError, match=rf"The zoo already has {NAME}; give another --name, or --replace"):
        add(run, NAME, Path(), device=CPU)
    (zoo / f"{NAME}.safetensors").write_bytes(b"damaged")
    assert add(run, NAME, Path(), device=CPU, replace=True)["sha256"] == find(NAME)["sha256"]
    open_entry(find(NAME)).load_model()


@pytest.mark.parametrize("name", ["", "../up", "a/b", "Big", "-dash", "a" * 65, "zoo:x"])
def test_names_that_are_no_file_names_are_refused(name: str, digits_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not fit; use small letters, digits, dots and dashes"):
        add(RunFolder.open(digits_run), name, Path(), device=CPU, into=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_unfinished_runs_are_refused(own_digits_run: Path, tmp_path: Path) -> None:
    (own_digits_run / "evaluation.json").unlink()
    with pytest.raises(UserError, match="is not finished; finish it with codinet train … --resume"):
        add(RunFolder.open(own_digits_run), NAME, Path(), device=CPU, into=tmp_path / "zoo")


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("evaluation.json", b"[]", "holds no evaluation"),
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
    with pytest.raises(UserError, match="was trained on other data than digits holds now; point --data-root to it"):
        add(run, NAME, Path(), device=CPU, into=tmp_path)


def test_data_that_others_do_not_have_is_refused(finished_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"was trained on few\.npz; the zoo takes only .* digits, cifar10"):
        add(RunFolder.open(finished_run), NAME, Path(), device=CPU, into=tmp_path)


def test_weights_beyond_half_precision_are_refused(own_digits_run: Path, tmp_path: Path) -> None:
    file = own_digits_run / "model.safetensors"
    tensors, about = files.load_tensors(file)
    tensors["fc.weight"][0, 0] = 1e6
    files.save_tensors(file, tensors, about)
    with pytest.raises(UserError, match=r"fc\.weight of .* is too large for half precision"):
        add(RunFolder.open(own_digits_run), NAME, Path(), device=CPU, into=tmp_path / "zoo")


def test_the_zoo_stays_small(digits_run: Path, zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adding, "LIMIT", 10**6)
    with pytest.raises(UserError, match=r"The zoo would grow to 1\.\d MB of weights, and the limit is 1;"):
        add(RunFolder.open(digits_run), "second", Path(), device=CPU)
    assert not (zoo / "second.safetensors").exists()
    add(RunFolder.open(digits_run), NAME, Path(), device=CPU, replace=True)  # its own file does not count twice


def test_the_card_names_no_place_on_the_disk(own_digits_run: Path, tmp_path: Path) -> None:
    file = own_digits_run / "config.json"
    content = json.loads(file.read_text())
    content["config"]["extra"] |= {"start": "/home/somebody/runs/static", "start_sha256": "0" * 64}
    file.write_text(json.dumps(content))
    card = add(RunFolder.open(own_digits_run), NAME, Path(), device=CPU, into=tmp_path / "zoo")
    assert card["recipe"]["extra"]["start"] == "static"
    assert "somebody" not in (tmp_path / "zoo" / f"{NAME}.json").read_text()
