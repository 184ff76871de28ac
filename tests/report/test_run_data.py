import dataclasses

import pytest

from codinet.report.run_data import Run, row_names, unique_slugs


def with_losses(run: Run, **losses: float) -> Run:
    config = dataclasses.replace(run.folder.config, losses=dataclasses.replace(run.folder.config.losses, **losses))  # type: ignore[arg-type]
    return dataclasses.replace(run, folder=dataclasses.replace(run.folder, config=config))


def test_the_method_follows_from_the_losses(runs: list[Run]) -> None:
    assert [run.method for run in runs] == ["CoDiNet", "CoDiNet", "static"]
    assert with_losses(runs[0], beta=0.0).method == "vanilla + L_con"
    assert with_losses(runs[0], alpha=0.0).method == "vanilla + L_div"
    assert with_losses(runs[0], alpha=0.0, beta=0.0).method == "vanilla routing"


def test_other_methods_have_a_title(runs: list[Run]) -> None:
    config = dataclasses.replace(runs[0].folder.config, method="convaig")
    run = dataclasses.replace(runs[0], folder=dataclasses.replace(runs[0].folder, config=config))
    assert run.method == "Conv-AIG"


def test_row_names_are_m_d_if_nothing_else_differs(runs: list[Run]) -> None:
    assert row_names(runs[:2]) == ["m_d = 0.25", "m_d = 1"]
    assert row_names(runs[:1]) == ["near <1>"]
    assert row_names([runs[0], with_losses(runs[1], beta=0.0)]) == ["near <1>", "far"]
    assert row_names([runs[0], with_losses(runs[1], budget=0.3)]) == ["near <1>", "far"]


@pytest.mark.parametrize(
    ("names", "slugs"),
    [(["a/B c", "a b-c", "ü"], ["a-b-c", "a-b-c-2", "run"]), (["x", "x-2", "X"], ["x", "x-2", "x-3"])],
)
def test_slugs_are_unique(names: list[str], slugs: list[str]) -> None:
    assert unique_slugs(names) == slugs
