import re
from typing import Any

import pytest

from codinet.train.reporting import Console, Reporter

Said = pytest.CaptureFixture[str]
ROW: dict[str, Any] = {
    "stage": "joint",
    "epoch": 3,
    "watched": "holdout",
    "loss": 1.23456,
    "classification": 1.0,
    "consistency": 0.01,
    "diversity": 0.2,
    "gamma": -0.05,
    "train_accuracy": 88.123,
    "accuracy": 87.5,
    "cost_share": 0.6,
    "distinct_paths": 12,
    "path_entropy": 2.5,
    "always_on": 1,
    "always_off": 0,
    "more": "is not shown",
}


def test_the_plain_reporter_says_nothing(capsys: Said) -> None:
    with Reporter() as reporter:
        reporter.begin("title", steps=2, done=0)
        reporter.advance()
        reporter.row(ROW)
        reporter.warn("sentence")
    assert capsys.readouterr() == ("", "")


def test_a_table_goes_to_stderr(capsys: Said) -> None:
    with Console() as reporter:
        reporter.begin("Training resnet20", steps=2, done=0)
        reporter.advance()
        reporter.row(ROW)
        reporter.row({**ROW, "epoch": 4})
        reporter.warn("mind the gap")
    said = capsys.readouterr()
    assert said.out == ""
    title, headings, first, second, warning = said.err.splitlines()
    assert title == "Training resnet20"
    assert " ".join(headings.split()) == "stage epoch loss cls con div γ train % held % cost paths bits on off"
    assert " ".join(first.split()) == "joint 3 1.2346 1.0000 0.0100 0.2000 -0.0500 88.12 87.50 0.600 12 2.50 1 0"
    assert second.split()[:2] == ["joint", "4"]
    assert len(headings) == len(first) == len(second)
    assert warning == "Warning: mind the gap"


@pytest.mark.parametrize(("watched", "heading"), [("test", "test %"), ("holdout", "held %"), ("train", "plain %")])
def test_a_heading_tells_what_images_an_epoch_is_judged_on(watched: str, heading: str, capsys: Said) -> None:
    with Console() as reporter:
        reporter.row({**ROW, "watched": watched})
    headings = capsys.readouterr().err.splitlines()[0]
    assert f"train % {heading}" in " ".join(headings.split())


def test_headings_come_again_on_every_page(capsys: Said) -> None:
    with Console() as reporter:
        for _ in range(51):
            reporter.row(ROW)
    assert capsys.readouterr().err.count("stage") == 3


def test_figures_that_a_row_lacks_are_left_blank(capsys: Said) -> None:
    with Console() as reporter:
        reporter.row({"stage": "static", "epoch": 1, "watched": "holdout", "accuracy": 50.0})
    headings, row = capsys.readouterr().err.splitlines()
    assert row.split() == ["static", "1", "50.00"]
    assert row.index("50.00") + 5 == headings.index("held %") + 6


def test_names_are_shown_as_they_are(capsys: Said) -> None:
    title = "Training in runs/[bold]x[/y]/:smile: and a name that is longer than any terminal is wide " + 80 * "x"
    with Console() as reporter:
        reporter.begin(title, steps=1, done=0)
        reporter.warn("[/oops]")
    assert capsys.readouterr().err.splitlines() == [title, "Warning: [/oops]"]


def test_before_a_terminal_there_is_a_bar_with_the_time_left(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Console() as reporter:
        reporter.begin("title", steps=10, done=4)
        reporter.advance()
    said = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "training" in said
    assert "5/10" in said
    assert "left" in said


def test_a_log_file_is_told_now_and_then_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("codinet.train.reporting.QUIET_SECONDS", 0.0)
    with Console() as reporter:
        reporter.begin("title", steps=4, done=1)
        reporter.advance()
    assert "step 2 of 4, about 0:00:0" in capsys.readouterr().err
