import math
from functools import partial

import pytest

from codinet.config import NetworkConfig, RunConfig, ScheduleConfig
from codinet.methods.method import run_all
from codinet.relaxation import gumbel, hard, straight_through
from codinet.train.stages import decay_scale, stages_of


def run(network: NetworkConfig | None = None, **schedule: object) -> RunConfig:
    return RunConfig("digits", network=network or NetworkConfig(), schedule=ScheduleConfig(**schedule))  # type: ignore[arg-type]


def test_a_routed_run_trains_everything_and_then_all_but_the_routers() -> None:
    joint, finetune = stages_of(run(epochs=250, finetune=20))
    assert (joint.name, joint.epochs, joint.train_routers, joint.path_losses) == ("joint", 250, True, True)
    assert (finetune.name, finetune.epochs) == ("finetune", 20)
    assert (finetune.train_routers, finetune.path_losses) == (False, False)
    assert finetune.decide is hard


@pytest.mark.parametrize(("name", "function"), [("gumbel", gumbel), ("straight-through", straight_through)])
def test_the_first_stage_decides_by_the_relaxation_asked_for(name: str, function: object) -> None:
    decide = stages_of(run(NetworkConfig(relaxation=name, tau=0.5)))[0].decide  # type: ignore[arg-type]
    assert isinstance(decide, partial)
    assert decide.func is function
    assert decide.keywords == {"tau": 0.5}


def test_a_static_run_has_one_stage() -> None:
    (stage,) = stages_of(run(NetworkConfig(routed=False)))
    assert (stage.name, stage.epochs, stage.train_routers, stage.path_losses) == ("static", 250, False, False)
    assert stage.decide is run_all


def test_the_second_stage_can_be_left_out() -> None:
    assert [stage.name for stage in stages_of(run(finetune=0))] == ["joint"]


@pytest.mark.parametrize(
    ("epoch", "rate"),
    [(0, 0), (0.5, 0.05), (1, 0.1), (149.99, 0.1), (150, 0.01), (199.99, 0.01), (200, 0.001), (249.9, 0.001)],
)
def test_the_papers_steps(epoch: float, rate: float) -> None:
    joint = stages_of(run(epochs=250, lr=0.1, warmup=1.0))[0]
    assert joint.lr_at(epoch) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("epoch", "rate"),
    [
        (0, 0),
        (1, 0.1 * 0.5 * 0.5 * (1 + math.cos(math.pi / 20))),  # halfway through the warm-up
        (5, 0.1 * 0.5 * (1 + math.sqrt(0.5))),
        (10, 0.05),
        (15, 0.1 * 0.5 * (1 - math.sqrt(0.5))),
        (20, 0),
    ],
)
def test_a_cosine_with_warm_up(epoch: float, rate: float) -> None:
    joint = stages_of(run(epochs=20, lr=0.1, warmup=2.0, schedule="cosine"))[0]
    assert joint.lr_at(epoch) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("milestones", "rates"),
    [((1 / 3, 2 / 3), (1.0, 0.1, 0.1, 0.01, 0.01)), ((), (1.0,) * 5), ((0.5,), (1.0, 1.0, 0.1, 0.1, 0.1))],
)
def test_milestones_are_the_users(milestones: tuple[float, ...], rates: tuple[float, ...]) -> None:
    joint = stages_of(run(epochs=90, lr=1.0, warmup=1.0, milestones=milestones))[0]
    assert [joint.lr_at(epoch) for epoch in (29.9, 30, 59.9, 60, 89)] == pytest.approx(rates)


def test_no_warm_up_starts_at_the_full_rate() -> None:
    assert stages_of(run(epochs=10, lr=0.1, warmup=0.0))[0].lr_at(0) == 0.1


def test_a_warm_up_takes_at_most_a_fifth_of_a_short_run() -> None:
    joint = stages_of(run(epochs=5, lr=0.1, warmup=50.0))[0]
    assert [joint.lr_at(epoch) for epoch in (0.5, 1, 2)] == pytest.approx([0.05, 0.1, 0.1])


def test_the_second_stage_is_a_cosine_of_its_own_rate_without_warm_up() -> None:
    finetune = stages_of(run(epochs=250, finetune=20, finetune_lr=0.01))[1]
    assert [finetune.lr_at(epoch) for epoch in (0, 10, 20)] == pytest.approx([0.01, 0.005, 0])


@pytest.mark.parametrize(("done", "grip"), [(0, 1), (0.5, 1), (0.75, 0.5), (0.9, 0.2), (1, 0)])
def test_margins_are_let_go_over_the_second_half(done: float, grip: float) -> None:
    assert decay_scale(done) == pytest.approx(grip)
