"""Worker processes that train a plan's runs, a few at a time, and the outcome of each.

A run that needs another one waits for it, while others that are ready go first. A run that fails, or whose process dies
or stalls, does not affect those that do not need it; its reason is kept, and its output is in its `.log`. Whatever ends
the sweep ends the workers (see `worker`), and the same call goes on from there.

A worker counts as stalled when neither its log nor its metrics have grown for a time: a training writes a line at least
every minute, so only reading and evaluating a large data set is silent for longer.
"""

import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from codinet import files
from codinet.errors import UserError
from codinet.sweep.folder import is_finished, keep_plan, log_of, working_in
from codinet.sweep.grid import Planned
from codinet.sweep.progress import Progress, epochs_done
from codinet.sweep.summary import Result, read_result
from codinet.sweep.words import train_words

POLL_SECONDS = 0.1
GRACE_SECONDS = 10.0  # for a worker that was told to end, before it is killed
SILENT_MINUTES = 10.0  # after which a silent worker is mentioned
STALL_MINUTES = 180.0  # after which a silent worker is stopped
_LAST_WORDS = 2**16  # bytes of a log that are searched for the reason of a failure

Command = Callable[[Planned, str | None], list[str]]  # a run and a device → what to start


@dataclass(frozen=True)
class Outcome:
    results: list[Result] = field(default_factory=list)  # in the order of the plan
    failures: dict[str, str] = field(default_factory=dict)  # name → reason


def run(
    out: Path,
    planned: Sequence[Planned],
    *,
    workers: int = 1,
    data_root: Path | None = None,
    devices: Sequence[str | None] = (None,),
    progress: Progress | None = None,
    command: Command | None = None,
    stall_minutes: float = STALL_MINUTES,
) -> Outcome:
    """Train every run of the plan that is not finished in `out`, `workers` at a time, devices in turn.

    A run that shows no progress for `stall_minutes` is stopped and counts as failed. `command` replaces the training of
    a run, in tests.
    """
    if workers < 1:
        raise UserError(f"--workers must be 1 or more, got {workers}.")
    if not (stall_minutes > 0 and math.isfinite(stall_minutes)):
        raise UserError(f"--stall-minutes must be a number above 0, got {stall_minutes:g}.")

    def train(run: Planned, device: str | None) -> list[str]:
        words = train_words(run.trained(out), out / run.name, data_root=data_root, device=device)
        return [sys.executable, "-m", "codinet.sweep.worker", *words]

    with working_in(out), progress or Progress() as told:
        keep_plan(out, planned)
        failures = _Fleet(out, planned, workers, devices, command or train, told, stall_minutes * 60).work()
        results = []
        for run in planned:
            if run.name not in failures:
                try:
                    results.append(read_result(out, run))
                except UserError as error:
                    failures[run.name] = str(error)
        return Outcome(results, {run.name: failures[run.name] for run in planned if run.name in failures})


@dataclass
class _Worker:
    run: Planned
    process: subprocess.Popen[bytes]
    log: Path
    log_start: int  # where the output of this attempt begins
    written: int = 0  # bytes of log and metrics
    since: float = field(default_factory=time.monotonic)  # when these last grew
    mentioned: bool = False


