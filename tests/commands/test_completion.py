"""Completion works in the shells themselves. A shell that is not installed is skipped."""

import contextlib
import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from codinet.cli import VERBS, main
from codinet.commands.completion import script

Said = pytest.CaptureFixture[str]

# What is typed before Tab, and all that is offered.
CASES = {
    "codinet tr": ["train"],
    "codinet ex": ["explore", "export"],
    "codinet train --ro": ["--routed", "--router"],
    "codinet train digits --router ": ["bias", "cnn", "fc", "halting", "hash", "narrow", "policy", "rnn", "spatial"],
    "codinet export --path": ["--path"],
    "codinet eval train --th": ["--threshold"],
    "codinet eval train --lo": [],  # a flag of train, but not of eval
    "codinet predict RUN a\\ ph": ["a photo.jpg"],
}


def shell(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home and the working folder of a shell, with one file to complete."""
    (tmp_path / "a photo.jpg").touch()
    return tmp_path


def environment(home: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # fish completes only commands that exist
    return {"HOME": str(home), "PATH": path, "TERM": "dumb", "LANG": "C.UTF-8"}


def test_every_script_knows_every_verb(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    for name in ("bash", "zsh", "fish"):
        assert main(["--completion", name]) == 0
        said = capsys.readouterr().out
        assert all(word in said for word in (*VERBS, "epochs", "no-routed", "straight-through"))
    assert main(["--completion"]) == 2
    assert main(["--completion", "bsh"]) == 2
    assert "perhaps you meant bash" in capsys.readouterr().err


def test_fish_loads_the_script_from_its_folder(home: Path) -> None:
    fish = shell("fish")
    folder = home / ".config" / "fish" / "completions"
    folder.mkdir(parents=True)
    (folder / "codinet.fish").write_text(script("fish"))
    code = "; echo ==; ".join(f"complete -C '{typed}'" for typed in CASES)
    done = subprocess.run(
        [fish, "-c", code], cwd=home, env=environment(home), capture_output=True, text=True, timeout=30
    )
    offered = [part.split("\n") for part in done.stdout.split("==\n")]
    words = [sorted(line.split("\t")[0].replace("\\ ", " ") for line in part if line) for part in offered]
    assert done.stderr == ""
    assert dict(zip(CASES, words, strict=True)) == CASES


# Settings under which Tab lists everything at once, and Ctrl-T prints the line in brackets and clears it.
BASH = r"""PS1='> '
bind 'set show-all-if-ambiguous on'
bind 'set enable-bracketed-paste off'
printed() { echo "[$READLINE_LINE]"; READLINE_LINE=''; }
bind -x '"\C-t": printed'
source completion
"""
ZSH = r"""PROMPT='> '
unset zle_bracketed_paste
setopt no_auto_menu no_list_ambiguous no_prompt_sp
printed() { print -r -- "[$BUFFER]"; BUFFER='' }
zle -N printed
bindkey '^T' printed
autoload -Uz compinit && compinit
compdef _files command-of-the-user
source completion
print -r -- "[$_comps[command-of-the-user]]"
"""


class Terminal:
    """A shell in a terminal."""

    def __init__(self, command: list[str], home: Path) -> None:
        self.terminal, inside = pty.openpty()
        variables = environment(home) | {"ZDOTDIR": str(home)}
        self.shell = subprocess.Popen(
            command, cwd=home, env=variables, stdin=inside, stdout=inside, stderr=inside, start_new_session=True
        )
        os.close(inside)

    def close(self) -> None:
        self.shell.kill()
        self.shell.wait()
        os.close(self.terminal)

    def answer(self, typed: str = "") -> tuple[str, str]:
        """Type something and wait for text in brackets. Returns what came before it, and this text."""
        os.write(self.terminal, typed.encode())
        output, end = "", time.monotonic() + 20
        while (found := re.search(r"\[([^\[\]\r\n]*)\]\r?\n", output)) is None:
            assert time.monotonic() < end, output
            if select.select([self.terminal], [], [], 0.1)[0]:
                output += os.read(self.terminal, 65536).decode()
        return output[: found.start()], found[1]


@pytest.mark.parametrize(("name", "settings", "flag"), [("bash", BASH, "--rcfile"), ("zsh", ZSH, None)])
def test_tab_completes(name: str, settings: str, flag: str | None, home: Path) -> None:
    command = [shell(name), *((flag, str(home / ".bashrc")) if flag else ()), "-i"]
    (home / "completion").write_text(script(name) + "\n")
    (home / f".{name}rc").write_text(settings)
    with contextlib.closing(Terminal(command, home)) as terminal:
        if name == "zsh":
            assert terminal.answer()[1] == "_files"  # completions that exist already are kept
        for typed, expected in CASES.items():
            before, line = terminal.answer(f"{typed}\t\x14")
            if len(expected) == 1:
                assert line.startswith(typed), before
                assert shlex.split(line)[-1] == expected[0], before
            else:
                assert line.startswith(typed), before
                assert set(expected) <= set(before.split()), before
