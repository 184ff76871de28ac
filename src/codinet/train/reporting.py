"""What a person sees while a network trains.

The base class says nothing. `Console` prints a table of 80 columns and the time left. `Reporters` passes everything on
to several reporters.
"""

import time
from collections import deque
from datetime import timedelta
from statistics import median
from types import TracebackType
from typing import Any

from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from codinet.runs import DATA_WAIT


class Reporter:
    """Where training reports to; every method may do nothing."""

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def begin(self, title: str, *, steps: int, done: int, evaluation: float = 0.0) -> None:
        """Training starts.

        Args:
            title: What is trained, in one or more lines.
            steps: Its length.
            done: How many steps were done before.
            evaluation: Estimated time of the evaluation after an epoch, relative to that of the epoch's steps.
        """

    def advance(self) -> None:
        """One more step is done."""

    def row(self, row: dict[str, Any]) -> None:
        """An epoch is done."""

    def note(self, sentence: str) -> None:
        """What happens now, if it takes a while."""

    def warn(self, sentence: str) -> None:
        """Something the user should know."""


class Reporters(Reporter):
    """Several reporters as one."""

    def __init__(self, *reporters: Reporter) -> None:
        self.reporters = reporters

    def __enter__(self) -> "Reporters":
        for reporter in self.reporters:
            reporter.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for reporter in reversed(self.reporters):
            reporter.__exit__(kind, error, trace)

    def begin(self, title: str, *, steps: int, done: int, evaluation: float = 0.0) -> None:
        for reporter in self.reporters:
            reporter.begin(title, steps=steps, done=done, evaluation=evaluation)

    def advance(self) -> None:
        for reporter in self.reporters:
            reporter.advance()

    def row(self, row: dict[str, Any]) -> None:
        for reporter in self.reporters:
            reporter.row(row)

    def note(self, sentence: str) -> None:
        for reporter in self.reporters:
            reporter.note(sentence)

    def warn(self, sentence: str) -> None:
        for reporter in self.reporters:
            reporter.warn(sentence)


class TimeLeft:
    """Estimates the time left of a training.

    After the first epoch, the estimate is the median time of the last epochs, each with its evaluation. Before, it is
    the median time of a step. The first step of an epoch is not counted for that median: compilation and the building
    of a step belong to it.

    Args:
        steps: Length of the training.
        done: How many steps were done before.
        evaluation: Estimated time of the evaluation after an epoch, relative to that of the epoch's steps.
        now: The time, in seconds, as for the other methods.
    """

    _EPOCHS = 7  # whose median counts
    _STEPS = 50

    def __init__(self, steps: int, done: int, evaluation: float, now: float) -> None:
        self.steps, self.done, self.evaluation = steps, done, evaluation
        self.of_steps: deque[float] = deque(maxlen=self._STEPS)  # seconds of steps
        self.of_epochs: deque[float] = deque(maxlen=self._EPOCHS)  # seconds per step of whole epochs
        self.epoch_began = self.last = now
        self.in_epoch = 0  # steps of this epoch so far
        self.warm_up = 0.0  # seconds of the very first step

    def step(self, now: float) -> None:
        """A step is done."""
        if self.in_epoch > 0:
            self.of_steps.append(now - self.last)
        elif not self.of_epochs:
            self.warm_up = now - self.last
        self.done, self.in_epoch, self.last = self.done + 1, self.in_epoch + 1, now

    def epoch(self, now: float) -> None:
        """An epoch is done, with its evaluation."""
        if self.in_epoch > 0:
            seconds = now - self.epoch_began
            if self.warm_up and self.of_steps:  # the first step also compiles
                seconds -= max(0.0, self.warm_up - median(self.of_steps))
            self.of_epochs.append(seconds / self.in_epoch)
        self.epoch_began = self.last = now
        self.in_epoch, self.warm_up = 0, 0.0

    def seconds(self) -> float | None:
        """The estimate; None before two steps are done."""
        if self.of_epochs:
            return median(self.of_epochs) * (self.steps - self.done)
        if self.of_steps:
            return median(self.of_steps) * (1 + self.evaluation) * (self.steps - self.done)
        return None


