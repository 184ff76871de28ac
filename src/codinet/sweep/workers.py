"""Train the runs of a plan in worker processes, several at a time.

A run that depends on another waits for it while other runs go first. A run that fails, dies or stalls affects only the
runs that depend on it; its output is in its `.log` file. When the sweep ends, for whatever reason, its workers end too,
and calling `run` again continues the sweep.

A worker counts as stalled when neither its log nor its metrics have grown for `stall_minutes`. Training writes a line
at least every minute; only reading and evaluating a large data set takes longer.
"""

import dataclasses
import math
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from codinet import files
from codinet.config import PARTS, RunConfig, flag_of
from codinet.data.catalogue import KNOWN
from codinet.errors import UserError
from codinet.specs import OWN, parse_spec
from codinet.sweep.plan import PlannedRun
from codinet.sweep.summary import Result, read_result
from codinet.sweep.sweep_folder import is_finished, lock_folder, log_file, save_plan
from codinet.sweep.sweep_progress import Progress, epochs_done

POLL_SECONDS = 0.1
GRACE_SECONDS = 10.0  # between asking a worker to end and killing it
SILENT_MINUTES = 10.0  # after which a silent worker is reported
STALL_MINUTES = 180.0  # after which a silent worker is stopped
WORKER = "from codinet.sweep.workers import worker_main; worker_main()"  # the program of a worker process
_LOG_TAIL = 2**16  # bytes at the end of a log that are searched for an error message

Command = Callable[[PlannedRun, str | None], list[str]]  # from a run and a device to the command that trains it


@dataclass(frozen=True)
class Outcome:
    """The results of a sweep."""

    results: list[Result] = field(default_factory=list)  # in the order of the plan
    failures: dict[str, str] = field(default_factory=dict)  # from names to reasons


def run(
    out: Path,
    planned: Sequence[PlannedRun],
    *,
    workers: int = 1,
    data_root: Path | None = None,
    devices: Sequence[str | None] = (None,),
    progress: Progress | None = None,
    command: Command | None = None,
    stall_minutes: float = STALL_MINUTES,
) -> Outcome:
    """Train every run of the plan that is not yet finished.

    Args:
        out: The folder of the sweep.
        planned: The runs.
        workers: The number of runs to train at the same time.
        data_root: The folder of the data sets.
        devices: The devices, which workers use in turn.
        progress: Receives the progress.
        command: Replaces the training command in tests.
        stall_minutes: A run that shows no progress for this long is stopped and counts as failed.

    Returns:
        The results of all finished runs, including those finished earlier, and the reasons of all failures.
    """
    if workers < 1:
        raise UserError(f"--workers must be 1 or more, got {workers}.")
    if not (stall_minutes > 0 and math.isfinite(stall_minutes)):
        raise UserError(f"--stall-minutes must be a number above 0, got {stall_minutes:g}.")

    def train(run: PlannedRun, device: str | None) -> list[str]:
        arguments = train_arguments(run.training_config(out), out / run.name, data_root=data_root, device=device)
        return [sys.executable, "-c", WORKER, *arguments]

    with lock_folder(out), progress or Progress() as progress:
        save_plan(out, planned)
        failures = _Pool(out, planned, workers, devices, command or train, progress, stall_minutes * 60).train()
        results = []
        for run in planned:
            if run.name not in failures:
                try:
                    results.append(read_result(out, run))
                except UserError as error:
                    failures[run.name] = str(error)
        return Outcome(results, {run.name: failures[run.name] for run in planned if run.name in failures})


def train_arguments(
    config: RunConfig, out: Path, *, data_root: Path | None = None, device: str | None = None
) -> list[str]:
    """The arguments of `codinet` that train a config into `out`, or resume it."""
    arguments = ["train", config.source, *_flags(config), "--out", str(out), "--resume"]
    if data_root is not None:
        arguments += ["--data-root", str(data_root)]
    if device is not None:
        arguments += ["--device", device]
    return arguments


