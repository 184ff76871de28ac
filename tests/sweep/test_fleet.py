import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from codinet.errors import UserError
from codinet.sweep import Planned, fleet
from codinet.sweep.fleet import Command, reason, run
from codinet.sweep.folder import is_finished, log_of
from codinet.sweep.progress import Progress

Fakes = Callable[..., tuple[Path, Command]]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "POLL_SECONDS", 0.005)
    monkeypatch.setattr(fleet, "GRACE_SECONDS", 0.3)


def test_results_stand_in_the_plans_order_and_every_run_has_its_log(planned: list[Planned], fakes: Fakes) -> None:
    out, command = fakes()
    outcome = run(out, planned, workers=3, devices=("cuda:0", "cuda:1"), command=command)
    assert [result.name for result in outcome.results] == [plan.name for plan in planned]
    assert outcome.failures == {}
    assert outcome.results[1].figures["accuracy"] == 91
    assert outcome.results[0].environment == {"commit": "tests"}
    logs = [log_of(out, plan).read_text() for plan in planned]
    assert all(log.startswith("$ ") for log in logs)
    assert ["on cuda:1" in log for log in logs[:3]] == [False, True, False]


def test_failing_and_dying_workers_leave_the_others_alone_and_are_tried_again(
    planned: list[Planned], fakes: Fakes
) -> None:
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

    _, whole = fakes()
    outcome = run(out, planned, workers=2, command=whole)
    assert len(outcome.results) == 4
    assert [log_of(out, plan).read_text().count("$ ") for plan in planned] == [2, 2, 2, 1]


def test_runs_wait_for_the_one_they_start_from_while_others_go_on(chained: list[Planned], fakes: Fakes) -> None:
    out, copying = fakes(runs=chained)
    last, slow = out / "resnet20-codinet-budget0.7-seed1" / "evaluation.json", chained[0].name

    def command(run: Planned, device: str | None) -> list[str]:
        words = copying(run, device)
        if run.name == slow:
            # Ends after all that does not need it.
            words[3] = f"import os, time\nwhile not os.path.exists({str(last)!r}): time.sleep(0.01)\n" + words[3]
        elif run.after is not None:
            words[3] = f"open({str(out / run.after / 'evaluation.json')!r}); " + words[3]
        return words

    outcome = run(out, chained, workers=2, command=command)
    assert outcome.failures == {}
    assert [result.name for result in outcome.results] == [plan.name for plan in chained]
    assert [result.config.extra.start for result in outcome.results[:3]] == [None, None, "resnet20-static-seed0"]


def test_those_that_need_a_failed_run_fail_with_it_and_all_are_tried_again(
    chained: list[Planned], fakes: Fakes
) -> None:
    static, _, *routed = chained
    out, command = fakes({static.name: "raise RuntimeError('a bug')"}, chained)
    outcome = run(out, chained, workers=2, command=command)
    assert outcome.failures == {
        static.name: "exit code 1: RuntimeError: a bug",
        **{plan.name: f"it starts from {static.name}, which failed" for plan in routed if plan.after == static.name},
    }
    assert len(outcome.results) == 3
    _, whole = fakes(runs=chained)
    assert len(run(out, chained, workers=2, command=whole).results) == 6
    assert [log_of(out, plan).read_text().count("$ ") for plan in chained] == [2, 1, 1, 1, 1, 1]


