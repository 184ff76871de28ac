import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from codinet.analysis.run_analysis import JSON
from codinet.config import ExtraConfig
from codinet.errors import UserError
from codinet.files import DamagedError, read_json, write_json
from codinet.runs import RunFolder, RunWriter
from tools.results.record import Record, feature_source, find_runs, make_record, read_record, read_records, save_records

Make = Callable[..., Path]


def test_record_of_a_run(make_run: Make) -> None:
    record = make_record(RunFolder.open(make_run("one", seed=3)), ["results", "ablation"])
    assert record["tables"] == {"ablation": "ResNet-110, CoDiNet", "results": "ResNet-110, CoDiNet"}
    assert (record["data"], record["arch"], record["method"]) == ("cifar10", "resnet110", "codinet")
    assert (record["budget"], record["gamma"], record["seed"]) == (0.57, None, 3)
    assert (record["epochs"], record["finetune"], record["wall_s"]) == (250, 20, 1800)
    assert (record["accuracy"], record["distinct_paths"], record["n"]) == (94.0, 300, 10_000)
    assert (record["commit"], record["device"], record["versions"]["torch"]) == ("abc", "H200", "2.13")
    assert record["command"] == (
        "codinet train cifar10 --arch resnet110 --budget 0.57 --finetune 20 --batch 512 --seed 3 --out RUN"
    )
    assert record["name"].startswith("cifar10-resnet110-codinet-0.57-seed3-")


def test_metrics_are_those_of_the_last_epoch(make_run: Make) -> None:
    folder = RunWriter.open(make_run("one", accuracy=93.0))
    folder.keep_metrics([{"epoch": 1, "accuracy": 95.0}, {"epoch": 2, "accuracy": 93.0}])
    assert make_record(folder, ["results"])["accuracy"] == 93.0


def test_a_static_run_has_no_budget(make_run: Make) -> None:
    record = make_record(RunFolder.open(make_run("one", method="static")), ["results"])
    assert (record["budget"], record["gamma"], record["finetune"]) == (None, None, 0)
    assert record["tables"] == {"results": "ResNet-110, static"}


def test_development_runs_are_refused(make_run: Make) -> None:
    run = make_run("one", config=lambda config: replace(config, data=replace(config.data, holdout=5000)))
    with pytest.raises(UserError, match="was trained with --holdout 5000; result tables take runs without"):
        make_record(RunFolder.open(run), ["results"])


def test_networks_of_libraries_are_refused(make_run: Make) -> None:
    run = make_run("one")
    content = read_json(run / "config.json")
    content["config"]["network"]["arch"] = "timm:resnet18"
    write_json(run / "config.json", content)
    with pytest.raises(UserError, match="is a timm:resnet18; result tables take codinet's own networks only"):
        make_record(RunFolder.open(run), ["results"])


def test_unfinished_and_damaged_runs_are_refused(make_run: Make) -> None:
    run = make_run("one")
    write_json(run / "evaluation.json", {"accuracy": "94"})
    with pytest.raises(DamagedError, match="is not an evaluation"):
        make_record(RunFolder.open(run), ["results"])
    (run / "evaluation.json").unlink()
    with pytest.raises(UserError, match="is not finished"):
        make_record(RunFolder.open(run), ["results"])


def test_networks_of_the_zoo_are_refused(make_run: Make) -> None:
    folder = RunFolder.open(make_run("one"))
    with pytest.raises(UserError, match="was unpacked from the zoo"):
        make_record(replace(folder, environment={"zoo": "x"}), ["results"])


def test_unknown_table(make_run: Make) -> None:
    with pytest.raises(UserError, match=r"Unknown table 'ablations' \(perhaps you meant ablation\)"):
        make_record(RunFolder.open(make_run("one")), ["ablations"])