def _flags(config: RunConfig) -> Iterator[str]:
    """Flags for every value that differs from the default; the defaults are the paper's recipe."""
    default = RunConfig(config.source)
    for part in PARTS:
        for entry in dataclasses.fields(getattr(config, part)):
            value = getattr(getattr(config, part), entry.name)
            if value == getattr(getattr(default, part), entry.name):
                continue
            flag = flag_of(entry.name)
            if isinstance(value, bool):
                yield flag if value else f"--no-{flag.removeprefix('--')}"
            elif isinstance(value, tuple):
                yield from (flag, *map(str, value))
            else:
                yield from (flag, str(value))
    if config.extra.start is None and config.source not in KNOWN:  # small data sets start from the zoo by default
        yield from ("--start", "none")
    if parse_spec(config.network.arch).library != OWN:  # which have another default
        yield from ("--preset", "paper")
    if config.method != default.method:
        yield from ("--method", config.method)
    yield from ("--seed", str(config.seed))


def worker_main() -> None:
    """The main function of a worker process: `codinet` with the given arguments, until the sweep ends.

    The sweep holds the other end of stdin. When it closes, because the sweep stops or was killed, the worker exits
    immediately; training recovers from this as from any kill. So two processes never write to the same run folder.
    """
    end_with_sweep()
    from codinet.cli import main

    sys.exit(main(sys.argv[1:]))


def end_with_sweep() -> None:
    """Make this worker process exit when the sweep ends."""
    threading.Thread(target=_exit_when_stdin_closes, daemon=True).start()


def _exit_when_stdin_closes() -> None:
    # Reads the descriptor, because a thread that blocks in sys.stdin makes Python fail at exit.
    while os.read(0, 1):
        pass
    os._exit(130)


@dataclass
class _Worker:
    run: PlannedRun
    process: subprocess.Popen[bytes]
    log: Path
    log_start: int  # where the output of this attempt starts
    epochs: int  # done before this attempt
    written: int = 0  # bytes of log and metrics
    grew_at: float = field(default_factory=time.monotonic)
    reported: bool = False  # whether its silence was reported


