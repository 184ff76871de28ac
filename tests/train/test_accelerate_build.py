"""Which speed-ups a step is built with, and what happens if one fails."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from codinet.config import ExtraConfig
from codinet.errors import UserError
from codinet.model import RoutedNetwork
from codinet.train import accelerate
from codinet.train.accelerate import BuiltStep, Execution, build_step
from codinet.train.distributed import World
from codinet.train.step import Speed, Step

CPU = torch.device("cpu")


@dataclass
class Builder:
    """Builds the small step, and records the speed-ups that were asked for and the warnings."""

    small: Step
    execution: Execution
    speeds: list[Speed] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def build(self) -> BuiltStep:
        built = build_step(self.small.task, self.small.stage, self.execution, self.warnings.append)
        self.speeds.append(built.step.speed)
        self.execution = built.execution
        return built


@pytest.fixture
def make(make_step: Callable[..., Step], two_blocks: Callable[[int], RoutedNetwork]) -> Callable[..., Builder]:
    def builder(*, compile: bool = True, kernels: bool = False, sync_bn: bool = False) -> Builder:
        return Builder(
            make_step(two_blocks(0)), Execution(compile=compile, amp=False, kernels=kernels, sync_bn=sync_bn)
        )

    return builder


def test_a_plain_step_is_its_own_function(make: Callable[..., Builder]) -> None:
    builder = make(compile=False, kernels=True)
    built = builder.build()
    assert built.step is built.run
    assert builder.speeds == [Speed()]
    assert builder.warnings == []


def test_what_fails_is_not_tried_again_in_the_next_stage(
    make: Callable[..., Builder], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Speed:
        raise ValueError("too large for this chip\nand more")

    fast = Speed(compile=lambda function: function)
    monkeypatch.setattr(accelerate, "fused", fail)
    monkeypatch.setattr(accelerate, "compiled", lambda: fast)
    builder = make(kernels=True)
    builder.build()
    builder.build()
    assert builder.speeds == [fast, fast]
    assert builder.warnings == ["The fused kernels failed (too large for this chip); continuing without."]


def test_without_kernels_and_compiler_a_step_is_plain(
    make: Callable[..., Builder], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Speed:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(accelerate, "fused", fail)
    monkeypatch.setattr(accelerate, "compiled", fail)
    builder = make(kernels=True)
    builder.build()
    assert builder.speeds == [Speed()]
    assert [warning.partition(" failed")[0] for warning in builder.warnings] == [
        "The fused kernels",
        "Compiling or capturing the step",
    ]


def test_synchronised_batch_norm_is_not_compiled(make: Callable[..., Builder]) -> None:
    builder = make(kernels=True, sync_bn=True)
    builder.build()
    assert builder.speeds == [Speed()]


def test_user_errors_are_raised(make: Callable[..., Builder], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Speed:
        raise UserError("The teacher is gone.")

    monkeypatch.setattr(accelerate, "compiled", fail)
    builder = make()
    with pytest.raises(UserError, match="The teacher is gone"):
        builder.build()
    assert builder.warnings == []


def test_defaults_on_a_cpu_are_off_and_kernels_need_amp() -> None:
    resolved = Execution().resolve(CPU, World())
    assert (resolved.compile, resolved.amp, resolved.kernels) == (False, False, False)
    asked = Execution(compile=True, kernels=True, sync_bn=True).resolve(CPU, World())
    assert (asked.compile, asked.amp, asked.kernels, asked.sync_bn) == (True, False, False, False)


def test_a_compiler_that_fails_at_the_first_use_is_left_out_and_nothing_changed(
    make: Callable[..., Builder], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object) -> None:
        torch.rand(1)
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(accelerate, "compiled", lambda: Speed(compile=lambda _function: fail))
    builder, random = make(), torch.get_rng_state()
    builder.build()
    assert builder.speeds == [Speed()]
    assert builder.warnings == ["Compiling or capturing the step failed (no compiler here); continuing without."]
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_building_a_compiled_step_changes_no_tensor(
    make_step: Callable[..., Step],
    two_blocks: Callable[[int], RoutedNetwork],
    monkeypatch: pytest.MonkeyPatch,
    ema: float,
) -> None:
    calls: list[object] = []

    def counted(function: Callable[..., object]) -> Callable[..., object]:
        def called(*args: object, **named: object) -> object:
            calls.append(function)
            return function(*args, **named)

        return called

    monkeypatch.setattr(accelerate, "compiled", lambda: Speed(compile=counted))
    small = make_step(two_blocks(0), extra=ExtraConfig(ema=ema))
    assert small.controller is not None
    before = {name: tensor.clone() for name, tensor in small.model.state_dict().items()}
    before |= {name: tensor.clone() for name, tensor in small.controller.state().items()}
    random = torch.get_rng_state()
    built = build_step(small.task, small.stage, Execution(compile=True, amp=False, kernels=False), pytest.fail)
    assert calls
    after = built.step.model.state_dict() | small.controller.state()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert not any(tensor.any() for tensor in built.step.optimizer_state().values())
    assert not built.step.sums.any()
    assert torch.equal(torch.get_rng_state(), random)