def test_records_contain_no_paths_of_this_machine(make_run: Make) -> None:
    extra = ExtraConfig(start="/home/somebody/static", start_sha256="0" * 64)
    run = make_run("one", config=lambda config: replace(config, source="/home/somebody/mine.npz", extra=extra))
    record = make_record(RunFolder.open(run), ["results"])
    assert "somebody" not in json.dumps(record)
    assert "--start static" in record["command"]


def test_find_runs_looks_into_folders(make_run: Make, tmp_path: Path) -> None:
    paths = [make_run(name, seed=seed) for seed, name in enumerate("ab")]
    (tmp_path / "runs" / "a.log").write_text("log")
    assert [run.path for run in find_runs([tmp_path / "runs"])] == paths
    assert [run.path for run in find_runs(paths[:1])] == paths[:1]


def test_no_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="contains no runs"):
        find_runs([tmp_path])
    with pytest.raises(UserError, match="There is no run folder"):
        find_runs([tmp_path / "none"])
    with pytest.raises(UserError, match="No runs given"):
        find_runs([])


def test_unreadable_run(make_run: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shut = make_run("a")
    make_run("b", seed=1)
    look = os.listdir

    def listdir(folder: Path) -> list[str]:
        if folder == shut:  # permissions do not stop root
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return look(folder)

    monkeypatch.setattr(os, "listdir", listdir)
    with pytest.raises(UserError, match=r"Cannot read .*a: Permission denied; name the runs to add"):
        find_runs([tmp_path / "runs"])


def test_folder_without_results(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"contains no results; add some with python -m tools\.results add RUNS"):
        read_records(tmp_path)


def test_records_survive_a_round_trip(make_run: Make, tmp_path: Path) -> None:
    records = [make_record(RunFolder.open(make_run(str(seed), seed=seed)), ["results"]) for seed in range(2)]
    written = save_records(records, tmp_path / "results")
    assert [file.stem for file in written] == [record["name"] for record in records]
    assert read_records(tmp_path / "results") == sorted(records, key=lambda record: record["name"])


def test_adding_a_run_again_adds_tables_and_keeps_its_metrics(make_run: Make, tmp_path: Path) -> None:
    folder = RunFolder.open(make_run("one"))
    save_records([make_record(folder, ["results"])], tmp_path)
    (file,) = save_records([make_record(folder, ["margin"])], tmp_path)
    assert read_record(file)["tables"] == {"margin": "ResNet-110, CoDiNet, m_d = 0.5", "results": "ResNet-110, CoDiNet"}
    other = {**make_record(folder, ["results"]), "accuracy": 95.0}
    with pytest.raises(UserError, match="contains another result of the same run; keep it, or pass --replace"):
        save_records([other], tmp_path)
    assert read_record(file)["accuracy"] == 94.0
    save_records([other], tmp_path, replace=True)
    assert read_record(file)["accuracy"] == 95.0


def test_two_results_of_one_run_in_one_call(make_run: Make, tmp_path: Path) -> None:
    one, other = (
        make_record(RunFolder.open(make_run(name, accuracy=accuracy)), ["results"])
        for name, accuracy in (("a", 94.0), ("b", 95.0))
    )
    results = tmp_path / "results"
    with pytest.raises(UserError, match=r"These runs contain two results of .*; add one of them, or pass --replace"):
        save_records([one, other], results)
    assert not results.exists()
    (file,) = save_records([one, one], results)
    with pytest.raises(UserError, match="contains another result of the same run; keep it, or pass --replace"):
        save_records([one, other], results)
    assert save_records([one, other], results, replace=True) == [file]
    assert read_record(file)["accuracy"] == 95.0


def test_old_records_get_defaults_for_new_settings(make_run: Make, tmp_path: Path) -> None:
    record = make_record(RunFolder.open(make_run("one")), ["results"])
    (file,) = save_records([record], tmp_path)
    write_json(file, {**record, "config": {key: part for key, part in record["config"].items() if key != "extra"}})
    assert read_record(file) == record


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 9}, "is not a result that this version reads"),
        ({"name": "other"}, "is not a result that this version reads"),
        ({"accuracy": None}, "has an invalid or missing"),
        ({"tables": ["results"]}, "has an invalid or missing"),
        ({"tables": {"results": 3}}, "has an invalid or missing"),
        ({"epochs": None}, "has an invalid or missing"),
        ({"finetune": "20"}, "has an invalid or missing"),
        ({"budget": "0.57"}, "has an invalid or missing"),
        ({"method": "magic"}, "has an invalid or missing"),
        ({"versions": None}, "has an invalid or missing"),
        ({"versions": {"torch": 2}}, "has an invalid or missing"),
        ({"wall_s": "long"}, "has an invalid or missing"),
        ({"device": 3}, "has an invalid or missing device"),
        ({"accuracy": 120.0}, "has an invalid or missing accuracy"),
        ({"macs": 0}, "has an invalid or missing macs"),
        ({"n": [1]}, "has an invalid or missing n"),
        ({"wall_s": -1.0}, "has an invalid or missing wall_s"),
        ({"arch": "resnet9"}, "has an invalid or missing arch"),
        ({"arch": "resnet32", "mean_blocks": 1}, "its network is resnet110, but the record's is resnet32"),
        ({"config": {}}, r"json has an invalid config \(.*missing entries data, losses"),
        ({"config": 3}, "has an invalid or missing"),
        ({"tables": {"reslts": "x"}}, r"Unknown table in .* 'reslts' \(perhaps you meant results"),
    ],
)
def test_invalid_records_are_refused(make_run: Make, tmp_path: Path, change: dict[str, object], words: str) -> None:
    (file,) = save_records([make_record(RunFolder.open(make_run("one")), ["results"])], tmp_path)
    write_json(file, {**read_json(file), **change})
    with pytest.raises(UserError, match=words):
        read_records(tmp_path)