def in_words(seconds: float) -> str:
    """A duration, roughly: `40 seconds`, `3 minutes`, `2 hours 10 minutes`."""

    def count(number: int, noun: str) -> str:
        return f"{number} {noun}" + ("" if number == 1 else "s")

    if seconds < 55:
        return count(max(5, round(seconds / 5) * 5), "second")
    minutes = round(seconds / 60)
    if minutes < 90:
        return count(minutes, "minute")
    hours, minutes = divmod(round(minutes / 10) * 10, 60)
    return " ".join([count(hours, "hour"), *([count(minutes, "minute")] if minutes else [])])


WATCHED = "watched"  # stands for the heading that tells which images an epoch is evaluated on
_HEADINGS = {"test": "test %", "holdout": "held %", "train": "plain %"}  # the last: training images, not augmented

_COLUMNS = (  # heading, key, format; together at most 80 columns. metrics.jsonl has every figure.
    ("stage", "stage", "{:>10}"),
    ("epoch", "epoch", "{:>5}"),
    ("loss", "loss", "{:>6.3f}"),
    ("cls", "classification", "{:>6.3f}"),
    ("con", "consistency", "{:>6.3f}"),
    ("div", "diversity", "{:>6.3f}"),
    ("γ", "gamma", "{:>7.4f}"),
    ("train %", "train_accuracy", "{:>7.2f}"),
    (WATCHED, "accuracy", "{:>7.2f}"),
    ("cost", "cost_share", "{:>5.3f}"),
    ("paths", "distinct_paths", "{:>5}"),
)


_WIDTHS = [len(form.format(0)) for _, _, form in _COLUMNS]
QUIET_SECONDS = 60.0  # in a log file, a long epoch prints its progress this often
ESTIMATE_SECONDS = 2.0  # after which the estimated time is printed
_LONG_WAIT = 0.05  # fraction of an epoch that is worth a line
_SHORT = 10.0  # seconds left that are not worth a line


class Console(Reporter):
    """Rows of a table, and the time left: in a bar on a terminal, else in a line now and then.

    Writes to stderr.
    """

    def __init__(self) -> None:
        self.console = RichConsole(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left {task.fields[left]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.rows = 0
        self.time_left: TimeLeft | None = None

    def __enter__(self) -> "Console":
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def begin(self, title: str, *, steps: int, done: int, evaluation: float = 0.0) -> None:
        self.console.print(title)
        self.task = self.progress.add_task("training", total=steps, completed=done, left="-:--:--")
        self.began = self.printed_at = time.monotonic()
        self.time_left = TimeLeft(steps, done, evaluation, self.began)
        self.estimated = False

    def advance(self) -> None:
        if self.time_left is None:
            return
        now = time.monotonic()
        self.time_left.step(now)
        seconds = self.time_left.seconds()
        shown = "-:--:--" if seconds is None else str(timedelta(seconds=round(seconds)))
        self.progress.update(self.task, advance=1, left=shown)
        if seconds is None:
            return
        if not self.estimated and now - self.began > ESTIMATE_SECONDS:
            self.estimated = True
            if seconds > _SHORT:
                self.console.print(f"Estimated time: {in_words(seconds)}.")
        elif self.progress.disable and now - self.printed_at > QUIET_SECONDS:
            self.console.print(f"step {self.time_left.done} of {self.time_left.steps}, about {shown} left")
            self.printed_at = now

    def row(self, row: dict[str, Any]) -> None:
        cells = [(heading, form.format(row[key]) if key in row else "") for heading, key, form in _COLUMNS]
        if self.rows % 25 == 0:
            watched = _HEADINGS[row["watched"]]
            self._print([watched if heading == WATCHED else heading for heading, _ in cells], style="bold")
        self.rows += 1
        self._print([cell for _, cell in cells])
        if row.get(DATA_WAIT, 0.0) > _LONG_WAIT:
            self.console.print(f"{'':>{_WIDTHS[0]}} waited for images {row[DATA_WAIT]:.0%} of the time")
        self.printed_at = time.monotonic()
        if self.time_left is not None:
            self.time_left.epoch(self.printed_at)

    def _print(self, cells: list[str], style: str | None = None) -> None:
        line = " ".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))
        self.console.print(line, style=style)

    def note(self, sentence: str) -> None:
        self.console.print(sentence)

    def warn(self, sentence: str) -> None:
        self.console.print(f"Warning: {sentence}", style="yellow")
