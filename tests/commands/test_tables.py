import io
import sys
from collections.abc import Callable

import pytest

from codinet.commands.tables import print_table

Said = pytest.CaptureFixture[str]
Shown = Callable[..., str]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """What a terminal of so many columns, and no colours, shows of a table."""

    def show(columns: int, title: str, headings: list[str], rows: list[list[str]]) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "dumb")
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", terminal := Terminal())
            print_table(title, headings, rows)
        return terminal.getvalue()

    return show


def test_a_table_shows_names_as_they_are(capsys: Said) -> None:
    print_table("runs/[bold]a[/b]", ["file", "n"], [["x[/y].png", "1"], [":smile:", "2"]])
    said = capsys.readouterr().out
    assert all(name in said for name in ("runs/[bold]a[/b]", "x[/y].png", ":smile:"))


def test_where_it_is_tight_headings_break_before_names_and_figures_do(shown: Shown) -> None:
    headings, row = ["trained network", "accuracy, %"], ["cifar10-resnet110-056", "94.47"]
    for columns, lines in ((80, 1), (37, 2)):
        said = shown(columns, "Networks", headings, [row]).splitlines()
        _, _, *head, _, body, _ = said
        assert len(head) == lines
        assert body.split() == ["│", row[0], "│", row[1], "│"]
        assert max(map(len, said)) <= columns


def test_where_it_is_tight_sentences_break_at_their_spaces(shown: Shown) -> None:
    sentence = "No licence is stated; the author asks to cite something-that-has-dashes."
    said = shown(60, "", ["name", "n", "terms"], [["cifar10", "1,727,962", sentence]])
    assert max(map(len, said.splitlines())) <= 60
    assert "│ cifar10 │ 1,727,962 │ No licence" in said
    assert " ".join(line.split("│")[3].strip() for line in said.splitlines() if line[0] == "│") == sentence


def test_a_terminal_too_narrow_for_a_table_gets_a_block_a_row(shown: Shown) -> None:
    headings = ["trained network", "network", "accuracy\non images"]
    rows = [["cifar10-resnet110-056", "resnet110", "94.47 %"], ["a folder/1 2.png", "", "92.78 %"]]
    assert shown(30, "Networks", headings, rows) == (
        "Networks\n"
        "trained network: cifar10-resnet110-056\nnetwork: resnet110\naccuracy on images: 94.47 %\n\n"
        "trained network: a folder/1 2.png\naccuracy on images: 92.78 %\n\n"
    )


def test_in_blocks_a_row_without_headings_is_a_line_and_sentences_break(shown: Shown) -> None:
    rows = [["path", "paths.safetensors-and-more"], ["a label of many words", "1"]]
    assert shown(20, "", ["", ""], rows) == "path: paths.safetensors-and-more\na label of many\n  words: 1\n"


def test_what_no_person_reads_is_as_wide_as_it_needs_to_be(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    file, sentence = "a/very/long/path/" * 20 + "image.png", "as many words as it takes " * 20
    print_table(f"Of {file}", ["file", "why"], [[file, sentence]])
    title, *_, row, _ = capsys.readouterr().out.splitlines()
    assert title == f"Of {file}"
    assert file in row
    assert sentence in row


def test_numbers_stand_at_the_right_and_words_at_the_left(capsys: Said) -> None:
    headings = ["name", "here", "path", "cost", "of all"]
    rows = [
        ["1", "yes", "█·", "–", "10 of 54"],
        ["22", "no", "··", "1e-05", "9 of 54"],
        ["333", "", "██", "0.6 ± 0.1", "words among them too"],
    ]
    print_table("", headings, rows)
    lines = [
        line.replace("┃", "│").split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if line[0] in "┃│"
    ]
    assert lines == [
        [" name ", " here ", " path ", "      cost ", "               of all "],
        [" 1    ", " yes  ", " █·   ", "         – ", "             10 of 54 "],
        [" 22   ", " no   ", " ··   ", "     1e-05 ", "              9 of 54 "],
        [" 333  ", "      ", " ██   ", " 0.6 ± 0.1 ", " words among them too "],
    ]


def test_a_table_without_rows_has_its_headings(shown: Shown) -> None:
    assert "network" in shown(24, "Networks", ["network", "share of the static cost"], [])
