"""Every command prints to any stdout: ASCII only, closed, full, or a pipe that nobody reads."""

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image

from codinet.cli import VERBS, main

Words = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def words(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Words:
    """For each verb, the words of a command that prints something and takes no time."""
    folder = tmp_path_factory.mktemp("streams")
    Image.new("L", (8, 8)).save(folder / "café.png")
    run = str(shutil.copytree(finished_run, tmp_path_factory.mktemp("streams") / "run"))  # analyze writes into it
    some = {
        "train": ["digits", "--epochs", "0"],
        "eval": [run, "--device", "cpu"],
        "predict": [run, str(folder / "café.png"), "--device", "cpu"],
        "analyze": [run, "--no-tsne", "--images", "4", "--device", "cpu"],
        "report": ["--help"],
        "explore": ["--help"],
        "sweep": ["--list"],
        "bench": [run, "--batch", "1", "--rounds", "1", "--images", "1", "--engines", "masked", "--device", "cpu"],
        "export": [run, "--out", str(folder / "model.onnx")],
        "data": ["list"],
        "models": ["--help"],
    }
    return lambda verb: [verb, *some[verb]]


@contextmanager
def stdout_is(stream: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        yield


@pytest.mark.parametrize("verb", VERBS)
def test_an_ascii_only_stdout_gets_ascii(verb: str, words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(content := io.BytesIO(), encoding="ascii")
    with stdout_is(stream, monkeypatch):
        assert main(words(verb)) == (2 if verb == "train" else 0)
    assert content.getvalue().isascii()
    assert bool(content.getvalue()) == (verb != "train")
    assert stream.errors == "strict"  # as before


@pytest.mark.parametrize("verb", VERBS)
def test_a_closed_stdout_takes_everything(verb: str, words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    with stdout_is(None, monkeypatch):
        assert main(words(verb)) == (2 if verb == "train" else 0)
        sys.stdout.close()


@pytest.mark.parametrize("verb", VERBS)
def test_a_pipe_without_a_reader_ends_a_command_quietly(
    verb: str, words: Words, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as stream, stdout_is(stream, monkeypatch):
        assert main(words(verb)) == (2 if verb == "train" else 141)
    assert "Traceback" not in capsys.readouterr().err


def test_a_path_stays_readable_in_ascii(words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(content := io.BytesIO(), encoding="ascii")
    with stdout_is(stream, monkeypatch):
        assert main(words("predict")) == 0
    (row,) = [line for line in content.getvalue().decode().splitlines() if ".png" in line]
    assert "caf\\xe9.png" in row
    assert set(row.split("|")[-2].strip()) <= {"#", "."}


def test_a_name_that_is_not_unicode_is_printed_escaped(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / os.fsdecode(b"caf\xe9.png")
    Image.new("L", (8, 8)).save(image)
    stream = io.TextIOWrapper(content := io.BytesIO(), encoding="utf-8")
    with stdout_is(stream, monkeypatch):
        assert main(["predict", str(finished_run), str(image), "--device", "cpu"]) == 0
    assert rb"caf\udce9.png" in content.getvalue()


@pytest.mark.parametrize(
    ("redirection", "code", "says"),
    [
        (">&-", 0, ""),
        (">&- <&- 2>&-", 0, ""),
        ("> /dev/full", 2, "codinet: No space left on device; check where the output goes."),
    ],
)
def test_as_a_process(redirection: str, code: int, says: str) -> None:
    command = f"exec {sys.executable} -m codinet data list {redirection}"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=100)
    assert ended.returncode == code
    assert ended.stdout == ""
    assert ended.stderr.startswith(says)
    assert ended.stderr.count("\n") == (1 if says else 0)


def test_in_the_c_locale() -> None:
    surroundings = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    for words in (["data", "list"], ["bench", "--help"]):
        ended = subprocess.run(
            [sys.executable, "-m", "codinet", *words], env=surroundings, capture_output=True, timeout=100
        )
        assert (ended.returncode, ended.stderr) == (0, b"")
        assert ended.stdout.isascii()
