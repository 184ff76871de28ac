from dataclasses import replace
from pathlib import Path

import pytest

from codinet.config import ExtraConfig, RunConfig
from codinet.errors import UserError
from codinet.presets import best, demo, paper, quick
from codinet.sweep import Grid, from_static, plan
from codinet.sweep.plan import METHODS, Overrides, method_of, plan_rows, with_teacher_views


def names(base: RunConfig, grid: Grid) -> list[str]:
    return [run.name for run in plan(base, grid)]


def test_runs_follow_the_order_of_the_axes() -> None:
    grid = Grid(budget=(0.3, 0.5), m_d=(0.25, 0.5), seed=(0, 1))
    assert names(paper("digits"), grid) == [
        f"resnet32-codinet-budget{budget}-md{m_d}-seed{seed}"
        for budget in (0.3, 0.5)
        for m_d in (0.25, 0.5)
        for seed in (0, 1)
    ]
    assert names(paper("digits"), grid) == names(paper("digits"), grid)


def test_every_combination_is_a_run_with_a_unique_name() -> None:
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


def test_an_empty_grid_plans_the_recipe_itself() -> None:
    (run,) = plan(demo("digits"))
    assert run.name == "resnet20-codinet-budget0.6-seed0"
    assert run.config.schedule.batch == 64
    assert plan(demo("digits"), gpu=True)[0].config.schedule.batch == 512


def test_equal_trainings_become_one_run() -> None:
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


def test_a_static_run_has_no_routing_settings() -> None:
    (run,) = plan(quick("digits"), Grid(method=("static",), router=("rnn",), budget=(0.5,)))
    assert (run.config.losses.budget, run.config.network.router, run.config.schedule.finetune) == (None, "fc", 0)


def test_gammas_are_added_to_budgets_not_combined_with_them() -> None:
    grid = Grid(budget=(0.3,), gamma=(0.01, 0.1))
    found = plan(demo("digits"), grid)
    assert [(run.config.losses.budget, run.config.losses.gamma) for run in found] == [
        (0.3, None),
        (None, 0.01),
        (None, 0.1),
    ]


@pytest.mark.parametrize("method", METHODS)
def test_method_of_inverts_methods(method: str) -> None:
    assert method_of(METHODS[method](paper("digits"))) == method


@pytest.mark.parametrize(
    ("grid", "word"),
    [
        (Grid(arch=("resnet33",)), "resnet32"),
        (Grid(budget=(0.5, 1.5)), "--budget"),
        (Grid(method=("vanila",)), "vanilla"),
    ],
)
def test_invalid_values_are_refused(grid: Grid, word: str) -> None:
    with pytest.raises(UserError, match=word):
        plan(paper("digits"), grid)


def test_an_empty_plan_is_refused() -> None:
    with pytest.raises(UserError, match="contains no runs"):
        plan_rows([])
    assert len(plan_rows([(replace(paper("digits"), seed=4), None)])) == 1


def test_from_static_adds_each_missing_static_run_once() -> None:
    planned = plan(best("digits"), Grid(arch=("resnet20", "resnet32"), budget=(0.5, 0.7), seed=(0, 1)))
    chained = from_static(planned)
    added = [f"{arch}-static-seed{seed}" for arch in ("resnet20", "resnet32") for seed in (0, 1)]
    assert [run.name for run in chained] == added + [run.name for run in planned]
    assert [run.config for run in chained[4:]] == [run.config for run in planned]
    assert [run.depends_on for run in chained] == [None] * 4 + [*added[:2] * 2, *added[2:] * 2]
    assert [run.config for run in chained[:4]] == [
        run.config for run in plan(best("digits"), Grid(arch=("resnet20", "resnet32"), method=("static",), seed=(0, 1)))
    ]
    assert from_static(chained) == chained


def test_from_static_uses_static_runs_of_the_plan() -> None:
    planned = plan(paper("digits"), Grid(method=("static", "vanilla", "codinet"), router=("fc", "rnn"), seed=(3,)))
    chained = from_static(planned)
    assert [run.name for run in chained] == [run.name for run in planned]
    assert [run.depends_on for run in chained] == [None, *["resnet32-static-seed3"] * 4]
    alone = plan(paper("digits"), Grid(method=("static",)))
    assert from_static(alone) == alone


def test_a_dependency_becomes_start_and_teacher() -> None:
    static, routed = from_static(plan(demo("digits")))
    assert static.training_config() == static.config
    extra = routed.training_config().extra
    assert (extra.start, extra.teacher, extra.distill) == (static.name, static.name, 0.5)