@pytest.mark.parametrize("key", ["epochs", "finetune", "command", "versions", "wall_s", "commit", "device"])
def test_required_entries(make_run: Make, tmp_path: Path, key: str) -> None:
    (file,) = save_records([make_record(RunFolder.open(make_run("one")), ["results"])], tmp_path)
    write_json(file, {name: value for name, value in read_json(file).items() if name != key})
    with pytest.raises(DamagedError, match=rf"{file.name} has an invalid or missing"):
        read_record(file)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda config: {**config, "magic": {}}, "unknown or missing entries magic"),
        (
            lambda config: {**config, "network": {**config["network"], "router": "none"}},
            "router must be one of fc, cnn, rnn, narrow, policy, hash, bias, halting, spatial, got 'none'",
        ),
        (lambda config: {**config, "losses": None}, "losses must be a JSON object, got None"),
    ],
)
def test_invalid_configs_are_refused(
    make_run: Make, tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]], words: str
) -> None:
    (file,) = save_records([make_record(RunFolder.open(make_run("one")), ["results"])], tmp_path)
    content = read_json(file)
    write_json(file, {**content, "config": change(content["config"])})
    with pytest.raises(DamagedError, match=rf"{file.name} has an invalid config \(.*{words}.*\); restore it"):
        read_record(file)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none is not a folder; create it with python -m tools.results add"):
        read_records(tmp_path / "none")


# The analysis that the table `routing` needs


def routing(run: Path) -> Record:
    return make_record(RunFolder.open(run), ["routing"])


def test_analysis_metrics(make_run: Make, analyse: Make) -> None:
    record = routing(analyse(make_run("one"), swapped=(72.5, 74.25)))
    assert record["tables"] == {"routing": "ResNet-110, CoDiNet"}
    assert record["analysis"] == {
        "images": 4,
        "seed": 0,
        "same_path": 0.375,
        "same_path_kinds": {"crop": 0.5, "rotation": 0.25},
        "swapped_any": 72.5,
        "swapped_class": 74.25,
        "pcc_relaxed": 0.25,
        "pcc_hard": 0.125,
        "features": "the routed network's own last layer",
    }
    assert feature_source(record) == "own last layer"