class _Pool:
    def __init__(
        self,
        out: Path,
        planned: Sequence[PlannedRun],
        workers: int,
        devices: Sequence[str | None],
        command: Command,
        progress: Progress,
        stall_seconds: float,
    ) -> None:
        self.out, self.devices, self.command, self.progress = out, devices, command, progress
        self.stall_seconds = stall_seconds
        self.slots: list[_Worker | None] = [None] * workers
        self.failures: dict[str, str] = {}
        self.waiting = [run for run in planned if not is_finished(out, run)]
        self.unfinished = {run.name for run in self.waiting}  # including those in training and those that failed
        self.awaited = {run.depends_on for run in self.waiting} & self.unfinished
        finished = {run.name for run in planned} - self.unfinished
        progress.start(planned, finished, {run.name: epochs_done(out / run.name) for run in self.waiting})

    def train(self) -> dict[str, str]:
        """Train all runs; return the reasons of failures by name."""
        try:
            while self.waiting or any(self.slots):
                for slot, worker in enumerate(self.slots):
                    if worker is None:
                        if run := self._take_ready():
                            self._start(slot, run)
                    elif worker.process.poll() is not None:
                        self.slots[slot] = None
                        self._finish(worker)
                    elif self._is_stalled(worker):
                        self.slots[slot] = None
                        _stop([worker.process])
                        minutes = f"{self.stall_seconds / 60:g} minutes"
                        self._fail(worker.run, f"it made no progress for {minutes} and was stopped (--stall-minutes)")
                    else:
                        self.progress.update(worker.run, epochs_done(self.out / worker.run.name))
                time.sleep(POLL_SECONDS)
        finally:
            _stop([worker.process for worker in self.slots if worker is not None])
        return self.failures

    def _take_ready(self) -> PlannedRun | None:
        """Remove and return the first waiting run whose dependency is finished."""
        ready = next((run for run in self.waiting if run.depends_on not in self.unfinished), None)
        if ready:
            self.waiting.remove(ready)
        return ready

    def _start(self, slot: int, run: PlannedRun) -> None:
        words = self.command(run, self.devices[slot % len(self.devices)])
        log = log_file(self.out, run)
        try:
            with log.open("ab") as file:
                file.write(f"$ {shlex.join(words)}\n".encode())
                file.flush()
                log_start = file.tell()
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.PIPE,
                    stdout=file,
                    stderr=file,
                    env=self._environment(run),
                    start_new_session=True,  # so that Ctrl-C reaches only the sweep
                )
        except OSError as error:
            self._fail(run, f"could not be started: {error.strerror or error}")
            return
        self.slots[slot] = _Worker(run, process, log, log_start, epochs_done(self.out / run.name))

    def _environment(self, run: PlannedRun) -> dict[str, str]:
        """Divide the cores between the workers, and let runs that others wait for go first on a GPU shared by CUDA MPS.

        Variables that are set already are kept.
        """
        if len(self.slots) == 1:
            return dict(os.environ)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        shared = {"OMP_NUM_THREADS": str(max(1, cores // len(self.slots)))}
        if self.awaited and run.name not in self.awaited:
            shared["CUDA_MPS_CLIENT_PRIORITY"] = "1"  # below normal
        return {**shared, **os.environ}

    def _is_stalled(self, worker: _Worker) -> bool:
        """Whether the worker has been silent for too long. Reports a shorter silence once."""
        written = _size(worker.log) + _size(self.out / worker.run.name / "metrics.jsonl")
        now = time.monotonic()
        if written != worker.written:
            worker.written, worker.grew_at, worker.reported = written, now, False
        silence = now - worker.grew_at
        if silence > SILENT_MINUTES * 60 and not worker.reported:
            worker.reported = True
            self.progress.silent(worker.run, SILENT_MINUTES)
        return silence > self.stall_seconds

    def _finish(self, worker: _Worker) -> None:
        assert worker.process.stdin is not None
        worker.process.stdin.close()
        if worker.process.returncode == 0 and is_finished(self.out, worker.run):
            self.unfinished.remove(worker.run.name)
            self.progress.finished(worker.run)
            return
        why = failure_reason(worker.process.returncode, _log_tail(worker))
        if worker.process.returncode != 2 and epochs_done(self.out / worker.run.name) > worker.epochs:
            self.waiting.insert(0, worker.run)  # it resumes; a failure that repeats at the same place makes no progress
            self.progress.interrupted(worker.run, why)
        else:
            self._fail(worker.run, why)

    def _fail(self, run: PlannedRun, why: str) -> None:
        self.failures[run.name] = why
        self.progress.failed(run, why)
        for other in [other for other in self.waiting if other.depends_on == run.name]:
            self.waiting.remove(other)
            self._fail(other, f"it depends on {run.name}, which failed")


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Close the stdin of the workers, which ends them, and kill those that do not end."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    deadline = time.monotonic() + GRACE_SECONDS
    for process in processes:
        try:
            process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # a process in an uninterruptible read cannot be killed
                process.wait(timeout=GRACE_SECONDS)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _log_tail(worker: _Worker) -> str:
    """The end of the output of this attempt; empty if the log was removed."""
    try:
        with files.open_regular(worker.log) as file:
            file.seek(max(worker.log_start, _size(worker.log) - _LOG_TAIL))
            return file.read(_LOG_TAIL).decode(errors="replace")
    except OSError:
        return ""


def failure_reason(code: int, output: str) -> str:
    """Why a worker failed, in one line: its own error message if it has one.

    Args:
        code: The return code of the process.
        output: The end of its output.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("codinet: ") for line in lines if line.startswith("codinet: ")]
    if code == 2 and errors:
        return errors[-1]
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"its process was ended by {name}" + (", perhaps because memory ran out" if name == "SIGKILL" else "")
    if code == 0:
        return "its process ended without a result"
    return f"exit code {code}" + (f": {lines[-1]}" if lines else "")
