"""What the table `routing` takes from a run's analysis, and what it refuses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from codinet.analysis.result import JSON
from codinet.errors import UserError
from codinet.files import DamagedError, read_json, write_json
from codinet.results.record import Record, keep, read, record_of
from codinet.results.routing import source_of
from codinet.runs import RunFolder

Make = Callable[..., Path]


def routing(run: Path) -> Record:
    return record_of(RunFolder.open(run), ["routing"])


def test_the_figures_are_those_of_the_analysis(make_run: Make, analyse: Make) -> None:
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
    assert source_of(record) == "own last layer"


def test_other_tables_ask_for_no_analysis(make_run: Make, analyse: Make) -> None:
    assert "analysis" not in record_of(RunFolder.open(analyse(make_run("one"))), ["results"])


def test_a_run_that_is_not_analysed_is_refused(make_run: Make) -> None:
    with pytest.raises(
        UserError,
        match=r"one has no analysis of its weights and data, .* routing needs; make one with codinet analyze .*one",
    ):
        routing(make_run("one"))


def test_an_analysis_of_other_weights_is_refused(make_run: Make, analyse: Make) -> None:
    run = analyse(make_run("one"))
    (run / "model.safetensors").write_text("others")
    with pytest.raises(UserError, match="has no analysis of its weights and data"):
        routing(run)
    (run / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model.safetensors cannot be read \(No such file or directory\)"):
        routing(run)


def test_a_damaged_analysis_is_refused(make_run: Make, analyse: Make) -> None:
    run = analyse(make_run("one"))
    write_json(run / JSON, {**read_json(run / JSON), "figures": {}})
    with pytest.raises(DamagedError, match="do not belong together; analyse the run again with codinet analyze"):
        routing(run)


def test_a_static_run_is_refused(make_run: Make) -> None:
    with pytest.raises(UserError, match="is a static run, which has one path; the table routing takes routed runs"):
        routing(make_run("one", method="static"))


def test_a_record_keeps_its_analysis_when_it_gains_tables(make_run: Make, analyse: Make, tmp_path: Path) -> None:
    run = analyse(make_run("one"))
    keep([routing(run)], tmp_path)
    (file,) = keep([record_of(RunFolder.open(run), ["results"])], tmp_path)
    assert list(read(file)["tables"]) == ["results", "routing"]
    assert read(file)["analysis"]["same_path"] == 0.375
    keep([routing(analyse(run, same_path=0.75))], tmp_path)
    assert read(file)["analysis"]["same_path"] == 0.75


def test_another_outcome_needs_its_own_analysis(make_run: Make, analyse: Make, tmp_path: Path) -> None:
    run = analyse(make_run("one"))
    before = routing(run)
    keep([before], tmp_path)
    after = {**record_of(RunFolder.open(run), ["results"]), "accuracy": 95.0}
    with pytest.raises(UserError, match="with another outcome; analyse the run again and add it with --table routing"):
        keep([after], tmp_path, replace=True)
    (file,) = keep([{**before, "accuracy": 95.0}], tmp_path, replace=True)
    assert read(file)["accuracy"] == 95.0


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
def test_half_an_analysis_is_no_whole_result(
    make_run: Make, analyse: Make, tmp_path: Path, change: dict[str, Any]
) -> None:
    record = routing(analyse(make_run("one")))
    for analysis in ({**record["analysis"], **change}, None):
        (file,) = keep([{**record, "analysis": analysis}], tmp_path / str(analysis is None))
        with pytest.raises(DamagedError, match="is not a complete result"):
            read(file)


def test_where_nothing_correlates_is_a_whole_result(make_run: Make, analyse: Make, tmp_path: Path) -> None:
    (file,) = keep([routing(analyse(make_run("one"), pcc_relaxed=None, pcc_hard=None))], tmp_path)
    assert read(file)["analysis"]["pcc_hard"] is None


def test_an_analysis_or_a_record_of_before_swapped_paths_is_whole(
    make_run: Make, analyse: Make, tmp_path: Path
) -> None:
    record = routing(analyse(make_run("one")))
    assert (record["analysis"]["swapped_any"], record["analysis"]["swapped_class"]) == (None, None)
    before = {key: value for key, value in record["analysis"].items() if not key.startswith("swapped")}
    for analysis in (record["analysis"], before):
        (file,) = keep([{**record, "analysis": analysis}], tmp_path)
        assert read(file)["analysis"] == analysis
