import dataclasses

from codinet.report import report_tables
from codinet.report.inference_time import InferenceTime
from codinet.report.run_data import Run


def as_cifar(run: Run) -> Run:
    data = dataclasses.replace(run.folder.data, name="cifar10")
    config = dataclasses.replace(
        run.folder.config, network=dataclasses.replace(run.folder.config.network, arch="resnet110")
    )
    return dataclasses.replace(run, folder=dataclasses.replace(run.folder, data=data, config=config))


def test_results_table_includes_the_papers_rows(runs: list[Run]) -> None:
    table = report_tables.results_table([as_cifar(run) for run in runs])
    assert all(len(row) == len(table.headings) for row in table.rows)
    names = [row[0] for row in table.rows]
    assert names == [name for run in ("near <1>", "far", "static") for name in (run, "the paper", "the paper")]
    assert table.rows[1][2:6] == ["94.47", report_tables.NONE, "145", "0.29"]
    assert table.rows[2][8] == "276"
    assert table.headings[5] == "G, paper's unit"
    assert "paper" in table.caption
    own = runs[0].evaluation
    percents = [f"{own['accuracy']:.2f}", f"{own['top5_accuracy']:.2f}"]
    assert table.rows[0][2:6] == [*percents, f"{own['macs'] / 1e6:.2f}", f"{own['paper_gmaccs']:.4g}"]


def test_the_papers_unit_is_only_for_the_papers_data(runs: list[Run]) -> None:
    table = report_tables.results_table(runs)
    assert not any("paper" in text for text in (table.caption, *table.headings))
    mixed = report_tables.results_table([runs[0], as_cifar(runs[2])])
    assert mixed.rows[0][5] == report_tables.NONE
    assert mixed.rows[1][5] != report_tables.NONE


def test_times_are_beside_macs_with_date_and_device(runs: list[Run]) -> None:
    place = {"device": "a CPU", "threads": 1, "images": 32, "measured": "2026-01-02 03:04 UTC"}
    routed = InferenceTime(run_ms=2.0, static_ms=3.0, engine="branch", static_engine="static", **place)  # type: ignore[arg-type]
    static = dataclasses.replace(routed, run_ms=3.0, engine="static")
    timed = [dataclasses.replace(runs[0], time=routed), runs[1], dataclasses.replace(runs[2], time=static)]
    table = report_tables.results_table(timed)
    first = table.headings.index("ms per image, measured")
    assert [row[first : first + 3] for row in table.rows] == [
        ["2", "3", "1.50 ×"],
        [report_tables.NONE] * 3,
        ["3", "3", report_tables.NONE],
    ]
    assert all(len(row) == len(table.headings) for row in table.rows)
    text = report_tables.times_text(timed)
    assert "measured on a CPU, 1 thread, on 2026-01-02 (engines: branch against static)." in text
    elsewhere = [*timed, dataclasses.replace(runs[1], time=dataclasses.replace(routed, device="a GPU", threads=None))]
    assert "near <1>, static on a CPU, 1 thread, on 2026-01-02; far on a GPU, on" in report_tables.times_text(elsewhere)
    assert report_tables.times_text(runs) == ""


def test_paths_table_includes_the_papers_rows_for_cifar10(runs: list[Run]) -> None:
    plain = report_tables.paths_table(runs)
    assert [row[0] for row in plain.rows] == ["near <1>", "far", "static"]
    assert plain.rows[2][2] == report_tables.NONE
    quoted = report_tables.paths_table([as_cifar(runs[0])])
    assert [row[2] for row in quoted.rows[1:]] == ["53.4 %", "22.7 %"]
    assert [row[9] for row in quoted.rows[1:]] == ["0.581", "0.024"]
    assert all(len(row) == len(table.headings) for table in (plain, quoted) for row in table.rows)


def test_paths_table_shows_swapped_paths_if_analysed(runs: list[Run]) -> None:
    def cells(run: Run) -> list[str]:
        table = report_tables.paths_table([run])
        place = table.headings.index("accuracy with another image's path, %")
        return table.rows[0][place : place + 2]

    run = runs[0]
    found = {**run.analysis.figures, "swapped": {"accuracy_any": 72.8, "accuracy_class": 74.4}}
    assert cells(dataclasses.replace(run, analysis=dataclasses.replace(run.analysis, figures=found))) == [
        "72.80",
        "74.40",
    ]
    del found["swapped"]
    before = dataclasses.replace(run.analysis, figures=found)
    assert cells(dataclasses.replace(run, analysis=before)) == [report_tables.NONE] * 2


def test_published_tables_have_both_units() -> None:
    assert report_tables.published_tables(["digits"]) == []
    [cifar, imagenet] = report_tables.published_tables(["cifar10", "CIFAR-10", "imagenet"])
    skipnet = next(row for row in cifar.rows if row[0] == "SkipNet")
    assert skipnet[2:5] == ["92.38", "45", "0.09"]
    assert "two per" in cifar.headings[4]
    assert "one per" in imagenet.headings[4]


def test_settings_and_environments_have_a_column_per_run(runs: list[Run]) -> None:
    config = report_tables.settings_table(runs)
    assert config.headings == ["setting", "near <1>", "far", "static"]
    rows = {row[0]: row[1:] for row in config.rows}
    assert rows["losses.m_d"][:2] == ["0.25", "1"]
    assert rows["network.routed"] == ["True", "True", "False"]
    assert rows["source"] == ["few.npz"] * 3
    assert {row[0] for row in report_tables.environments_table(runs).rows} >= {"torch", "python", "device"}
