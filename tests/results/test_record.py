import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from codinet.config import ExtraConfig
from codinet.errors import UserError
from codinet.files import DamagedError, read_json, write_json
from codinet.results.record import find_runs, keep, read, read_all, record_of
from codinet.runs import RunFolder

Make = Callable[..., Path]


def test_a_record_tells_the_whole_run(make_run: Make) -> None:
    record = record_of(RunFolder.open(make_run("one", seed=3)), ["results", "ablation"])
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


def test_the_runs_own_evaluation_is_read_and_no_better_epoch(make_run: Make) -> None:
    folder = RunFolder.open(make_run("one", accuracy=93.0))
    folder.keep_metrics([{"epoch": 1, "accuracy": 95.0}, {"epoch": 2, "accuracy": 93.0}])
    assert record_of(folder, ["results"])["accuracy"] == 93.0


def test_a_static_run_has_no_budget(make_run: Make) -> None:
    record = record_of(RunFolder.open(make_run("one", method="static")), ["results"])
    assert (record["budget"], record["gamma"], record["finetune"]) == (None, None, 0)
    assert record["tables"] == {"results": "ResNet-110, static"}


def test_development_runs_are_refused(make_run: Make) -> None:
    run = make_run("one", config=lambda config: replace(config, data=replace(config.data, holdout=5000)))
    with pytest.raises(UserError, match="is a development run: it held 5000 training images back"):
        record_of(RunFolder.open(run), ["results"])


def test_unfinished_and_damaged_runs_are_refused(make_run: Make) -> None:
    run = make_run("one")
    write_json(run / "evaluation.json", {"accuracy": "94"})
    with pytest.raises(DamagedError, match="holds no evaluation"):
        record_of(RunFolder.open(run), ["results"])
    (run / "evaluation.json").unlink()
    with pytest.raises(UserError, match="is not finished"):
        record_of(RunFolder.open(run), ["results"])


def test_networks_of_the_zoo_are_refused(make_run: Make) -> None:
    folder = RunFolder.open(make_run("one"))
    with pytest.raises(UserError, match="was unpacked from the zoo"):
        record_of(replace(folder, environment={"zoo": "x"}), ["results"])


def test_an_unknown_table_is_told(make_run: Make) -> None:
    with pytest.raises(UserError, match=r"Unknown table 'ablations' \(perhaps you meant ablation\)"):
        record_of(RunFolder.open(make_run("one")), ["ablations"])


def test_no_place_on_the_disk_is_told(make_run: Make) -> None:
    extra = ExtraConfig(start="/home/somebody/static", start_sha256="0" * 64)
    run = make_run("one", config=lambda config: replace(config, source="/home/somebody/mine.npz", extra=extra))
    record = record_of(RunFolder.open(run), ["results"])
    assert "somebody" not in json.dumps(record)
    assert "--start static" in record["command"]


def test_a_folder_of_runs_is_all_of_them(make_run: Make, tmp_path: Path) -> None:
    paths = [make_run(name, seed=seed) for seed, name in enumerate("ab")]
    (tmp_path / "runs" / "a.log").write_text("what it said")
    assert [run.path for run in find_runs([tmp_path / "runs"])] == paths
    assert [run.path for run in find_runs(paths[:1])] == paths[:1]


def test_where_there_are_no_runs_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no runs"):
        find_runs([tmp_path])
    with pytest.raises(UserError, match="There is no run folder"):
        find_runs([tmp_path / "none"])
    with pytest.raises(UserError, match="There is nothing to add"):
        find_runs([])


