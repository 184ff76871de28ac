from dataclasses import replace

import pytest

from codinet.config import ExtraConfig, RunConfig
from codinet.errors import UserError
from codinet.presets import best, demo, paper, quick
from codinet.sweep import Grid, from_static, plan
from codinet.sweep.grid import settle
from codinet.sweep.methods import METHODS, method_of


def names(base: RunConfig, grid: Grid) -> list[str]:
    return [run.name for run in plan(base, grid)]


def test_every_combination_is_a_run_in_the_order_of_the_axes() -> None:
    grid = Grid(budget=(0.3, 0.5), m_d=(0.25, 0.5), seed=(0, 1))
    assert names(paper("digits"), grid) == [
        f"resnet32-codinet-budget{budget}-md{m_d}-seed{seed}"
        for budget in (0.3, 0.5)
        for m_d in (0.25, 0.5)
        for seed in (0, 1)
    ]
    assert names(paper("digits"), grid) == names(paper("digits"), grid)


def test_all_axes_together_give_as_many_runs_as_combinations_each_with_its_own_name() -> None:
    grid = Grid(
        arch=("resnet20", "resnet32"),
        method=("codinet",),
        router=("fc", "rnn"),
        relaxation=("gumbel", "straight-through"),
        budget=(0.4, 0.400001),
        gamma=(0.01,),
        alpha=(0.1, 0.2),
        beta=(0.1, 0.2),
        m_c=(0.1, 0.2),
        m_d=(0.5, 1.0),
        seed=(0, 1),
    )
    found = plan(quick("digits"), grid)
    assert len(found) == len({run.name for run in found}) == 2 * 2 * 2 * 3 * 2 * 2 * 2 * 2 * 2
    assert len({run.group for run in found}) == len(found) / 2
    assert {run.config.seed for run in found} == {0, 1}


def test_without_axes_the_recipe_itself_is_the_one_run() -> None:
    (run,) = plan(demo("digits"))
    assert run.name == "resnet20-codinet-budget0.6-seed0"
    assert run.config.schedule.batch == 64
    assert plan(demo("digits"), gpu=True)[0].config.schedule.batch == 512


def test_what_would_train_the_same_network_is_one_run() -> None:
    grid = Grid(method=("static", "vanilla", "codinet"), budget=(0.3, 0.5), m_d=(0.5, 1.0))
    assert names(paper("digits"), grid) == [
        "resnet32-static-seed0",
        "resnet32-vanilla-budget0.3-seed0",
        "resnet32-vanilla-budget0.5-seed0",
        *(f"resnet32-codinet-budget{budget}-md{m_d}-seed0" for budget in (0.3, 0.5) for m_d in ("0.5", "1")),
    ]
    assert names(paper("digits"), Grid(alpha=(0.0, 0.2), beta=(0.0, 0.2), seed=(0, 0))) == [
        f"resnet32-{method}-budget0.6-seed0" for method in ("vanilla", "div", "con", "codinet")
    ]


def test_a_static_run_uses_nothing_of_routing() -> None:
    (run,) = plan(quick("digits"), Grid(method=("static",), router=("rnn",), budget=(0.5,)))
    assert (run.config.losses.budget, run.config.network.router, run.config.schedule.finetune) == (None, "fc", 0)


def test_weights_stand_beside_budgets_not_across_them() -> None:
    grid = Grid(budget=(0.3,), gamma=(0.01, 0.1))
    found = plan(demo("digits"), grid)
    assert [(run.config.losses.budget, run.config.losses.gamma) for run in found] == [
        (0.3, None),
        (None, 0.01),
        (None, 0.1),
    ]


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_recognised_by_what_it_makes_of_a_config(method: str) -> None:
    assert method_of(METHODS[method](paper("digits"))) == method


@pytest.mark.parametrize(
    ("grid", "word"),
    [
        (Grid(arch=("resnet33",)), "resnet32"),
        (Grid(budget=(0.5, 1.5)), "share"),
        (Grid(method=("vanila",)), "vanilla"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is(grid: Grid, word: str) -> None:
    with pytest.raises(UserError, match=word):
        plan(paper("digits"), grid)


def test_a_plan_of_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="Nothing is left"):
        settle([])
    assert len(settle([(replace(paper("digits"), seed=4), None)])) == 1


def test_static_runs_that_routed_ones_start_from_are_added_once() -> None:
    planned = plan(best("digits"), Grid(arch=("resnet20", "resnet32"), budget=(0.5, 0.7), seed=(0, 1)))
    chained = from_static(planned)
    added = [f"{arch}-static-seed{seed}" for arch in ("resnet20", "resnet32") for seed in (0, 1)]
    assert [run.name for run in chained] == added + [run.name for run in planned]
    assert [run.config for run in chained[4:]] == [run.config for run in planned]
    assert [run.after for run in chained] == [None] * 4 + [*added[:2] * 2, *added[2:] * 2]
    assert [run.config for run in chained[:4]] == [
        run.config for run in plan(best("digits"), Grid(arch=("resnet20", "resnet32"), method=("static",), seed=(0, 1)))
    ]
    assert from_static(chained) == chained


def test_static_runs_that_are_there_are_used() -> None:
    planned = plan(paper("digits"), Grid(method=("static", "vanilla", "codinet"), router=("fc", "rnn"), seed=(3,)))
    chained = from_static(planned)
    assert [run.name for run in chained] == [run.name for run in planned]
    assert [run.after for run in chained] == [None, *["resnet32-static-seed3"] * 4]
    alone = plan(paper("digits"), Grid(method=("static",)))
    assert from_static(alone) == alone


def test_a_run_is_trained_with_the_one_it_needs_as_start_and_teacher() -> None:
    static, routed = from_static(plan(demo("digits")))
    assert static.trained() == static.config
    extra = routed.trained().extra
    assert (extra.start, extra.teacher, extra.distill) == (static.name, static.name, 0.5)


def test_runs_with_a_start_of_their_own_are_not_given_another() -> None:
    base = replace(demo("digits"), extra=ExtraConfig(start="elsewhere"))
    with pytest.raises(UserError, match="have a start or a teacher already"):
        from_static(plan(base))
