"""The progress of a sweep. The base class prints nothing; `Bar` draws one bar over all runs, on stderr.

Training is counted in epochs, each weighted by its network's blocks, so that the estimate of the time left is fair when
a plan has small and large networks.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from codinet import files
from codinet.backbones import ARCHITECTURES
from codinet.runs import MOST_METRICS
from codinet.sweep.grid import Planned


class Progress:
    """What a sweep reports to; this class counts, subclasses print."""

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def begin(self, planned: Sequence[Planned], finished: Sequence[Planned]) -> None:
        self.runs, self.ended = len(planned), len(finished)
        self.work = {run.name: 0.0 if run not in finished else work_of(run) for run in planned}
        self.whole = sum(work_of(run) for run in planned)

    def started(self) -> None:
        """All earlier work has been counted; from here on, time is measured."""
        self.before, self.since = sum(self.work.values()), time.monotonic()

    def at(self, run: Planned, epochs: int) -> None:
        self.work[run.name] = min(work_of(run), epochs * _weight(run))

    def finished(self, run: Planned) -> None:
        self.work[run.name] = work_of(run)
        self.ended += 1

    def failed(self, run: Planned, why: str) -> None:
        # No work is left for it.
        self.whole -= work_of(run) - self.work[run.name]
        self.ended += 1

    def silent(self, run: Planned, minutes: float) -> None:
        """A run has written nothing for so many minutes."""

    def left(self) -> float | None:
        """Estimated seconds left, from the work of this session; None before there was any."""
        done = sum(self.work.values())
        if done <= self.before:
            return None
        return (time.monotonic() - self.since) * (self.whole - done) / (done - self.before)


class Bar(Progress):
    """One bar, and one line for each run that ends or stalls."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self.bar = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            console=self.console,
            disable=not self.console.is_terminal,
        )

    def __enter__(self) -> "Bar":
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def started(self) -> None:
        super().started()
        if self.ended:
            self.console.print(f"{self.ended} of {self.runs} planned runs were finished before.")
        self.task = self.bar.add_task("", total=None, left="")
        self._show()

    def at(self, run: Planned, epochs: int) -> None:
        super().at(run, epochs)
        if hasattr(self, "task"):
            self._show()

    def finished(self, run: Planned) -> None:
        super().finished(run)
        self._say(f"{run.name}: finished")

    def failed(self, run: Planned, why: str) -> None:
        super().failed(run, why)
        self._say(f"{run.name}: failed: {why}")

    def silent(self, run: Planned, minutes: float) -> None:
        self.console.print(f"{run.name}: no output for {minutes:g} minutes; see its .log and --stall-minutes")

    def _say(self, sentence: str) -> None:
        left = f", {_spell(self.left())}" if self.ended < self.runs else ""
        self.console.print(sentence if self.console.is_terminal else f"{sentence} ({self.ended} of {self.runs}{left})")
        self._show()

    def _show(self) -> None:
        self.bar.update(
            self.task,
            description=f"{self.ended} of {self.runs} runs",
            completed=sum(self.work.values()),
            total=self.whole,
            left=_spell(self.left()),
        )


def work_of(run: Planned) -> float:
    schedule = run.config.schedule
    return (schedule.epochs + (schedule.finetune or 0)) * _weight(run)


def epochs_done(folder: Path) -> int:
    """The number of lines of a run's metrics."""
    try:
        return files.read(folder / "metrics.jsonl", MOST_METRICS).count(b"\n")
    except OSError:
        return 0


def _weight(run: Planned) -> float:
    return float(ARCHITECTURES[run.config.network.arch].blocks)


def _spell(seconds: float | None) -> str:
    if seconds is None:
        return "time left not known yet"
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute left"
    return f"about {minutes // 60} h {minutes % 60} min left" if minutes >= 60 else f"about {minutes} min left"
