import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from codinet.cli import parse
from codinet.commands.train import Args, config_from
from codinet.config import ExtraConfig, RunConfig, ScheduleConfig
from codinet.errors import UserError
from codinet.methods import NAMES
from codinet.presets import PRESETS, demo
from codinet.resolving import resolve
from codinet.sweep import Grid, PlannedRun, from_static, plan, run, workers
from codinet.sweep.papers import plan_paper
from codinet.sweep.sweep_folder import log_file
from codinet.sweep.sweep_progress import Progress, ProgressBar
from codinet.sweep.workers import Command, failure_reason, train_arguments

Fakes = Callable[..., tuple[Path, Command]]


def test_results_follow_the_plan_and_every_run_has_a_log(planned: list[PlannedRun], fakes: Fakes) -> None:
    out, command = fakes()
    outcome = run(out, planned, workers=3, devices=("cuda:0", "cuda:1"), command=command)
    assert [result.name for result in outcome.results] == [plan.name for plan in planned]
    assert outcome.failures == {}
    assert outcome.results[1].figures["accuracy"] == 91
    assert outcome.results[0].environment == {"commit": "tests"}
    logs = [log_file(out, plan).read_text() for plan in planned]
    assert all(log.startswith("$ ") for log in logs)
    assert ["on cuda:1" in log for log in logs[:3]] == [False, True, False]


def test_failed_workers_do_not_affect_others_and_are_retried(planned: list[PlannedRun], fakes: Fakes) -> None:
    names = [plan.name for plan in planned]
    out, command = fakes(
        {
            names[0]: "import sys; print('codinet: The disk is full; free some.', file=sys.stderr); sys.exit(2)",
            names[1]: "import os; os.kill(os.getpid(), 9)",
            names[2]: "raise RuntimeError('a bug')",
        }
    )
    outcome = run(out, planned, workers=2, command=command)
    assert [result.name for result in outcome.results] == names[3:]
    assert outcome.failures == {
        names[0]: "The disk is full; free some.",
        names[1]: "its process was ended by SIGKILL, perhaps because memory ran out",
        names[2]: "exit code 1: RuntimeError: a bug",
    }
    assert "Traceback" in (out / f"{names[2]}.log").read_text()

    _, working = fakes()
    outcome = run(out, planned, workers=2, command=working)
    assert len(outcome.results) == 4
    assert [log_file(out, plan).read_text().count("$ ") for plan in planned] == [2, 2, 2, 1]


KILLED_TWICE = """
import os, shutil
folder, file = {folder!r}, {folder!r} + "/metrics.jsonl"
os.makedirs(folder, exist_ok=True)
if not os.path.exists(file) or open(file).read().count("\\n") < 2:
    open(file, "a").write("{{}}\\n")  # another epoch
    os.kill(os.getpid(), 9)
"""


def test_a_run_that_is_killed_continues_while_it_makes_progress(
    planned: list[PlannedRun], fakes: Fakes, capsys: pytest.CaptureFixture[str]
) -> None:
    out, copying = fakes()
    finishes, fails, *_ = planned

    def command(run: PlannedRun, device: str | None) -> list[str]:
        words, folder = copying(run, device), str(out / run.name)
        if run.name == finishes.name:
            words[3] = KILLED_TWICE.format(folder=folder) + "shutil.rmtree(folder)\n" + words[3]
        elif run.name == fails.name:
            words[3] = KILLED_TWICE.format(folder=folder) + "raise SystemExit(1)"
        return words

    with ProgressBar() as progress:
        outcome = run(out, planned, workers=2, command=command, progress=progress)
    assert outcome.failures == {fails.name: "exit code 1"}
    assert [log_file(out, each).read_text().count("$ ") for each in planned] == [3, 3, 1, 1]
    assert capsys.readouterr().err.count("continues after a failure: its process was ended by SIGKILL") == 4


def test_runs_wait_for_their_dependency_while_others_continue(chained: list[PlannedRun], fakes: Fakes) -> None:
    out, copying = fakes(runs=chained)
    last, slow = out / "resnet20-codinet-budget0.7-seed1" / "evaluation.json", chained[0].name

    def command(run: PlannedRun, device: str | None) -> list[str]:
        words = copying(run, device)
        if run.name == slow:
            # Ends after all runs that do not depend on it.
            words[3] = f"import os, time\nwhile not os.path.exists({str(last)!r}): time.sleep(0.01)\n" + words[3]
        elif run.depends_on is not None:
            words[3] = f"open({str(out / run.depends_on / 'evaluation.json')!r}); " + words[3]
        return words

    outcome = run(out, chained, workers=2, command=command)
    assert outcome.failures == {}
    assert [result.name for result in outcome.results] == [plan.name for plan in chained]
    assert [result.config.extra.start for result in outcome.results[:3]] == [None, None, "resnet20-static-seed0"]


