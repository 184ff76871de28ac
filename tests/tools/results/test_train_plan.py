from dataclasses import replace
from pathlib import Path

import pytest

from codinet.files import write_json
from codinet.presets import quick
from codinet.sweep.plan import METHODS, Overrides, PlannedRun, plan_rows
from tools.results import plans
from tools.results.__main__ import main
from tools.results.plans import PLANS, Plan, plan_named, without_result
from tools.results.record import read_record, read_records

RESULTS = Path(__file__).parents[3] / "results"


def names(runs: list[PlannedRun]) -> list[str]:
    return [run.name for run in runs]


@pytest.mark.parametrize("name", PLANS)
def test_results_belong_to_their_plan(name: str) -> None:
    """A run without a result is trained, and one with a result is not."""
    plan, records = plan_named(name), read_records(RESULTS)
    runs = plan.make()
    assert len(set(names(runs))) == len(runs)
    assert names(without_result(runs, [], plan.table)) == names(runs)
    listed = [record for record in records if plan.table in record["tables"]]
    missing = without_result(runs, records, plan.table)
    if name == "methods":  # its table has nothing else
        assert len(missing) == len(runs) - len(listed)
    assert without_result(missing, records, plan.table) == missing


def test_a_run_that_others_start_from_is_trained_again_if_they_are() -> None:
    runs = PLANS["starts"].make()
    (taught,) = [run for run in runs if run.name.endswith("codinet-budget0.4-from-none-taught-by-static-seed1")]
    static = replace(next(run for run in runs if run.name == taught.depends_on))
    assert names(without_result([static, taught], [], "results")) == [static.name, taught.name]


@pytest.mark.parametrize("name", ["frontier", "frontier-cifar100"])
def test_the_frontier_learns_from_a_wide_teacher(name: str, tmp_path: Path) -> None:
    teacher, *runs = PLANS[name].make()
    assert teacher.config.network.arch == "resnet32x4"
    for run in runs:
        extra = run.training_config(tmp_path).extra
        assert run.depends_on == teacher.name
        assert (extra.teacher, extra.teacher_views) == (str(tmp_path / teacher.name), 32)
        assert extra.start is None or extra.start.startswith("zoo:")
    # Routed and static networks have equally long schedules, where both start from scratch.
    scratch = [run.config.schedule for run in runs if run.config.extra.start is None]
    assert {schedule.epochs + (schedule.finetune or 0) for schedule in scratch} == {216}
    routed = [run.config for run in runs if run.config.network.routed]
    assert all(config.schedule.finetune_lr == config.schedule.lr for config in routed)
    assert names(without_result([teacher, runs[-1]], [], "results")) == names([teacher, runs[-1]])


def tiny() -> list[PlannedRun]:
    base = Overrides(epochs=1, finetune=0, batch=256, views=1, watch="train").apply(quick("digits"))
    base = replace(
        base, network=replace(base.network, arch="resnet14"), losses=replace(base.losses, alpha=0, budget=0.6)
    )
    return plan_rows([(METHODS[name](base), None) for name in ("random", "static")])


def test_what_a_plan_lacks_is_trained_analysed_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(plans.PLANS, "tiny", Plan("methods", tiny))
    folder, results = tmp_path / "runs", tmp_path / "results"
    words = ["train", "tiny", "--folder", str(folder), "--results", str(results), "--device", "cpu", "--json"]
    assert main(words) == 0, capsys.readouterr().err
    records = read_records(results)
    assert {record["method"] for record in records} == {"random", "static"}
    routed = next(record for record in records if record["method"] == "random")
    assert 0 <= routed["analysis"]["same_path"] <= 1

    (file,), (static,) = results.glob("*random*.json"), results.glob("*static*.json")
    file.unlink()  # as if the worker had been killed before it
    record = read_record(static)
    write_json(static, {**record, "accuracy": record["accuracy"] - 1})  # an earlier training of the same run
    trained = sorted(folder.rglob("model.safetensors"))
    before = [each.stat().st_mtime_ns for each in trained]
    assert main(words) == 0
    assert (read_record(file), read_record(static)) == (routed, record)
    assert [each.stat().st_mtime_ns for each in trained] == before
    assert main(["train", "tiny", "--folder", str(tmp_path / "other"), "--results", str(results)]) == 0
    assert not (tmp_path / "other").exists()

    monkeypatch.setitem(plans.PLANS, "again", Plan("starts", tiny))  # another table of the same runs
    assert main(["train", "again", "--folder", str(tmp_path / "other"), "--results", str(results)]) == 0
    assert not (tmp_path / "other").exists()
    assert [set(record["tables"]) for record in read_records(results)] == [{"methods", "starts"}] * 2
    capsys.readouterr()
    assert main(["train", "methode"]) == 2
    assert "Unknown plan 'methode'" in capsys.readouterr().err