def test_from_static_refuses_runs_that_have_a_start() -> None:
    base = replace(demo("digits"), extra=ExtraConfig(start="elsewhere"))
    with pytest.raises(UserError, match="already has one"):
        from_static(plan(base))


def test_starts_and_teachers_are_axes_that_share_one_static_run() -> None:
    grid = Grid(method=("static", "vanilla"), start=("none", "static"), teacher=("none", "static"), seed=(4,))
    found = {run.name: run.training_config(Path("out")).extra for run in plan(best("digits"), grid)}
    static, source = "resnet32-static-seed4", "out/resnet32-static-seed4"
    routed = "resnet32-vanilla-budget0.6-from-{}-taught-by-{}-seed4"
    assert {name: (extra.start, extra.teacher, extra.distill) for name, extra in found.items()} == {
        static: (None, None, None),
        routed.format("none", "none"): (None, None, None),
        routed.format("none", "static"): (None, source, 0.5),
        routed.format("static", "none"): (source, None, None),
        routed.format("static", "static"): (source, source, 0.5),
    }


def test_a_run_can_teach_routed_and_static_runs() -> None:
    grid = Grid(method=("static", "codinet"), start=("static",), teacher=("runs/wide", "zoo:cifar10-resnet110-056"))
    found = {run.name: (run.depends_on, run.training_config().extra) for run in plan(best("cifar10"), grid)}
    taught = {name: extra.teacher for name, (_, extra) in found.items()}
    static, codinet = "resnet32-static", "resnet32-codinet-budget0.6"
    assert taught == {
        f"{static}-taught-by-none-seed0": None,  # which the routed runs start from
        f"{static}-taught-by-wide-seed0": "runs/wide",
        f"{static}-taught-by-zoo-cifar10-resnet110-056-seed0": "zoo:cifar10-resnet110-056",
        f"{codinet}-taught-by-wide-seed0": "runs/wide",
        f"{codinet}-taught-by-zoo-cifar10-resnet110-056-seed0": "zoo:cifar10-resnet110-056",
    }
    assert [(depends, extra.start) for depends, extra in found.values()] == [
        *[(None, None)] * 3,
        *[(f"{static}-taught-by-none-seed0",) * 2] * 2,
    ]


@pytest.mark.parametrize(("start", "teacher"), [("static", "r"), ("r", "static")])
def test_added_static_runs_have_names_of_their_own(start: str, teacher: str) -> None:
    found = plan(best("digits"), Grid(method=("static", "codinet"), start=(start,), teacher=(teacher,)))
    static = [run.config.extra for run in found if not run.config.network.routed]
    assert len({run.name for run in found}) == len(found) == 3
    kept = tuple(None if source == "static" else source for source in (start, teacher))
    assert {(extra.start, extra.teacher) for extra in static} == {(None, None), kept}


def test_teachers_with_the_same_name_are_refused() -> None:
    with pytest.raises(UserError, match="same name; rename"):
        plan(best("digits"), Grid(teacher=("a/wide", "b/wide")))


def test_overrides_replace_only_given_values() -> None:
    config = Overrides(epochs=3, image_size=16, holdout=5, watch="train", cutout=8).apply(best("digits"))
    assert (config.data.image_size, config.data.holdout, config.data.watch) == (16, 5, "train")
    assert config.extra == replace(best("digits").extra, cutout=8)
    assert (config.schedule.epochs, config.schedule.finetune) == (3, best("digits").schedule.finetune)
    assert Overrides().apply(config) == config
    assert Overrides(holdout=0, watch="test", image_size=16).apply(RunConfig("x")).data.holdout == 0


def test_teachers_of_a_sweep_are_asked_once() -> None:
    grid = Grid(method=("static", "codinet"), teacher=("none", "static", "a/wide"), budget=(0.5,))
    found = with_teacher_views(plan(best("digits"), grid), 8)
    for run in found:
        taught = run.training_config().extra.teacher is not None
        assert run.training_config().extra.teacher_views == (8 if taught else 0)
    assert {method_of(run.config) for run in found if run.config.extra.teacher_views} == {"static", "codinet"}
    routed = from_static(plan(best("digits"), Grid(budget=(0.5,))))
    assert [run.config.extra.teacher_views for run in with_teacher_views(routed, 8)] == [0, 8]
    with pytest.raises(UserError, match="from 2, the --views of a step, to 10000, or 0, got 1"):
        with_teacher_views(routed, 1)
    with pytest.raises(UserError, match="requires runs with a teacher; add --teacher or --from-static"):
        with_teacher_views(plan(best("digits")), 8)
