"""What a person sees while a network trains. The base class says nothing; `Console` draws a table and a bar."""

import time
from datetime import timedelta
from types import TracebackType
from typing import Any

from rich.console import Console as RichConsole
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Reporter:
    """Where training reports to; every method may do nothing."""

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def begin(self, title: str, *, steps: int, done: int) -> None:
        """Training starts: its length in steps and how many were done before."""

    def advance(self) -> None:
        """One more step is done."""

    def row(self, row: dict[str, Any]) -> None:
        """An epoch is done."""

    def warn(self, sentence: str) -> None:
        """Something the user should know."""


WATCHED = "watched"  # in the place of a heading that tells what images an epoch is judged on
_HEADINGS = {"test": "test %", "holdout": "held %", "train": "plain %"}  # the last: training images, not augmented

_COLUMNS = (  # heading, key, format
    ("stage", "stage", "{:>8}"),
    ("epoch", "epoch", "{:>5}"),
    ("loss", "loss", "{:>7.4f}"),
    ("cls", "classification", "{:>7.4f}"),
    ("con", "consistency", "{:>7.4f}"),
    ("div", "diversity", "{:>7.4f}"),
    ("γ", "gamma", "{:>7.4f}"),
    ("train %", "train_accuracy", "{:>7.2f}"),
    (WATCHED, "accuracy", "{:>7.2f}"),
    ("cost", "cost_share", "{:>5.3f}"),
    ("paths", "distinct_paths", "{:>5}"),
    ("bits", "path_entropy", "{:>5.2f}"),
    ("on", "always_on", "{:>3}"),
    ("off", "always_off", "{:>3}"),
)


_WIDTHS = [len(form.format(0)) for _, _, form in _COLUMNS]
QUIET_SECONDS = 60.0  # in a log file, a long epoch says this often how far it is


class Console(Reporter):
    """Rows of a table, and the time left: as a bar where there is a terminal, else as a line now and then.

    Writes to stderr.
    """

    def __init__(self) -> None:
        self.console = RichConsole(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.rows = 0

    def __enter__(self) -> "Console":
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def begin(self, title: str, *, steps: int, done: int) -> None:
        self.console.print(title)
        self.task = self.progress.add_task("training", total=steps, completed=done)
        self.steps, self.first, self.done = steps, done, done
        self.began = self.spoke = time.monotonic()

    def advance(self) -> None:
        self.progress.advance(self.task)
        self.done += 1
        now = time.monotonic()
        if self.progress.disable and now - self.spoke > QUIET_SECONDS:
            left = (now - self.began) / (self.done - self.first) * (self.steps - self.done)
            self.console.print(f"step {self.done} of {self.steps}, about {timedelta(seconds=round(left))} left")
            self.spoke = now

    def row(self, row: dict[str, Any]) -> None:
        cells = [(heading, form.format(row[key]) if key in row else "") for heading, key, form in _COLUMNS]
        if self.rows % 25 == 0:
            watched = _HEADINGS[row["watched"]]
            self._print([watched if heading == WATCHED else heading for heading, _ in cells], style="bold")
        self.rows += 1
        self._print([cell for _, cell in cells])
        self.spoke = time.monotonic()

    def _print(self, cells: list[str], style: str | None = None) -> None:
        line = " ".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))
        self.console.print(line, style=style)

    def warn(self, sentence: str) -> None:
        self.console.print(f"Warning: {sentence}", style="yellow")
