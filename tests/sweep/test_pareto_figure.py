from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from codinet.presets import paper
from codinet.sweep import Grid, Group, Result, plan, summarise
from codinet.sweep.pareto_figure import write_figure

pytest.importorskip("matplotlib")


@pytest.fixture
def groups(figures: Callable[..., dict[str, Any]]) -> Callable[[Grid], list[Group]]:
    def make(grid: Grid) -> list[Group]:
        planned = plan(paper("digits"), grid)
        return summarise(
            [
                Result(
                    run.name, run.group, run.config, figures(accuracy=80.0 + place, cost_share=0.4 + 0.01 * place), {}
                )
                for place, run in enumerate(planned)
            ]
        )

    return make


def test_one_network_has_one_panel_with_two_cost_axes(groups: Callable[[Grid], list[Group]], tmp_path: Path) -> None:
    grid = Grid(method=("vanilla", "codinet"), budget=(0.4, 0.6), m_d=(0.5, 1), alpha=(0.2, 1e-7), seed=(0, 1))
    write_figure(tmp_path, groups(grid), "some & more")
    text = (tmp_path / "pareto.svg").read_text()
    for words in (
        "cost, share of the static network's",
        "cost, G in the paper's unit (two per multiply-add)",
        "accuracy, % of the test images",
        ">vanilla<",
        "alpha1e-07-md0.5",
        "Pareto front",
        "some &amp; more",
    ):
        assert words in text
    assert (tmp_path / "pareto.png").read_bytes().startswith(b"\x89PNG")


def test_the_legend_names_routers_that_differ(groups: Callable[[Grid], list[Group]], tmp_path: Path) -> None:
    write_figure(tmp_path, groups(Grid(method=("static", "codinet"), router=("fc", "rnn"))), "")
    text = (tmp_path / "pareto.svg").read_text()
    assert all(f">{words}<" in text for words in ("static", "codinet, fc", "codinet, rnn"))


@pytest.mark.parametrize(
    ("networks", "label"),
    [
        (("resnet20", "resnet32"), "cost, G in the paper's unit (two per multiply-add)"),
        (("resnet50", "resnet101"), "cost, G in the paper's unit (one per multiply-add)"),
        (("resnet20", "resnet50"), "cost, G MACs (one per multiply-add)"),
        (("timm:resnet18", "resnet50"), "cost, G MACs (one per multiply-add)"),
    ],
)
def test_several_networks_have_a_second_panel(
    groups: Callable[[Grid], list[Group]], tmp_path: Path, networks: tuple[str, ...], label: str
) -> None:
    many = tuple(0.1 + 0.05 * place for place in range(9)) if networks[0] == "resnet20" else (0.5,)
    write_figure(tmp_path, groups(Grid(arch=networks, budget=many)), "")
    assert label in (tmp_path / "pareto.svg").read_text()