def test_a_run_that_may_not_be_looked_into_is_said(
    make_run: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shut = make_run("a")
    make_run("b", seed=1)
    look = os.listdir

    def listdir(folder: Path) -> list[str]:
        if folder == shut:  # whoever runs tests as root may look into everything
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return look(folder)

    monkeypatch.setattr(os, "listdir", listdir)
    with pytest.raises(UserError, match=r"a cannot be read: Permission denied; name the runs to add"):
        find_runs([tmp_path / "runs"])


def test_a_folder_without_results_makes_no_page(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no results; add some with codinet results add RUNS"):
        read_all(tmp_path)


def test_a_record_comes_back_as_it_was_kept(make_run: Make, tmp_path: Path) -> None:
    records = [record_of(RunFolder.open(make_run(str(seed), seed=seed)), ["results"]) for seed in range(2)]
    written = keep(records, tmp_path / "results")
    assert [file.stem for file in written] == [record["name"] for record in records]
    assert read_all(tmp_path / "results") == sorted(records, key=lambda record: record["name"])


def test_a_record_gains_tables_and_keeps_its_outcome(make_run: Make, tmp_path: Path) -> None:
    folder = RunFolder.open(make_run("one"))
    keep([record_of(folder, ["results"])], tmp_path)
    (file,) = keep([record_of(folder, ["margin"])], tmp_path)
    assert read(file)["tables"] == {"margin": "ResNet-110, CoDiNet, m_d = 0.5", "results": "ResNet-110, CoDiNet"}
    other = {**record_of(folder, ["results"]), "accuracy": 95.0}
    with pytest.raises(UserError, match="holds another outcome of the same run; keep it, or give --replace"):
        keep([other], tmp_path)
    assert read(file)["accuracy"] == 94.0
    keep([other], tmp_path, replace=True)
    assert read(file)["accuracy"] == 95.0


def test_two_outcomes_of_one_run_are_refused_in_one_call_too(make_run: Make, tmp_path: Path) -> None:
    one, other = (
        record_of(RunFolder.open(make_run(name, accuracy=accuracy)), ["results"])
        for name, accuracy in (("a", 94.0), ("b", 95.0))
    )
    results = tmp_path / "results"
    with pytest.raises(UserError, match=r"came to two outcomes in these runs; add one of them, or give --replace"):
        keep([one, other], results)
    assert not results.exists()
    (file,) = keep([one, one], results)
    with pytest.raises(UserError, match="holds another outcome of the same run; keep it, or give --replace"):
        keep([one, other], results)
    assert keep([one, other], results, replace=True) == [file]
    assert read(file)["accuracy"] == 95.0


def test_a_record_from_before_a_setting_has_its_default(make_run: Make, tmp_path: Path) -> None:
    record = record_of(RunFolder.open(make_run("one")), ["results"])
    (file,) = keep([record], tmp_path)
    write_json(file, {**record, "config": {key: part for key, part in record["config"].items() if key != "extra"}})
    assert read(file) == record


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 9}, "is not a result that this version reads"),
        ({"name": "other"}, "is not a result that this version reads"),
        ({"accuracy": None}, "is not a complete result"),
        ({"tables": ["results"]}, "is not a complete result"),
        ({"tables": {"results": 3}}, "is not a complete result"),
        ({"epochs": None}, "is not a complete result"),
        ({"finetune": "20"}, "is not a complete result"),
        ({"budget": "0.57"}, "is not a complete result"),
        ({"method": "magic"}, "is not a complete result"),
        ({"versions": None}, "is not a complete result"),
        ({"versions": {"torch": 2}}, "is not a complete result"),
        ({"wall_s": "long"}, "is not a complete result"),
        ({"device": 3}, "is not a complete result: device does not fit"),
        ({"accuracy": 120.0}, "is not a complete result: accuracy does not fit"),
        ({"macs": 0}, "is not a complete result: macs does not fit"),
        ({"n": [1]}, "is not a complete result: n does not fit"),
        ({"wall_s": -1.0}, "is not a complete result: wall_s does not fit"),
        ({"arch": "resnet9"}, "is not a complete result: arch does not fit"),
        ({"arch": "resnet32", "mean_blocks": 1}, "its network is resnet110, and that of the record resnet32"),
        ({"config": {}}, r"json holds no run's config \(.*missing entries data, losses"),
        ({"config": 3}, "is not a complete result"),
        ({"tables": {"reslts": "x"}}, r"Unknown table in .* 'reslts' \(perhaps you meant results"),
    ],
)
def test_a_file_of_another_kind_is_refused(
    make_run: Make, tmp_path: Path, change: dict[str, object], words: str
) -> None:
    (file,) = keep([record_of(RunFolder.open(make_run("one")), ["results"])], tmp_path)
    write_json(file, {**read_json(file), **change})
    with pytest.raises(UserError, match=words):
        read_all(tmp_path)


@pytest.mark.parametrize("key", ["epochs", "finetune", "command", "versions", "wall_s", "commit", "device"])
def test_what_a_page_shows_must_be_there(make_run: Make, tmp_path: Path, key: str) -> None:
    (file,) = keep([record_of(RunFolder.open(make_run("one")), ["results"])], tmp_path)
    write_json(file, {name: value for name, value in read_json(file).items() if name != key})
    with pytest.raises(DamagedError, match=rf"{file.name} is not a complete result"):
        read(file)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda config: {**config, "magic": {}}, "unknown or missing entries magic"),
        (
            lambda config: {**config, "network": {**config["network"], "router": "none"}},
            "router must be one of fc, cnn, rnn, got 'none'",
        ),
        (lambda config: {**config, "losses": None}, "losses must hold named values"),
    ],
)
def test_a_config_of_another_kind_is_refused(
    make_run: Make, tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]], words: str
) -> None:
    (file,) = keep([record_of(RunFolder.open(make_run("one")), ["results"])], tmp_path)
    content = read_json(file)
    write_json(file, {**content, "config": change(content["config"])})
    with pytest.raises(DamagedError, match=rf"{file.name} holds no run's config \(.*{words}.*\); restore it"):
        read(file)


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no folder .*none; make it with codinet results add"):
        read_all(tmp_path / "none")
