import io
import json
import sys
from collections.abc import Callable

import pytest

from codinet.commands.printing import evaluation_rows, print_json, print_table
from codinet.errors import UserError

Said = pytest.CaptureFixture[str]
Shown = Callable[..., str]


def test_json_keeps_every_digit(capsys: Said) -> None:
    print_json({"share": 0.1 + 0.2})
    assert json.loads(capsys.readouterr().out)["share"] == 0.1 + 0.2


def test_json_has_finite_numbers_only(capsys: Said) -> None:
    with pytest.raises(UserError, match=r"predictions\.1\.confidence is nan, and JSON has finite numbers only"):
        print_json({"predictions": [{"confidence": 0.5}, {"confidence": float("nan")}]})
    assert capsys.readouterr().out == ""


def test_names_that_are_not_unicode_are_escaped_in_json(capsys: Said) -> None:
    print_json({"file": "caf\udce9", "\udcff": ("é🦆",)})
    said = capsys.readouterr().out
    assert said.isascii()
    assert json.loads(said) == {"file": r"caf\udce9", r"\udcff": ["é🦆"]}


def test_an_evaluation_names_its_units() -> None:
    summary = {
        **{"accuracy": 97.25, "cost_share": 0.6, "macs": 1_500_000.0, "paper_gmaccs": 0.003, "mean_blocks": 5.0},
        **{"distinct_paths": 12, "path_entropy": 2.5, "always_on": 1, "always_off": 2, "n": 500},
    }
    rows = dict(evaluation_rows(summary))
    assert rows["accuracy"] == "97.25 %"
    assert rows["cost, M MACs per image (one per multiply-add)"] == "1.500"
    assert rows["blocks always on / always off"] == "1 / 2"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """A function that prints a table in a terminal with so many columns and no colours, and returns the output."""

    def show(columns: int, title: str, headings: list[str], rows: list[list[str]]) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "dumb")
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", terminal := Terminal())
            print_table(title, headings, rows)
        return terminal.getvalue()

    return show


def test_markup_in_names_is_printed_unchanged(capsys: Said) -> None:
    print_table("runs/[bold]a[/b]", ["file", "n"], [["x[/y].png", "1"], [":smile:", "2"]])
    said = capsys.readouterr().out
    assert all(name in said for name in ("runs/[bold]a[/b]", "x[/y].png", ":smile:"))


def test_headings_break_before_names_and_numbers(shown: Shown) -> None:
    headings, row = ["trained network", "accuracy, %"], ["cifar10-resnet110-056", "94.47"]
    for columns, lines in ((80, 1), (37, 2)):
        said = shown(columns, "Networks", headings, [row]).splitlines()
        _, _, *head, _, body, _ = said
        assert len(head) == lines
        assert body.split() == ["│", row[0], "│", row[1], "│"]
        assert max(map(len, said)) <= columns


def test_sentences_break_at_spaces_in_a_narrow_terminal(shown: Shown) -> None:
    sentence = "No licence is stated; the author asks to cite something-that-has-dashes."
    said = shown(60, "", ["name", "n", "terms"], [["cifar10", "1,727,962", sentence]])
    assert max(map(len, said.splitlines())) <= 60
    assert "│ cifar10 │ 1,727,962 │ No licence" in said
    assert " ".join(line.split("│")[3].strip() for line in said.splitlines() if line[0] == "│") == sentence


def test_a_terminal_too_narrow_for_a_table_gets_one_block_per_row(shown: Shown) -> None:
    headings = ["trained network", "network", "accuracy\non images"]
    rows = [["cifar10-resnet110-056", "resnet110", "94.47 %"], ["a folder/1 2.png", "", "92.78 %"]]
    assert shown(30, "Networks", headings, rows) == (
        "Networks\n"
        "trained network: cifar10-resnet110-056\nnetwork: resnet110\naccuracy on images: 94.47 %\n\n"
        "trained network: a folder/1 2.png\naccuracy on images: 92.78 %\n\n"
    )


def test_a_row_without_headings_is_one_line_in_blocks(shown: Shown) -> None:
    rows = [["path", "paths.safetensors-and-more"], ["a label of many words", "1"]]
    assert shown(20, "", ["", ""], rows) == "path: paths.safetensors-and-more\na label of many\n  words: 1\n"


def test_a_table_in_a_file_is_as_wide_as_needed(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    file, sentence = "a/very/long/path/" * 20 + "image.png", "as many words as it takes " * 20
    print_table(f"Of {file}", ["file", "why"], [[file, sentence]])
    title, *_, row, _ = capsys.readouterr().out.splitlines()
    assert title == f"Of {file}"
    assert file in row
    assert sentence in row


def test_numbers_are_right_aligned_and_words_left_aligned(capsys: Said) -> None:
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