def test_dependents_of_a_failed_run_fail_and_all_are_retried(chained: list[PlannedRun], fakes: Fakes) -> None:
    static, _, *routed = chained
    out, command = fakes({static.name: "raise RuntimeError('a bug')"}, chained)
    outcome = run(out, chained, workers=2, command=command)
    assert outcome.failures == {
        static.name: "exit code 1: RuntimeError: a bug",
        **{
            plan.name: f"it depends on {static.name}, which failed" for plan in routed if plan.depends_on == static.name
        },
    }
    assert len(outcome.results) == 3
    _, working = fakes(runs=chained)
    assert len(run(out, chained, workers=2, command=working).results) == 6
    assert [log_file(out, plan).read_text().count("$ ") for plan in chained] == [2, 1, 1, 1, 1, 1]


def test_a_dependency_outside_the_plan_is_not_waited_for(chained: list[PlannedRun], fakes: Fakes) -> None:
    out, command = fakes(runs=chained)
    assert len(run(out, chained[2:], workers=4, command=command).results) == 4


def test_a_missing_program_is_a_failure(planned: list[PlannedRun], fakes: Fakes) -> None:
    out, _ = fakes()
    outcome = run(out, planned[:1], command=lambda _run, _device: ["/nowhere/at/all"])
    assert "could not be started" in outcome.failures[planned[0].name]


def test_ctrl_c_ends_the_workers_even_one_that_ignores_stdin(planned: list[PlannedRun], fakes: Fakes) -> None:
    listens = "import os; print(os.getpid(), flush=True); os.read(0, 1)"
    names = [plan.name for plan in planned]
    out, command = fakes(
        {names[0]: listens, names[1]: "import os, time; print(os.getpid(), flush=True); time.sleep(60)"}
    )

    class CtrlC(Progress):
        def update(self, run: PlannedRun, epochs: int) -> None:
            super().update(run, epochs)
            logs = [log_file(out, plan) for plan in planned[:2]]
            if all(log.exists() and len(log.read_text().splitlines()) == 2 for log in logs):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(out, planned, workers=2, progress=CtrlC(), command=command)
    for name in names[:2]:
        process = int((out / f"{name}.log").read_text().splitlines()[1])
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    assert not (out / names[2]).exists()
    _, working = fakes()
    assert len(run(out, planned, workers=2, command=working).results) == 4


def test_a_stalled_worker_is_reported_stopped_and_retried(
    planned: list[PlannedRun], fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "SILENT_MINUTES", 0.2 / 60)
    stalled, active = planned[:2]
    out, command = fakes(
        {
            stalled.name: "import os, time; print(os.getpid(), flush=True); time.sleep(600)",
            active.name: "import time\nfor _ in range(25): print(1, flush=True); time.sleep(0.1)\nraise SystemExit(3)",
        }
    )
    reported: list[str] = []

    class Recording(Progress):
        def silent(self, run: PlannedRun, minutes: float) -> None:
            reported.append(run.name)

    outcome = run(out, planned, workers=4, command=command, progress=Recording(), stall_minutes=1.5 / 60)
    assert outcome.failures[stalled.name] == "it made no progress for 0.025 minutes and was stopped (--stall-minutes)"
    assert outcome.failures[active.name].startswith("exit code 3")  # it ran for longer, but not silently
    assert len(outcome.results) == 2
    assert stalled.name in reported
    process = int(log_file(out, stalled).read_text().splitlines()[1])
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    _, working = fakes()
    assert len(run(out, planned, workers=2, command=working).results) == 4


@pytest.mark.parametrize("minutes", [0, -1, float("nan"), float("inf")])
def test_stall_minutes_must_be_above_zero(planned: list[PlannedRun], fakes: Fakes, minutes: float) -> None:
    out, command = fakes()
    with pytest.raises(UserError, match="--stall-minutes must be a number above 0, got"):
        run(out, planned, command=command, stall_minutes=minutes)


