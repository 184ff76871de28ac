from collections.abc import Callable

import pytest
import torch

from codinet.errors import UserError
from codinet.model import RoutedNetwork
from codinet.train import accelerate
from codinet.train.building import Builder, Means
from codinet.train.distributed import World
from codinet.train.stages import Stage
from codinet.train.step import Speed, Step

CPU = torch.device("cpu")
Made = tuple[Builder, list[Speed], list[str]]


@pytest.fixture
def make(make_step: Callable[..., Step], two_blocks: Callable[[int], RoutedNetwork]) -> Callable[..., Made]:
    """A builder of the small step, the speeds that it asked for, and what it told."""

    def builder(*, compile: bool = True, kernels: bool = False, sync_bn: bool = False) -> Made:
        asked: list[Speed] = []
        told: list[str] = []

        def step(_stage: Stage, speed: Speed) -> Step:
            asked.append(speed)
            return make_step(two_blocks(0))

        means = Means(compile=compile, amp=False, kernels=kernels, sync_bn=sync_bn, loader="auto")
        return Builder(step, means, CPU, World(), told.append), asked, told

    return builder


@pytest.fixture
def stage(make_step: Callable[..., Step], two_blocks: Callable[[int], RoutedNetwork]) -> Stage:
    return make_step(two_blocks(0)).stage


def test_a_plain_step_is_its_own_call(make: Callable[..., Made], stage: Stage) -> None:
    builder, asked, told = make(compile=False, kernels=True)
    step, go = builder.build(stage)
    assert step is go
    assert asked == [Speed()]
    assert told == []


def test_what_fails_is_not_tried_again_in_the_next_stage(
    make: Callable[..., Made], stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Speed:
        raise ValueError("too large for this chip\nand more")

    fast = Speed(compile=lambda function: function)
    monkeypatch.setattr(accelerate, "fused", fail)
    monkeypatch.setattr(accelerate, "compiled", lambda: fast)
    builder, asked, told = make(kernels=True)
    builder.build(stage)
    builder.build(stage)
    assert asked == [fast, fast]
    assert told == ["The fused kernels failed (too large for this chip); going on without."]


def test_without_kernels_and_compiler_a_step_is_plain(
    make: Callable[..., Made], stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Speed:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(accelerate, "fused", fail)
    monkeypatch.setattr(accelerate, "compiled", fail)
    builder, asked, told = make(kernels=True)
    builder.build(stage)
    assert asked == [Speed()]
    assert [sentence.partition(" failed")[0] for sentence in told] == [
        "The fused kernels",
        "Compiling or capturing the step",
    ]


def test_statistics_that_are_exchanged_are_not_compiled(make: Callable[..., Made], stage: Stage) -> None:
    builder, asked, _ = make(kernels=True, sync_bn=True)
    builder.build(stage)
    assert asked == [Speed()]


def test_what_the_user_can_fix_is_not_taken_for_a_compilers_trouble(
    make: Callable[..., Made], stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Speed:
        raise UserError("The teacher is gone.")

    monkeypatch.setattr(accelerate, "compiled", fail)
    builder, _, told = make()
    with pytest.raises(UserError, match="The teacher is gone"):
        builder.build(stage)
    assert told == []