class _Fleet:
    def __init__(
        self,
        out: Path,
        planned: Sequence[Planned],
        workers: int,
        devices: Sequence[str | None],
        command: Command,
        progress: Progress,
        patience: float = STALL_MINUTES * 60,
    ) -> None:
        self.patience = patience  # in seconds
        self.out, self.devices, self.command, self.progress = out, devices, command, progress
        self.slots: list[_Worker | None] = [None] * workers
        self.failures: dict[str, str] = {}
        self.waiting = [run for run in planned if not is_finished(out, run)]
        self.unfinished = {run.name for run in self.waiting}  # including those at work and those that failed
        progress.begin(planned, [run for run in planned if run not in self.waiting])
        for run in self.waiting:
            progress.at(run, epochs_done(out / run.name))
        progress.started()

    def work(self) -> dict[str, str]:
        try:
            while self.waiting or any(self.slots):
                for place, worker in enumerate(self.slots):
                    if worker is None and (run := self._next()):
                        self._start(place, run)
                    elif worker is not None and worker.process.poll() is not None:
                        self.slots[place] = None
                        self._end(worker)
                    elif worker is not None and self._stalls(worker):
                        self.slots[place] = None
                        _end_processes([worker.process])
                        minutes = f"{self.patience / 60:g} minutes"
                        self._fail(worker.run, f"it made no progress for {minutes} and was stopped (--stall-minutes)")
                    elif worker is not None:
                        self.progress.at(worker.run, epochs_done(self.out / worker.run.name))
                time.sleep(POLL_SECONDS)
        finally:
            self._stop()
        return self.failures

    def _stalls(self, worker: _Worker) -> bool:
        """Whether the worker has been silent for too long; a long silence is mentioned before that."""
        written = _size(worker.log) + _size(self.out / worker.run.name / "metrics.jsonl")
        now = time.monotonic()
        if written != worker.written:
            worker.written, worker.since, worker.mentioned = written, now, False
        if now - worker.since > SILENT_MINUTES * 60 and not worker.mentioned:
            worker.mentioned = True
            self.progress.silent(worker.run, SILENT_MINUTES)
        return now - worker.since > self.patience

    def _next(self) -> Planned | None:
        """The first run that does not wait for another."""
        ready = next((run for run in self.waiting if run.after not in self.unfinished), None)
        if ready:
            self.waiting.remove(ready)
        return ready

    def _start(self, place: int, run: Planned) -> None:
        words = self.command(run, self.devices[place % len(self.devices)])
        log = log_of(self.out, run)
        try:
            with log.open("ab") as file:
                file.write(f"$ {shlex.join(words)}\n".encode())
                file.flush()
                start = file.tell()
                # In a session of its own, so that Ctrl-C reaches only the sweep.
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.PIPE,
                    stdout=file,
                    stderr=file,
                    env=self._environment(),
                    start_new_session=True,
                )
        except OSError as error:
            self._fail(run, f"could not be started: {error.strerror or error}")
            return
        self.slots[place] = _Worker(run, process, log, start)

    def _environment(self) -> dict[str, str]:
        """Divide the cores: workers that each use all of them would slow each other down."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        shared = {"OMP_NUM_THREADS": str(max(1, cores // len(self.slots)))} if len(self.slots) > 1 else {}
        return {**shared, **os.environ}

    def _end(self, worker: _Worker) -> None:
        assert worker.process.stdin is not None
        worker.process.stdin.close()
        if worker.process.returncode == 0 and is_finished(self.out, worker.run):
            self.unfinished.remove(worker.run.name)
            self.progress.finished(worker.run)
            return
        self._fail(worker.run, reason(worker.process.returncode, _last_words(worker)))

    def _fail(self, run: Planned, why: str) -> None:
        self.failures[run.name] = why
        self.progress.failed(run, why)
        for other in [other for other in self.waiting if other.after == run.name]:
            self.waiting.remove(other)
            self._fail(other, f"it starts from {run.name}, which failed")

    def _stop(self) -> None:
        """End the workers that are left."""
        _end_processes([worker.process for worker in self.slots if worker is not None])


def _end_processes(left: Sequence[subprocess.Popen[bytes]]) -> None:
    """Close the standard input of workers, at which they end; kill those that do not."""
    for process in left:
        assert process.stdin is not None
        process.stdin.close()
    deadline = time.monotonic() + GRACE_SECONDS
    for process in left:
        try:
            process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # a process that waits for a dead disk cannot be killed
                process.wait(timeout=GRACE_SECONDS)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _last_words(worker: _Worker) -> str:
    """The end of the output of this attempt; nothing where the log has been removed."""
    try:
        with files.open_regular(worker.log) as file:
            file.seek(max(worker.log_start, _size(worker.log) - _LAST_WORDS))
            return file.read(_LAST_WORDS).decode(errors="replace")
    except OSError:
        return ""


def reason(code: int, said: str) -> str:
    """Why a worker ended, in one line: its own error message where it has one."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    sentences = [line.removeprefix("codinet: ") for line in lines if line.startswith("codinet: ")]
    if code == 2 and sentences:
        return sentences[-1]
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"its process was ended by {name}" + (", perhaps because memory ran out" if name == "SIGKILL" else "")
    if code == 0:
        return "its process ended without a result"
    return f"exit code {code}" + (f": {lines[-1]}" if lines else "")
