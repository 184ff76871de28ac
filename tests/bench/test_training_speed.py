import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from codinet.bench import training_speed
from codinet.bench.profiling import conv_share, operation_times
from codinet.bench.training_speed import MODES, Build, TrainSetting, measure_training, pick_modes
from codinet.errors import UserError
from codinet.train.accelerate import StepFn
from codinet.train.step import SUMS, Speed, Step

CPU = torch.device("cpu")
SMALL = TrainSetting("resnet20", 2, 2, CPU, amp=False)


def test_default_modes() -> None:
    assert pick_modes((), CPU) == ["eager"]
    assert pick_modes((), torch.device("cuda")) == list(MODES)
    assert pick_modes(("compiled", "eager", "compiled"), CPU) == ["compiled", "eager"]
    with pytest.raises(UserError, match="graph needs a CUDA device"):
        pick_modes(("graph",), CPU)
    with pytest.raises(UserError, match="perhaps you meant eager"):
        pick_modes(("eagre",), CPU)


class Operators(TorchDispatchMode):
    """Records the operators that torch runs. Their number replaces a clock, because it does not depend on the load."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(function.name())
        return function(*args, **kwargs or {})

    def times(self, call: Callable[[], object], _device: torch.device) -> dict[str, float]:
        before = len(self.names)
        call()
        return {name: float(number) for name, number in Counter(self.names[before:]).most_common()}


def test_rows_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    with Operators() as seen:
        monkeypatch.setattr(time, "perf_counter", lambda: len(seen.names) / 1e3)
        monkeypatch.setattr(training_speed, "operation_times", seen.times)
        static, routed = measure_training(SMALL, ["eager"], rounds=2, profile=True)
    assert (static["routed"], routed["routed"]) == (False, True)
    for row in (static, routed):
        assert (row["arch"], row["mode"], row["device"], row["precision"]) == ("resnet20", "eager", "cpu", "float32")
        assert row["inputs_per_step"] == 4
        assert row["inputs_per_s"] == pytest.approx(4 / (row["ms_per_step"] / 1e3))
        assert row["against_eager"] == 1
        assert row["peak_mb"] > 2.2  # weights and momentum alone
    assert static["against_static"] == 1
    # Routers and losses are more to compute, and hardly any of it is convolutions.
    assert routed["against_static"] == pytest.approx(routed["ms_per_step"] / static["ms_per_step"])
    assert 1 < routed["against_static"] < 5
    assert 0 < routed["conv_share"] < static["conv_share"] < 1
    assert len(routed["longest"]) == 20
    assert {"name", "ms"} == set(routed["longest"][0])


def test_the_profiler_recognises_the_convolutions_of_a_step() -> None:
    share = conv_share(operation_times(training_speed._step(SMALL, Speed(), routed=True), CPU), CPU)
    assert share is not None
    assert 0 < share < 1


def test_every_loss_and_the_controller_are_on() -> None:
    step = training_speed._step(TrainSetting("resnet20", 3, 2, CPU, amp=False, router="rnn"), Speed(), routed=True)
    assert step.controller is not None
    before = step.controller.cost.clone()
    step()
    sums = dict(zip(SUMS, step.sums.tolist(), strict=True))
    assert step.path_losses
    assert all(sums[name] != 0 for name in ("classification", "diversity", "cost", "decay", "gamma"))
    assert step.losses.alpha > 0  # untrained views need not differ by more than the margin
    assert step.controller.cost != before
    assert len(step.index_L.unique()) == 3
    static = training_speed._step(SMALL, Speed(), routed=False)
    assert static.controller is None
    assert not static.path_losses


def test_the_published_size_and_number_of_classes() -> None:
    step = training_speed._step(TrainSetting("resnet50", 2, 2, CPU, amp=False), Speed(), routed=True)
    assert step.data.images_NCHW.shape == (4, 3, 224, 224)
    assert step.model.get_parameter("fc.weight").shape[0] == 1000
    assert step.task.augmentation.pad == 28


@pytest.fixture
def quick_modes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces the modes by ones that call a given function instead of the step."""

    def replace(**modes: Callable[[], Any]) -> None:
        def made(go: Callable[[], Any]) -> Callable[[Build], tuple[Step, StepFn]]:
            return lambda build: (build(Speed()), go)

        monkeypatch.setattr(training_speed, "MODES", {name: made(go) for name, go in modes.items()})

    return replace


def test_a_mode_is_a_name_and_a_function(quick_modes: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def taking(seconds: float) -> Callable[[], None]:
        def go() -> None:
            nonlocal now
            now += seconds

        return go

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    quick_modes(eager=taking(0.03), swift=taking(0.01))
    steps: list[tuple[str, float]] = []
    modes = pick_modes(("swift", "eager"), CPU)
    rows = measure_training(SMALL, modes, rounds=2, steps=3, progress=lambda *step: steps.append(step))
    names = ["swift, static: compiling", "swift, routed: compiling", "eager, static: warm-up", "eager, routed: warm-up"]
    assert [name for name, _ in steps] == [*names, "round 1 of 2", "round 2 of 2"]
    assert [done for _, done in steps] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 0.9])
    assert [(row["mode"], row["routed"]) for row in rows] == [
        *(("swift", False), ("swift", True), ("eager", False), ("eager", True))
    ]
    assert rows[0]["ms_per_step"] == pytest.approx(10)
    assert rows[0]["inputs_per_s"] == pytest.approx(400)
    assert [row["against_eager"] for row in rows] == pytest.approx([1 / 3, 1 / 3, 1, 1])
    (alone, _) = measure_training(SMALL, ["swift"], rounds=1)
    assert alone["against_eager"] is None


def test_networks_take_turns(quick_modes: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    quick_modes(a=lambda: log.append("a"), b=lambda: log.append("b"))
    monkeypatch.setattr(training_speed, "peak_mb", lambda call, _device: call())
    measure_training(SMALL, ["a", "b"], rounds=4)
    assert "".join(log)[-16:] == "aabb" + "abba" + "bbaa" + "baab"


def test_errors_of_a_mode(quick_modes: Callable[..., None]) -> None:
    def fail(error: Exception) -> Callable[[], None]:
        def go() -> None:
            raise error

        return go

    quick_modes(
        compiled=fail(RuntimeError("no compiler\nand much more")),
        large=fail(torch.OutOfMemoryError("out of memory")),
        eager=fail(RuntimeError("a bug")),
    )
    with pytest.raises(UserError, match=r"^The mode compiled fails on this machine \(no compiler\); leave it out"):
        measure_training(SMALL, ["compiled"], rounds=1)
    with pytest.raises(UserError, match="cpu has too little memory for steps of 2 images in 2 views; use a"):
        measure_training(SMALL, ["large"], rounds=1)
    with pytest.raises(RuntimeError, match="a bug"):
        measure_training(SMALL, ["eager"], rounds=1)
