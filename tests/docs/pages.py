"""The pages of the documentation and their code blocks.

The language of a fence says what is done with a block: `bash` is executed line by line, `python` is executed, `console`
has commands after `$ ` and their output, `yaml` is a file that begins with its name, `text` is not executed. A fence
without a language, or with another one, is an error.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LANGUAGES = ("bash", "python", "console", "yaml", "text")
# Pages that a program writes while it executes their commands in a fresh clone; they are not executed again.
WRITTEN_BY = {"docs/first-hour.md": "tools/first_hour.py"}
# A page of records: each command is one that has trained a run, for up to a day. They are parsed, up to the config.
RECORDS = "docs/results.md"


@dataclass(frozen=True)
class Block:
    """A code block."""

    page: str
    line: int  # of its first line of code
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """All pages, relative to the root."""
    found = [file.relative_to(ROOT).as_posix() for file in (ROOT / "docs").rglob("*.md")]
    return ["README.md", *sorted(found)]


def blocks_of(page: str) -> list[Block]:
    """The code blocks of a page."""
    return blocks_in((ROOT / page).read_text(), page)


def blocks_in(markdown: str, page: str) -> list[Block]:
    """The code blocks of a text.

    Raises:
        ValueError: A fence has no language, or an unknown one, or is not closed.
    """
    found: list[Block] = []
    fence, language, start, code = "", "", 0, [""]
    for number, line in enumerate(markdown.splitlines(), start=1):
        mark = re.match(r" *(```+|~~~+) *(.*)", line)
        if fence and mark and mark[1].startswith(fence) and not mark[2]:
            found.append(Block(page, start, language, "\n".join(code) + "\n"))
            fence = ""
        elif fence:
            code.append(line)
        elif mark:
            fence, language, start, code = mark[1], mark[2].strip(), number + 1, []
            if language not in LANGUAGES:
                raise ValueError(f"{page}:{number} has a block in {language!r}; use one of {', '.join(LANGUAGES)}.")
    if fence:
        raise ValueError(f"{page}:{start} has a block that does not end.")
    return found


def commands(text: str) -> list[str]:
    """The lines of a shell script, each with its continuation lines; without comments and empty lines."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def dialogue(text: str) -> list[tuple[str, list[str]]]:
    """The commands of a `console` block, each with its output.

    Raises:
        ValueError: The block does not begin with a command.
    """
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif not found:
            raise ValueError(f"a console block begins with {line!r}; it must begin with a command after '$ '.")
        else:
            found[-1][1].append(line)
    return found


def words_of(command: str) -> list[str]:
    """The words of a command, without its comment. A redirection and `&&` are words, too."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=">&|;")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    return list(lexer)


def joined(words: list[str]) -> list[list[str]]:
    """The commands of a line that `&&` joins."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == "&&":
            parts.append([])
        else:
            parts[-1].append(word)
    return parts