def test_other_tables_need_no_analysis(make_run: Make, analyse: Make) -> None:
    assert "analysis" not in make_record(RunFolder.open(analyse(make_run("one"))), ["results"])


def test_missing_analysis(make_run: Make) -> None:
    with pytest.raises(
        UserError,
        match=r"one has no analysis of its current weights and data, .* routing requires; run codinet analyze .*one",
    ):
        routing(make_run("one"))


def test_analysis_of_other_weights(make_run: Make, analyse: Make) -> None:
    run = analyse(make_run("one"))
    (run / "model.safetensors").write_text("others")
    with pytest.raises(UserError, match="has no analysis of its current weights and data"):
        routing(run)
    (run / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"Cannot read .*model\.safetensors: No such file or directory"):
        routing(run)


def test_damaged_analysis(make_run: Make, analyse: Make) -> None:
    run = analyse(make_run("one"))
    write_json(run / JSON, {**read_json(run / JSON), "figures": {}})
    with pytest.raises(DamagedError, match=r"do not match; run codinet analyze .* again"):
        routing(run)


def test_static_runs_have_no_routing(make_run: Make) -> None:
    with pytest.raises(UserError, match="is a static run; the table routing takes routed runs only"):
        routing(make_run("one", method="static"))


def test_adding_tables_keeps_the_analysis(make_run: Make, analyse: Make, tmp_path: Path) -> None:
    run = analyse(make_run("one"))
    save_records([routing(run)], tmp_path)
    (file,) = save_records([make_record(RunFolder.open(run), ["results"])], tmp_path)
    assert list(read_record(file)["tables"]) == ["results", "routing"]
    assert read_record(file)["analysis"]["same_path"] == 0.375
    save_records([routing(analyse(run, same_path=0.75))], tmp_path)
    assert read_record(file)["analysis"]["same_path"] == 0.75


def test_another_result_needs_a_new_analysis(make_run: Make, analyse: Make, tmp_path: Path) -> None:
    run = analyse(make_run("one"))
    before = routing(run)
    save_records([before], tmp_path)
    after = {**make_record(RunFolder.open(run), ["results"]), "accuracy": 95.0}
    with pytest.raises(UserError, match="with another result; analyse the run again and add it with --table routing"):
        save_records([after], tmp_path, replace=True)
    (file,) = save_records([{**before, "accuracy": 95.0}], tmp_path, replace=True)
    assert read_record(file)["accuracy"] == 95.0


@pytest.mark.parametrize(
    "change",
    [
        {"same_path": None},
        {"same_path_kinds": [0.5]},
        {"same_path_kinds": {"crop": "half"}},
        {"pcc_hard": "none"},
        {"swapped_any": "some"},
        {"features": None},
        {"images": True},
    ],
)
def test_incomplete_analyses_are_refused(make_run: Make, analyse: Make, tmp_path: Path, change: dict[str, Any]) -> None:
    record = routing(analyse(make_run("one")))
    for analysis in ({**record["analysis"], **change}, None):
        (file,) = save_records([{**record, "analysis": analysis}], tmp_path / str(analysis is None))
        with pytest.raises(DamagedError, match="has an invalid or missing"):
            read_record(file)


def test_pcc_may_be_missing(make_run: Make, analyse: Make, tmp_path: Path) -> None:
    (file,) = save_records([routing(analyse(make_run("one"), pcc_relaxed=None, pcc_hard=None))], tmp_path)
    assert read_record(file)["analysis"]["pcc_hard"] is None


def test_old_analyses_without_swapped_paths_are_complete(make_run: Make, analyse: Make, tmp_path: Path) -> None:
    record = routing(analyse(make_run("one")))
    assert (record["analysis"]["swapped_any"], record["analysis"]["swapped_class"]) == (None, None)
    before = {key: value for key, value in record["analysis"].items() if not key.startswith("swapped")}
    for analysis in (record["analysis"], before):
        (file,) = save_records([{**record, "analysis": analysis}], tmp_path)
        assert read_record(file)["analysis"] == analysis
