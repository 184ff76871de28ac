import importlib
import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

import codinet
from codinet.cli import VERBS, main
from codinet.commands import models
from codinet.commands.printing import _NEXT, print_next

Said = pytest.CaptureFixture[str]


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_the_overview_names_every_verb(words: list[str], capsys: Said) -> None:
    assert main(words) == 0
    said = capsys.readouterr()
    assert all(f"  {verb}" in said.out and what in said.out for verb, what in VERBS.items())
    assert said.err == ""


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_its_flags(verb: str, capsys: Said) -> None:
    assert main([verb, "--help"]) == 0
    said = capsys.readouterr()
    assert f"usage: codinet {verb}" in said.out
    assert said.err == ""


@pytest.mark.parametrize("verb", VERBS)
def test_help_before_a_verb_is_its_help(verb: str, capsys: Said) -> None:
    assert main(["help", verb]) == 0
    said = capsys.readouterr()
    assert main([verb, "--help"]) == 0
    assert capsys.readouterr().out == said.out
    assert f"usage: codinet {verb}" in said.out
    assert said.err == ""


def test_help_on_an_unknown_verb_is_refused(capsys: Said) -> None:
    assert main(["help", "trian"]) == 2
    assert "perhaps you meant train" in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_help_hides_empty_defaults(verb: str, capsys: Said) -> None:
    assert main([verb, "--help"]) == 0
    said = capsys.readouterr().out
    words = " ".join(re.sub(r"[│╭╰─╮╯]", " ", said).split())
    assert "{None}" not in words
    assert "(default: None)" not in words
    assert "(default: )" not in words


@pytest.mark.parametrize(
    ("verb", "usage"),
    [
        ("train", "SOURCE"),
        ("sweep", "[SOURCE]"),
        ("bench", "NETWORK"),
        ("eval", "RUN"),
        ("predict", "RUN [IMAGES ...]"),
        ("report", "[RUNS ...]"),
    ],
)
def test_help_shows_positional_arguments_by_name(verb: str, usage: str, capsys: Said) -> None:
    assert main([verb, "--help"]) == 0
    assert usage in capsys.readouterr().out.split("\n\n")[0]