def test_without_a_log_the_reason_is_the_exit_code(planned: list[PlannedRun], fakes: Fakes) -> None:
    out, _ = fakes()
    remove = f"import os; os.unlink({str(log_file(out, planned[0]))!r}); raise SystemExit(3)"
    out, command = fakes({planned[0].name: remove})
    assert run(out, planned[:1], command=command).failures == {planned[0].name: "exit code 3"}


def test_a_worker_ends_with_the_sweep_that_started_it() -> None:
    # The source does not exist; the worker is still starting when stdin closes.
    words = [sys.executable, "-c", workers.WORKER, "train", "nothing.npz"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as worker:
        assert worker.stdin is not None
        worker.stdin.close()
        assert worker.wait(timeout=60) == 130


@pytest.mark.parametrize(
    ("code", "output", "why"),
    [
        (2, "Warning: x\ncodinet: One.\ncodinet: Two.\n", "Two."),
        (2, "", "exit code 2"),
        (0, "done", "its process ended without a result"),
        (-15, "", "its process was ended by SIGTERM"),
        (-99, "", "its process was ended by signal 99"),
    ],
)
def test_failure_reasons(code: int, output: str, why: str) -> None:
    assert failure_reason(code, output) == why


def test_workers_share_the_cores_and_the_gpu(
    planned: list[PlannedRun], fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(8)))
    variables = "OMP_NUM_THREADS", "CUDA_MPS_CLIENT_PRIORITY"
    for variable in variables:
        monkeypatch.delenv(variable, raising=False)
    out, _ = fakes()
    shown = [sys.executable, "-S", "-c", f"import os; print(*map(os.environ.get, {variables}))"]
    awaited, other, waiting = planned[:3]
    runs = [awaited, other, replace(waiting, depends_on=awaited.name)]
    run(out, runs, workers=3, command=lambda _run, _device: shown)
    assert log_file(out, awaited).read_text().splitlines()[1] == "2 None"
    assert log_file(out, other).read_text().splitlines()[1] == "2 1"


def read_back(arguments: list[str]) -> tuple[RunConfig, Args]:
    assert arguments[0] == "train"
    args = parse(Args, arguments[1:], prog="codinet train")
    return config_from(args), args


@pytest.mark.parametrize(
    "name", ["paper-table-tradeoff", "paper-table-ablation", "paper-table-comparison-imagenet", "paper-figure-margin"]
)
def test_the_arguments_of_a_worker_give_back_its_config(name: str) -> None:
    for planned in plan_paper(name, data_path="pictures" if "imagenet" in name else None):
        assert read_back(train_arguments(planned.config, Path("out")))[0] == planned.config


@pytest.mark.parametrize("preset", PRESETS)
def test_the_arguments_cover_every_preset(preset: str) -> None:
    grid = Grid(
        method=("static", "con"), router=("rnn",), relaxation=("straight-through",), gamma=(1e-7,), seed=(4000000000,)
    )
    for planned in plan(PRESETS[preset]("some where.npz"), grid):
        assert read_back(train_arguments(planned.config, Path("out")))[0] == planned.config


def test_the_arguments_name_every_method() -> None:
    for planned in plan(PRESETS["best"]("digits"), Grid(method=NAMES, budget=(0.5,))):
        assert resolve(read_back(train_arguments(planned.config, Path("out")))[0]) == planned.config


@pytest.mark.parametrize("milestones", [(0.25, 0.5, 0.75), ()])
def test_milestones_and_extras_are_passed_on(milestones: tuple[float, ...]) -> None:
    config = RunConfig(
        "digits",
        schedule=ScheduleConfig(milestones=milestones),
        extra=ExtraConfig(0.1, 0.99, start="a run", start_sha256="1f", teacher="b", teacher_sha256="2e", distill=0.5),
    )
    assert read_back(train_arguments(config, Path("out")))[0] == config


def test_folders_and_device_are_passed_on() -> None:
    _, args = read_back(train_arguments(plan(demo("digits"))[0].config, Path("a b"), data_root=Path("c"), device="cpu"))
    assert (args.out, args.data_root, args.device, args.resume) == (Path("a b"), Path("c"), "cpu", True)


def test_a_dependency_is_given_by_its_path() -> None:
    static, routed = from_static(plan(demo("digits")))
    config = routed.training_config(Path("a b"))
    assert read_back(train_arguments(config, Path("out")))[0] == config
    assert config.extra.start == config.extra.teacher == f"a b/{static.name}"
