"""The progress of a sweep. `Progress` counts and prints nothing; `ProgressBar` shows one bar for all runs on stderr.

Work is counted in epochs, weighted by the number of blocks of the network, so that the estimate of the remaining time
holds for plans with networks of different depth.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from codinet import files
from codinet.sweep.plan import PlannedRun

_OTHER_BLOCKS = 12  # of networks that are not codinet's own; the real number is known when they are built


class Progress:
    """Counts the work of a sweep. Subclasses print."""

    def __init__(self) -> None:
        self.runs = self.ended = 0  # numbers of runs
        self.done: dict[str, float] = {}  # work done, by run
        self.total = 0.0  # work of the whole plan, without what failed runs left undone
        self.done_before = 0.0  # work done before this session
        self.started_at = 0.0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def start(self, planned: Sequence[PlannedRun], finished: Collection[str], epochs: Mapping[str, int]) -> None:
        """Begin a session.

        Args:
            planned: All runs.
            finished: The names of the runs that were finished before.
            epochs: The epochs that unfinished runs were trained for before, by name.
        """
        self.runs, self.ended = len(planned), len(finished)
        self.total = sum(_work(run) for run in planned)
        for run in planned:
            self.done[run.name] = _work(run) if run.name in finished else _work(run, epochs.get(run.name, 0))
        self.done_before, self.started_at = sum(self.done.values()), time.monotonic()

    def update(self, run: PlannedRun, epochs: int) -> None:
        """A run has been trained for `epochs` epochs."""
        self.done[run.name] = _work(run, epochs)

    def finished(self, run: PlannedRun) -> None:
        """A run has finished."""
        self.done[run.name] = _work(run)
        self.ended += 1

    def failed(self, run: PlannedRun, why: str) -> None:
        """A run has failed. The rest of its work will not be done."""
        self.total -= _work(run) - self.done[run.name]
        self.ended += 1

    def interrupted(self, run: PlannedRun, why: str) -> None:
        """The process of a run has failed after an epoch or more; the run continues."""

    def silent(self, run: PlannedRun, minutes: float) -> None:
        """A run has written nothing for this many minutes."""

    def seconds_left(self) -> float | None:
        """Estimated seconds left, from the work of this session; None before any work was done."""
        done = sum(self.done.values())
        if done <= self.done_before:
            return None
        return (time.monotonic() - self.started_at) * (self.total - done) / (done - self.done_before)


class ProgressBar(Progress):
    """Shows one bar, and one line for each run that ends or stalls."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self.console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self.bar = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task("", total=None, left="", visible=False)

    def __enter__(self) -> "ProgressBar":
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def start(self, planned: Sequence[PlannedRun], finished: Collection[str], epochs: Mapping[str, int]) -> None:
        super().start(planned, finished, epochs)
        if self.ended:
            self.console.print(f"{self.ended} of {self.runs} planned runs are already finished.")
        self.bar.reset(self.task, visible=True)
        self._refresh()

    def update(self, run: PlannedRun, epochs: int) -> None:
        super().update(run, epochs)
        self._refresh()

    def finished(self, run: PlannedRun) -> None:
        super().finished(run)
        self._print(f"{run.name}: finished")

    def failed(self, run: PlannedRun, why: str) -> None:
        super().failed(run, why)
        self._print(f"{run.name}: failed: {why}")

    def interrupted(self, run: PlannedRun, why: str) -> None:
        self.console.print(f"{run.name}: continues after a failure: {why}")

    def silent(self, run: PlannedRun, minutes: float) -> None:
        self.console.print(f"{run.name}: no output for {minutes:g} minutes; see its .log and --stall-minutes")

    def _print(self, line: str) -> None:
        left = f", {_format_left(self.seconds_left())}" if self.ended < self.runs else ""
        self.console.print(line if self.console.is_terminal else f"{line} ({self.ended} of {self.runs}{left})")
        self._refresh()

    def _refresh(self) -> None:
        self.bar.update(
            self.task,
            description=f"{self.ended} of {self.runs} runs",
            completed=sum(self.done.values()),
            total=self.total,
            left=_format_left(self.seconds_left()),
        )


def epochs_done(folder: Path) -> int:
    """The number of epochs in the metrics of a run folder."""
    from codinet.runs import MAX_METRICS_BYTES

    try:
        return files.read(folder / "metrics.jsonl", MAX_METRICS_BYTES).count(b"\n")
    except OSError:
        return 0


def _work(run: PlannedRun, epochs: int | None = None) -> float:
    """The work of so many epochs of a run; by default, of all."""
    from codinet.backbones import ARCHITECTURES

    schedule = run.config.schedule
    in_all = schedule.epochs + (schedule.finetune or 0)
    own = ARCHITECTURES.get(run.config.network.arch)
    blocks = _OTHER_BLOCKS if own is None else own.blocks
    return float(blocks) * min(in_all, in_all if epochs is None else epochs)


def _format_left(seconds: float | None) -> str:
    if seconds is None:
        return "time left unknown"
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute left"
    return f"about {minutes // 60} h {minutes % 60} min left" if minutes >= 60 else f"about {minutes} min left"