def test_help_and_wrong_flags_do_not_wait_for_torch() -> None:
    commands = [["--help"], ["--version"], ["trian"], ["train", "x", "--epoch", "3"], ["models"], ["models", "--json"]]
    commands += [[verb, "--help"] for verb in VERBS]
    code = """
import contextlib, io, json, sys
from codinet.cli import main
heavy = {"torch", "numpy", "PIL", "safetensors", "huggingface_hub", "matplotlib", "codinet.model"}
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as stdout, contextlib.redirect_stderr(io.StringIO()) as stderr:
        main(words)
    assert stdout.getvalue() or stderr.getvalue()
    assert not heavy & set(sys.modules), (words, heavy & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code, json.dumps(commands)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_public_names_are_imported_when_they_are_used() -> None:
    assert set(codinet._MODULES) == set(codinet.__all__) <= set(dir(codinet))
    for name in codinet.__all__:
        assert getattr(codinet, name).__name__ == name
    with pytest.raises(AttributeError, match="module 'codinet' has no attribute 'create_modle'"):
        codinet.create_modle  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_flags_and_a_function(verb: str) -> None:
    module = importlib.import_module(f"codinet.commands.{verb}")
    assert callable(module.run)
    assert module.Args


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_the_version(word: str, capsys: Said) -> None:
    assert main([word]) == 0
    assert capsys.readouterr().out == f"codinet {codinet.__version__}\n"


class Terminal(io.StringIO):
    """A stdout that tyro takes for a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stdout", [io.StringIO, Terminal, io.BytesIO], ids=["pipe", "terminal", "utf-8 pipe"])
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["x", "--badflag", "3"], "Unrecognized options: --badflag, 3; see codinet train --help."),
        (
            ["x", "--epoch", "3"],
            "Unrecognized options: --epoch, 3 (perhaps you meant --epochs); see codinet train --help.",
        ),
        (["x", "--epochs", "many"], "--epochs must be a whole number, got 'many'; see codinet train --help."),
        (["x", "--lr", "fast"], "--lr must be a number, got 'fast'; see codinet train --help."),
        (["x", "--budget", "abc"], "--budget must be a number, got 'abc'; see codinet train --help."),
        (["x", "--batch", "1.5"], "--batch must be a whole number, got '1.5'; see codinet train --help."),
        (["x", "--milestones", "0.3", "late"], "--milestones does not accept '0.3', 'late'; see codinet train --help."),
        (["x", "--epochs"], "--epochs requires a value; see codinet train --help."),
        (
            ["x", "--router", "fcc"],
            "--router must be one of 'fc', 'cnn', 'rnn', 'narrow', 'policy', 'hash', 'bias', 'halting', 'spatial', "
            "got 'fcc'; see codinet "
            "train --help.",
        ),
        ([], "SOURCE is required: a data set, an image folder or an .npz file"),
    ],
)
def test_a_wrong_flag_is_one_sentence_on_any_terminal(
    words: list[str], sentence: str, stdout: type, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(stdout(), "utf-8") if stdout is io.BytesIO else stdout())
    assert main(["train", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"codinet: {sentence}")
    assert said.endswith("see codinet train --help.\n")
    assert said.count("\n") == 1
    assert not set("\x1b│─") & set(said)


def test_a_mistyped_verb_gets_a_suggestion(capsys: Said) -> None:
    assert main(["trian"]) == 2
    assert "perhaps you meant train" in capsys.readouterr().err


def raising(error: BaseException) -> Callable[[object], NoReturn]:
    def run(args: object) -> NoReturn:
        raise error

    return run


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train", "digits"], "interrupted; continue with the same command and --resume."),
        (["sweep", "digits"], "interrupted; repeat the command to continue."),
        (["models"], "interrupted."),
    ],
)
def test_an_interrupt_says_how_to_continue(
    words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    monkeypatch.setattr(f"codinet.commands.{words[0]}.run", raising(KeyboardInterrupt()))
    assert main(words) == 130
    assert capsys.readouterr().err == f"codinet: {sentence}\n"


def test_commands_end_with_suggestions_for_people(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    assert main(["models"]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["models", "--json"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["models"]) == 0
    assert "next: codinet train FOLDER --budget 0.6" in capsys.readouterr().err


def test_the_suggestions_are_commands_with_their_arguments(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert set(_NEXT) == set(VERBS)
    values: dict[str, Any] = {
        **{"run": Path("a run"), "runs": (Path("a"), Path("b c")), "out": Path("s"), "network": "zoo:x"},
    }
    for verb in VERBS:
        print_next(verb, values)
        lines = capsys.readouterr().err.splitlines()
        assert 1 <= len(lines) <= 2
        for line in lines:
            start, command, next_verb, *_ = shlex.split(line, comments=True)
            assert (start, command, next_verb in VERBS) == ("next:", "codinet", True)
    print_next("analyze", values)
    print_next("report", values)
    print_next("train", {"run": ""})  # nothing is known
    print_next("bench", {"network": "resnet20"})  # which has no trained weights
    said = [line.split("  #")[0].rstrip() for line in capsys.readouterr().err.splitlines()]
    assert said == ["next: codinet report a 'b c'", "next: codinet explore a"]


def test_an_error_of_the_system_is_one_sentence(capsys: Said) -> None:
    assert main(["eval", "x" * 300]) == 2
    assert capsys.readouterr().err.endswith("xxx: File name too long; check the path.\n")


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "run", raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        main(["models"])


def test_the_package_runs_as_a_module_and_survives_a_reader_that_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    command = [sys.executable, "-m", "codinet", "data", "list", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_the_readme_says_which_verb_takes_no_json(capsys: Said) -> None:
    def helps(verb: str) -> str:
        assert main([verb, "--help"]) == 0
        return capsys.readouterr().out

    readme = (Path(__file__).parents[1] / "README.md").read_text()
    found = re.search(r"Every verb except `(\w+)` has `--json`", readme)
    assert found is not None
    assert [verb for verb in VERBS if "--json" not in helps(verb)] == [found[1]]


@pytest.mark.parametrize("words", [["data", "list"], ["data", "verify", "digits"]])
def test_json_is_one_document_and_nothing_else_on_stdout(words: list[str], capsys: Said) -> None:
    assert main([*words, "--json"]) == 0
    said = capsys.readouterr()
    assert isinstance(json.loads(said.out), dict)
    assert said.err == ""
