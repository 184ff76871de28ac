"""Every table and figure of the paper has a valid plan that matches the paper's rows."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from codinet.config import NetworkConfig, from_dict, to_dict
from codinet.cost import CostTable, block_costs
from codinet.create import create_model
from codinet.errors import UserError
from codinet.resolving import resolve
from codinet.sweep import Grid, PlannedRun, from_static
from codinet.sweep.papers import PAPERS, plan_paper, share_of_static, static_table
from codinet.sweep.plan import Overrides, method_of

RUNS = {
    "paper-table-tradeoff": 6,
    "paper-table-tradeoff-budgets": 6,
    "paper-table-ablation": 5,
    "paper-table-svhn": 3,
    "paper-table-cifar10": 9,
    "paper-table-cifar100": 9,
    "paper-table-comparison-cifar10": 4,
    "paper-table-comparison-imagenet": 4,
    "paper-table-margin": 4,
    "paper-table-pcc": 3,
    "paper-figure-constraints": 3,
    "paper-figure-margin": 3,
    "paper-figure-comparison-cifar10": 8,
    "paper-figure-comparison-imagenet": 4,
    "paper-figure-kl": 3,
    "paper-figure-augmentations": 1,
    "paper-figure-paths": 2,
    "paper-figure-correlation": 3,
    "paper-figure-relaxation-cifar10": 10,
    "paper-figure-relaxation-cifar100": 10,
    "paper-figure-routers-cifar10": 15,
    "paper-figure-routers-cifar100": 15,
}


def runs_of(name: str, **more: object) -> list[PlannedRun]:
    return plan_paper(name, data_path="pictures" if PAPERS[name].source is None else None, **more)  # type: ignore[arg-type]


@cache
def built(network: NetworkConfig) -> CostTable:
    with torch.device("meta"):
        model = create_model(network.arch, routed=network.routed, router=network.router)
    return block_costs(model, (3, 32, 32))


@pytest.mark.parametrize("name", PAPERS)
def test_every_run_is_valid_has_a_unique_name_and_a_reachable_budget(name: str) -> None:
    runs = runs_of(name)
    assert len(runs) == len({run.name for run in runs}) == RUNS[name]
    assert runs == runs_of(name)
    for run in runs:
        assert resolve(run.config) == run.config
        assert from_dict(to_dict(run.config)) == run.config
        assert (run.config.losses.budget or 0) <= 1
        if "imagenet" not in name:
            table = built(NetworkConfig(run.config.network.arch, run.config.network.routed, run.config.network.router))
            always = table.fixed + sum(table.skip_N) + sum(table.router_N)
            assert (run.config.losses.budget or 1) > always / table.static_macs
        elif run.config.network.routed:
            assert run.config.losses.budget in (0.80, 0.66)


@pytest.mark.parametrize("name", PAPERS)
def test_every_plan_works_with_from_static(name: str) -> None:
    runs = from_static(runs_of(name, grid=Grid(seed=(0, 1))))
    named = {run.name: run for run in runs}
    assert len(named) == len(runs)
    for run in runs:
        if run.config.network.routed:
            assert run.depends_on is not None
            static = named[run.depends_on].config
            assert method_of(static) == "static"
            assert (static.network.arch, static.seed) == (run.config.network.arch, run.config.seed)
            assert static.schedule == replace(run.config.schedule, finetune=0)
        else:
            assert run.depends_on is None


def test_share_of_static() -> None:
    assert share_of_static(0.29, "resnet110") == 0.57 == round(0.29 / 0.51, 2)
    assert share_of_static(0.51, "resnet110") == 1.01  # the paper rounds 0.5058 up
    assert share_of_static(0.09, "resnet32") == 0.65
    assert share_of_static(3.10, "resnet50", stride_on="1x1") == 0.80  # the ImageNet unit: one per multiply-add
    assert static_table("resnet50", "1x1").paper_unit == 1


def test_the_main_table() -> None:
    runs = plan_paper("paper-table-cifar10")
    rows = [(run.config.network.arch, method_of(run.config), run.config.losses.budget) for run in runs]
    assert rows[-3:] == [
        ("resnet110", "static", None),
        ("resnet110", "vanilla", 0.59),
        ("resnet110", "codinet", 0.57),
    ]
    assert [(run.paper.accuracy, run.paper.gmaccs) for run in runs[-2:] if run.paper] == [(93.66, 0.30), (94.47, 0.29)]
    recipe = runs[-1].config
    assert (recipe.schedule.epochs, recipe.schedule.finetune, recipe.losses.alpha, recipe.losses.m_d) == (
        250,
        20,
        0.2,
        0.5,
    )


def test_the_ablation_the_margins_and_the_trade_off() -> None:
    methods = [method_of(run.config) for run in plan_paper("paper-table-ablation")]
    assert methods == ["static", "vanilla", "con", "div", "codinet"]
    margins = plan_paper("paper-table-margin")
    assert [(run.config.losses.m_d, run.config.losses.budget) for run in margins] == [
        (0.25, 0.43),
        (0.5, 0.57),
        (0.75, 0.47),
        (1.0, 0.63),
    ]
    assert [run.config.losses.gamma for run in plan_paper("paper-table-tradeoff")] == [
        None,
        0.01,
        0.02,
        0.04,
        0.08,
        0.1,
    ]


def test_imagenet_requires_a_folder_and_uses_the_papers_network() -> None:
    with pytest.raises(UserError, match="--data-path"):
        plan_paper("paper-table-comparison-imagenet")
    config = runs_of("paper-table-comparison-imagenet")[1].config
    assert (config.source, config.data.image_size, config.network.stride_on) == ("pictures", 224, "1x1")
    assert (config.schedule.epochs, config.schedule.finetune) == (100, 0)  # static: one stage


def test_the_grid_selects_runs_and_overrides_shorten_them() -> None:
    grid = Grid(arch=("resnet32",), method=("codinet", "vanilla"), seed=(1, 2))
    runs = plan_paper("paper-table-cifar10", grid, Overrides(epochs=3, finetune=1, batch=8, views=3))
    assert [run.name for run in runs] == [
        f"resnet32-{method}-budget0.65-seed{seed}" for method in ("vanilla", "codinet") for seed in (1, 2)
    ]
    schedule = runs[0].config.schedule
    assert (schedule.epochs, schedule.finetune, schedule.batch, schedule.views) == (3, 1, 8, 3)
    quick = plan_paper("paper-table-ablation", recipe="quick")
    assert (quick[-1].config.schedule.schedule, quick[2].config.losses.beta) == ("cosine", 0)
    assert plan_paper("paper-table-ablation", gpu=True)[0].config.schedule.batch == 512


def test_a_single_network_and_the_data_can_be_replaced() -> None:
    runs = plan_paper("paper-table-margin", Grid(arch=("resnet20",)), data_path="digits")
    assert {(run.config.network.arch, run.config.source, run.paper) for run in runs} == {("resnet20", "digits", None)}
    assert [run.paper is None for run in plan_paper("paper-figure-paths", Grid(arch=("resnet20", "resnet110")))] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("name", "grid", "sentence"),
    [
        ("paper-table-cifar", Grid(), "perhaps you meant paper-table-cifar10"),
        ("paper-table-cifar10", Grid(arch=("resnet20",)), "its networks are resnet32, resnet74, resnet110"),
        ("paper-table-svhn", Grid(method=("div",)), "its methods are static, vanilla, codinet"),
        ("paper-table-margin", Grid(m_d=(0.5,)), "sets --m-d itself"),
    ],
)
def test_values_outside_a_plan_are_refused(name: str, grid: Grid, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        plan_paper(name, grid)
