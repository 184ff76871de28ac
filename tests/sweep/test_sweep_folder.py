import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from codinet.errors import UserError
from codinet.files import DamagedError
from codinet.sweep import PlannedRun, run
from codinet.sweep.sweep_folder import PLAN, is_finished, save_plan
from codinet.sweep.workers import Command

Fakes = Callable[..., tuple[Path, Command]]


@pytest.fixture
def plan_file(tmp_path: Path, planned: list[PlannedRun]) -> Path:
    """A folder with a plan."""
    save_plan(tmp_path, planned)
    return tmp_path / PLAN


def test_an_older_plan_without_newer_settings_is_the_same_sweep(plan_file: Path, planned: list[PlannedRun]) -> None:
    content = json.loads(plan_file.read_text())
    for config in (entry["config"] for entry in content["runs"]):
        del config["extra"], config["data"]["watch"], config["schedule"]["milestones"]
    plan_file.write_text(json.dumps(content))
    save_plan(plan_file.parent, planned)


def test_unknown_settings_of_a_plan_are_named(plan_file: Path, planned: list[PlannedRun]) -> None:
    content = json.loads(plan_file.read_text())
    content["runs"][0]["config"]["network"]["depth"] = 7
    plan_file.write_text(json.dumps(content))
    with pytest.raises(DamagedError, match=r"sweep\.json is not a sweep's plan \(.*unknown or missing entries depth\)"):
        save_plan(plan_file.parent, planned)


def test_a_sweep_with_dependencies_can_be_moved(
    chained: list[PlannedRun], fakes: Fakes, monkeypatch: pytest.MonkeyPatch
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
    for other in (replace(routed, depends_on=None), replace(routed, depends_on=chained[1].name)):
        assert not is_finished(Path("moved"), other)


def test_a_different_plan_in_the_same_folder_is_refused(planned: list[PlannedRun], fakes: Fakes) -> None:
    out, command = fakes()
    run(out, planned, workers=4, command=command)
    with pytest.raises(UserError, match=r"another sweep \(it has .*budget0.7-seed1\); repeat its flags or choose"):
        run(out, planned[:3], command=command)
    with pytest.raises(UserError, match=r"it lacks other and 1 more"):
        run(out, [*planned, replace(planned[0], name="other"), replace(planned[0], name="still")], command=command)
    config = replace(planned[0].config, schedule=replace(planned[0].config.schedule, epochs=9))
    with pytest.raises(UserError, match="epochs was 2, now 9"):
        run(out, [replace(planned[0], config=config), *planned[1:]], command=command)


def test_plans_with_and_without_from_static_differ(
    planned: list[PlannedRun], chained: list[PlannedRun], fakes: Fakes
) -> None:
    out, command = fakes()
    run(out, planned, workers=4, command=command)
    with pytest.raises(UserError, match=r"another sweep \(it lacks .*static-seed0 and 1 more\)"):
        run(out, chained, command=command)
    other = out.with_name("other")
    run(other, chained, workers=4, command=command)
    with pytest.raises(UserError, match=r"another sweep \(start was .*static-seed0, now None\)"):
        run(other, [replace(plan, depends_on=None) for plan in chained], command=command)


def test_a_half_written_plan_is_replaced(planned: list[PlannedRun], fakes: Fakes) -> None:
    out, command = fakes()
    out.mkdir()
    (out / ".sweep.json.77.tmp").write_text('{"runs"')
    assert len(run(out, planned, workers=4, command=command).results) == 4
    assert not (out / ".sweep.json.77.tmp").exists()


def test_unusable_folders_are_refused(
    planned: list[PlannedRun],
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