def test_a_sweep_of_runs_that_need_others_may_be_moved(
    chained: list[Planned], fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, command = fakes(runs=chained)
    run(out, chained, workers=6, command=command)
    assert str(out) not in (out / "sweep.json").read_text()
    out.rename(out.with_name("moved"))
    monkeypatch.chdir(out.parent)
    outcome = run(Path("moved"), chained, command=lambda _run, _device: ["/nowhere/at/all"])
    assert outcome.failures == {}
    routed = chained[2]
    assert is_finished(Path("moved"), routed)
    for other in (replace(routed, after=None), replace(routed, after=chained[1].name)):
        assert not is_finished(Path("moved"), other)


def test_a_run_whose_need_is_not_in_the_plan_is_left_to_its_worker(chained: list[Planned], fakes: Fakes) -> None:
    out, command = fakes(runs=chained)
    assert len(run(out, chained[2:], workers=4, command=command).results) == 4


def test_a_program_that_is_not_there_is_a_failure_like_others(planned: list[Planned], fakes: Fakes) -> None:
    out, _ = fakes()
    outcome = run(out, planned[:1], command=lambda _run, _device: ["/nowhere/at/all"])
    assert "could not be started" in outcome.failures[planned[0].name]


def test_ctrl_c_ends_the_workers_even_one_that_does_not_listen(planned: list[Planned], fakes: Fakes) -> None:
    listens = "import os; print(os.getpid(), flush=True); os.read(0, 1)"
    names = [plan.name for plan in planned]
    out, command = fakes(
        {names[0]: listens, names[1]: "import os, time; print(os.getpid(), flush=True); time.sleep(60)"}
    )

    class CtrlC(Progress):
        def at(self, run: Planned, epochs: int) -> None:
            super().at(run, epochs)
            logs = [log_of(out, plan) for plan in planned[:2]]
            if all(log.exists() and len(log.read_text().splitlines()) == 2 for log in logs):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(out, planned, workers=2, progress=CtrlC(), command=command)
    for name in names[:2]:
        process = int((out / f"{name}.log").read_text().splitlines()[1])
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    assert not (out / names[2]).exists()
    _, whole = fakes()
    assert len(run(out, planned, workers=2, command=whole).results) == 4


def test_a_worker_that_stalls_is_mentioned_stopped_and_tried_again(
    planned: list[Planned], fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "SILENT_MINUTES", 0.2 / 60)
    stalled, lively = planned[:2]
    out, command = fakes(
        {
            stalled.name: "import os, time; print(os.getpid(), flush=True); time.sleep(600)",
            lively.name: "import time\nfor _ in range(25): print(1, flush=True); time.sleep(0.2)\nraise SystemExit(3)",
        }
    )
    mentioned: list[str] = []

    class Listening(Progress):
        def silent(self, run: Planned, minutes: float) -> None:
            mentioned.append(run.name)

    outcome = run(out, planned, workers=4, command=command, progress=Listening(), stall_minutes=3 / 60)
    assert outcome.failures[stalled.name] == "it made no progress for 0.05 minutes and was stopped (--stall-minutes)"
    assert outcome.failures[lively.name].startswith("exit code 3")  # which took longer, and was left alone
    assert len(outcome.results) == 2
    assert stalled.name in mentioned
    process = int(log_of(out, stalled).read_text().splitlines()[1])
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    _, whole = fakes()
    assert len(run(out, planned, workers=2, command=whole).results) == 4


@pytest.mark.parametrize("minutes", [0, -1, float("nan"), float("inf")])
def test_a_sweep_waits_for_a_time_above_zero(planned: list[Planned], fakes: Fakes, minutes: float) -> None:
    out, command = fakes()
    with pytest.raises(UserError, match="--stall-minutes must be a number above 0, got"):
        run(out, planned, command=command, stall_minutes=minutes)


def test_a_log_that_was_removed_leaves_the_exit_code(planned: list[Planned], fakes: Fakes) -> None:
    out, _ = fakes()
    remove = f"import os; os.unlink({str(log_of(out, planned[0]))!r}); raise SystemExit(3)"
    out, command = fakes({planned[0].name: remove})
    assert run(out, planned[:1], command=command).failures == {planned[0].name: "exit code 3"}


def test_a_worker_ends_with_the_sweep_that_started_it() -> None:
    # What it would train does not exist; it is still being started when its sweep goes.
    words = [sys.executable, "-m", "codinet.sweep.worker", "train", "nothing.npz"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as worker:
        assert worker.stdin is not None
        worker.stdin.close()
        assert worker.wait(timeout=60) == 130


def test_another_plan_in_the_same_folder_is_refused(planned: list[Planned], fakes: Fakes) -> None:
    out, command = fakes()
    run(out, planned, workers=4, command=command)
    with pytest.raises(UserError, match=r"another sweep \(it has .*budget0.7-seed1\); repeat its flags or choose"):
        run(out, planned[:3], command=command)
    with pytest.raises(UserError, match=r"it lacks other and 1 more"):
        run(out, [*planned, replace(planned[0], name="other"), replace(planned[0], name="still")], command=command)
    config = replace(planned[0].config, schedule=replace(planned[0].config.schedule, epochs=9))
    with pytest.raises(UserError, match="epochs was 2, now 9"):
        run(out, [replace(planned[0], config=config), *planned[1:]], command=command)


def test_with_and_without_static_runs_to_start_from_are_different_plans(
    planned: list[Planned], chained: list[Planned], fakes: Fakes
) -> None:
    out, command = fakes()
    run(out, planned, workers=4, command=command)
    with pytest.raises(UserError, match=r"another sweep \(it was begun without --from-static\)"):
        run(out, chained, command=command)
    other = out.with_name("other")
    run(other, chained, workers=4, command=command)
    with pytest.raises(UserError, match=r"another sweep \(it was begun with --from-static\)"):
        run(other, [replace(plan, after=None) for plan in chained], command=command)


def test_a_kill_while_the_plan_is_written_is_survived(planned: list[Planned], fakes: Fakes) -> None:
    out, command = fakes()
    out.mkdir()
    (out / ".sweep.json.77.tmp").write_text('{"runs"')
    assert len(run(out, planned, workers=4, command=command).results) == 4
    assert not (out / ".sweep.json.77.tmp").exists()


def test_folders_that_cannot_be_worked_in_are_refused(
    planned: list[Planned],
    fakes: Fakes,
    tmp_path: Path,
    held_by_another: Callable[[Path], AbstractContextManager[None]],
) -> None:
    out, command = fakes()
    with held_by_another(out), pytest.raises(UserError, match="Another sweep is running"):
        run(out, planned, command=command)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="choose another --out"):
        run(tmp_path / "file", planned, command=command)
    with pytest.raises(UserError, match="not empty"):
        run(tmp_path, planned, command=command)
    for odd in (
        *('{"runs": 3}', "[]", '{"format": 1, "runs": [[]]}', '{"format": 1, "runs": [{"name": 3}]}', "[" * 100_000),
        *('{"format": 1, "runs": [{"name": "a", "config": 3}]}', '{"format": 1, "runs": {"name": "a"}}', "NaN"),
    ):
        (out / "sweep.json").write_text(odd)
        with pytest.raises(UserError, match="not a sweep's plan"):
            run(out, planned, command=command)
    (out / "sweep.json").write_text('{"format": 0, "runs": []}')
    with pytest.raises(UserError, match="another version"):
        run(out, planned, command=command)
    with pytest.raises(UserError, match="--workers must be 1 or more, got 0"):
        run(out, planned, workers=0, command=command)


@pytest.mark.parametrize(
    ("code", "said", "why"),
    [
        (2, "Warning: x\ncodinet: One.\ncodinet: Two.\n", "Two."),
        (2, "", "exit code 2"),
        (0, "done", "its process ended without a result"),
        (-15, "", "its process was ended by SIGTERM"),
        (-99, "", "its process was ended by signal 99"),
    ],
)
def test_reasons(code: int, said: str, why: str) -> None:
    assert reason(code, said) == why


def test_workers_share_the_cores_unless_told(
    planned: list[Planned], fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    out, _ = fakes()
    tell = [sys.executable, "-S", "-c", "import os; print(os.environ.get('OMP_NUM_THREADS'))"]
    run(out, planned[:1], workers=3, command=lambda _run, _device: tell)
    assert log_of(out, planned[0]).read_text().splitlines()[1] == "2"


def test_the_time_left_is_guessed_from_what_was_done(planned: list[Planned], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = Progress()
    progress.begin(planned, planned[:1])
    progress.at(planned[1], 2)  # of 3 epochs, before this session
    progress.started()
    assert progress.left() is None
    now = 110.0
    progress.finished(planned[1])
    assert progress.left() == pytest.approx(60)  # one epoch in ten seconds, six to go
    progress.failed(planned[2], "")
    assert progress.left() == pytest.approx(30)
