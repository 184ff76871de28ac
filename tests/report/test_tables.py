import dataclasses

import pytest

from codinet.report import tables
from codinet.report.inputs import Run, row_names, unique_slugs


def as_cifar(run: Run) -> Run:
    data = dataclasses.replace(run.folder.data, name="cifar10")
    config = dataclasses.replace(
        run.folder.config, network=dataclasses.replace(run.folder.config.network, arch="resnet110")
    )
    return dataclasses.replace(run, folder=dataclasses.replace(run.folder, data=data, config=config))


def with_losses(run: Run, **losses: float) -> Run:
    config = dataclasses.replace(run.folder.config, losses=dataclasses.replace(run.folder.config.losses, **losses))  # type: ignore[arg-type]
    return dataclasses.replace(run, folder=dataclasses.replace(run.folder, config=config))


def test_runs_stand_with_the_papers_rows_in_both_units(runs: list[Run]) -> None:
    table = tables.against_paper([as_cifar(run) for run in runs])
    assert all(len(row) == len(table.headings) for row in table.rows)
    names = [row[0] for row in table.rows]
    assert names == [
        "near <1>",
        "the paper",
        "the paper",
        "far",
        "the paper",
        "the paper",
        "static",
        "the paper",
        "the paper",
    ]
    assert table.rows[1][2:5] == ["94.47", "145", "0.29"]
    assert table.rows[2][7] == "276"
    own = runs[0].evaluation
    assert table.rows[0][2:5] == [f"{own['accuracy']:.2f}", f"{own['macs'] / 1e6:.2f}", f"{own['paper_gmaccs']:.4g}"]


def test_methods_are_named_by_their_losses(runs: list[Run]) -> None:
    assert [run.method for run in runs] == ["CoDiNet", "CoDiNet", "static"]
    assert with_losses(runs[0], beta=0.0).method == "vanilla + L_con"
    assert with_losses(runs[0], alpha=0.0).method == "vanilla + L_div"
    assert with_losses(runs[0], alpha=0.0, beta=0.0).method == "vanilla routing"


def test_path_figures_quote_the_paper_where_it_has_any(runs: list[Run]) -> None:
    plain = tables.path_figures(runs)
    assert [row[0] for row in plain.rows] == ["near <1>", "far", "static"]
    assert plain.rows[2][2] == tables.NONE
    quoted = tables.path_figures([as_cifar(runs[0])])
    assert [row[2] for row in quoted.rows[1:]] == ["53.4 %", "22.7 %"]
    assert [row[9] for row in quoted.rows[1:]] == ["0.581", "0.024"]
    assert all(len(row) == len(table.headings) for table in (plain, quoted) for row in table.rows)


def test_swapped_paths_are_shown_where_the_analysis_has_them(runs: list[Run]) -> None:
    def cells(run: Run) -> list[str]:
        table = tables.path_figures([run])
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
    assert cells(dataclasses.replace(run, analysis=before)) == [tables.NONE] * 2


def test_published_rows_come_in_both_units() -> None:
    assert tables.published(["digits"]) == []
    [cifar, imagenet] = tables.published(["cifar10", "CIFAR-10", "imagenet"])
    skipnet = next(row for row in cifar.rows if row[0] == "SkipNet")
    assert skipnet[2:5] == ["92.38", "45", "0.09"]
    assert "two per" in cifar.headings[4]
    assert "one per" in imagenet.headings[4]


def test_config_and_environment_have_a_column_a_run_and_no_folder(runs: list[Run]) -> None:
    config = tables.configs(runs)
    assert config.headings == ["setting", "near <1>", "far", "static"]
    rows = {row[0]: row[1:] for row in config.rows}
    assert rows["losses.m_d"][:2] == ["0.25", "1"]
    assert rows["network.routed"] == ["True", "True", "False"]
    assert rows["source"] == ["few.npz"] * 3
    assert {row[0] for row in tables.environments(runs).rows} >= {"torch", "python", "device"}


def test_rows_of_a_grid_are_named_by_m_d_where_that_differs(runs: list[Run]) -> None:
    assert row_names(runs[:2]) == ["m_d = 0.25", "m_d = 1"]
    assert row_names(runs[:1]) == ["near <1>"]
    assert row_names([runs[0], with_losses(runs[1], beta=0.0)]) == ["near <1>", "far"]


@pytest.mark.parametrize(
    ("names", "slugs"),
    [(["a/B c", "a b-c", "ü"], ["a-b-c", "a-b-c-2", "run"]), (["x", "x-2", "X"], ["x", "x-2", "x-3"])],
)
def test_slugs_are_unique(names: list[str], slugs: list[str]) -> None:
    assert unique_slugs(names) == slugs
