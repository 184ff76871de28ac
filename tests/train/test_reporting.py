import re
from typing import Any

import pytest

from codinet.config import RunConfig
from codinet.methods import NAMES
from codinet.resolving import resolve
from codinet.train.reporting import Console, Reporter, Reporters, TimeLeft, in_words
from codinet.train.stages import stages_of

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


def run_of(method: str) -> RunConfig:
    return resolve(RunConfig("digits", method=method))


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
    assert " ".join(headings.split()) == "stage epoch loss cls con div γ train % held % cost paths"
    assert " ".join(first.split()) == "joint 3 1.235 1.000 0.010 0.200 -0.0500 88.12 87.50 0.600 12"
    assert second.split()[:2] == ["joint", "4"]
    assert len(headings) == len(first) == len(second) <= 80
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


def test_a_long_wait_for_images_is_said_below_its_epoch(capsys: Said) -> None:
    with Console() as reporter:
        for waited in (0.05, 0.126, 0.0):
            reporter.row({**ROW, "data_wait": waited})
    _, _, second, line, third = capsys.readouterr().err.splitlines()
    assert line == "           waited for images 13% of the time"
    assert second == third


@pytest.mark.parametrize("stage", sorted({stage.name for name in NAMES for stage in stages_of(run_of(name))}))
def test_every_stage_fits_its_column(stage: str, capsys: Said) -> None:
    with Console() as reporter:
        reporter.row({**ROW, "stage": stage})
    headings, row = capsys.readouterr().err.splitlines()
    assert len(headings) == len(row) <= 80


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
        reporter.advance()
    assert "step 3 of 4, about 0:00:0" in capsys.readouterr().err


def test_the_first_steps_give_an_estimate(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    now = iter(range(0, 1000, 10))
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    with Console() as reporter:
        reporter.begin("title", steps=20, done=1, evaluation=0.5)
        for _ in range(3):
            reporter.advance()
    assert capsys.readouterr().err.splitlines() == ["title", "Estimated time: 4 minutes."]


def test_the_time_left_does_not_jump() -> None:
    """A slow first step and the evaluation after an epoch distort a mean of the last steps, not this estimate."""
    now, estimates = 0.0, []
    left = TimeLeft(100, 0, 0.2, now)
    for step in range(100):
        now += 31.0 if step == 0 else 1.0
        left.step(now)
        if step % 10 == 9:
            now += 90.0 if step == 49 else 2.0  # one epoch is interrupted by something else
            left.epoch(now)
        seconds = left.seconds()
        if seconds is not None:
            estimates.append(seconds + step)  # would be constant if a step took exactly a second
    assert len(estimates) == 99
    assert all(abs(left.steps * 1.2 - estimate) < 25 for estimate in estimates)


def test_the_time_left_of_epochs_of_one_step() -> None:
    left = TimeLeft(4, 1, 0.0, 0.0)
    assert left.seconds() is None
    left.step(3.0)
    left.epoch(5.0)
    assert left.seconds() == 10.0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (1, "5 seconds"),
        (42, "40 seconds"),
        (61, "1 minute"),
        (200, "3 minutes"),
        (5400, "1 hour 30 minutes"),
        (7190, "2 hours"),
    ],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_several_reporters_get_everything(capsys: Said) -> None:
    with Reporters(Console(), Reporter(), Console()) as reporter:
        reporter.begin("title", steps=4, done=1)
        reporter.advance()
        reporter.row(ROW)
        reporter.warn("sentence")
    lines = capsys.readouterr().err.splitlines()
    assert sorted(lines)[::2] == sorted(lines)[1::2]
    assert len(lines) == 8
