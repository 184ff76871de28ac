"""The loop of torchvision's network that the training benchmark compares with."""

import json
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from codinet import cli
from codinet.bench import training_speed
from codinet.bench.plain_loop import PlainLoop
from codinet.bench.training_speed import TrainSetting, measure_training
from codinet.create import create_model
from codinet.errors import UserError

CPU = torch.device("cpu")
TINY = TrainSetting("resnet50", 2, 2, CPU, amp=False, image_size=32)

pytestmark = [
    pytest.mark.usefixtures("library"),
    pytest.mark.parametrize("library", ["torchvision"], indirect=True),
]


def loop(**options: Any) -> PlainLoop:
    torch.manual_seed(0)
    chosen: dict[str, Any] = {"amp": False, "image_size": 32, "classes": 5, "compile": lambda model: model} | options
    return PlainLoop("resnet50", 3, CPU, **chosen)


@pytest.mark.parametrize("amp", [False, True])
def test_a_step_trains_the_network_of_torchvision(amp: bool) -> None:
    compiled: list[torch.nn.Module] = []
    seen: list[torch.Tensor] = []

    def compile(model: torch.nn.Module) -> Callable[..., torch.Tensor]:
        compiled.append(model)

        def forward(images_BCHW: torch.Tensor) -> torch.Tensor:
            seen.append(images_BCHW)
            return model(images_BCHW)

        return forward

    plain = loop(amp=amp, compile=compile)
    assert compiled == [plain.model]
    weights = create_model("resnet50", num_classes=5, routed=False).state_dict()
    assert {name: tensor.shape for name, tensor in plain.model.state_dict().items()} == {
        name: tensor.shape for name, tensor in weights.items()
    }
    before = plain.model.fc.weight.detach().clone()
    plain()
    plain()
    assert not torch.equal(plain.model.fc.weight, before)
    assert plain.model.bn1.num_batches_tracked == 2
    assert seen[0].shape == (3, 3, 32, 32)
    assert abs(seen[0].mean()) < 0.1
    assert abs(seen[0].std() - 1) < 0.1
    assert len(plain.state()) == len(weights) + len(list(plain.model.parameters()))


def test_the_search_for_fast_convolutions_is_on_in_its_steps_only() -> None:
    found: list[bool] = []

    def compile(model: torch.nn.Module) -> Callable[..., torch.Tensor]:
        def forward(images_BCHW: torch.Tensor) -> torch.Tensor:
            found.append(torch.backends.cudnn.benchmark)
            return model(images_BCHW)

        return forward

    plain = loop(compile=compile)
    assert not torch.backends.cudnn.benchmark
    plain()
    assert found == [True]
    assert not torch.backends.cudnn.benchmark


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that take a known time: 30 ms static, 60 ms routed, 45 ms in torchvision's loop."""
    now = 0.0

    def taking(seconds: float) -> Callable[[], None]:
        def go() -> None:
            nonlocal now
            now += seconds

        return go

    def own(_setting: TrainSetting, _mode: str, *, routed: bool) -> training_speed._Built:
        return training_speed._Built(taking(0.06 if routed else 0.03), lambda: [])

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    monkeypatch.setattr(training_speed, "_own", own)
    monkeypatch.setattr(training_speed, "_plain", lambda *_: training_speed._Built(taking(0.045), lambda: []))


@pytest.mark.usefixtures("timed")
def test_speeds_are_compared_by_inputs_per_second() -> None:
    said: list[str] = []
    rows = measure_training(TINY, ["compiled", "eager"], rounds=3, torchvision=True, found=said.append)
    assert [(row["network"], row["mode"], row["routed"]) for row in rows] == [
        *(("static", "compiled", False), ("routed", "compiled", True)),
        *(("static", "eager", False), ("routed", "eager", True)),
        ("torchvision", "compiled", False),
    ]
    assert [row["speed_against_torchvision"] for row in rows] == pytest.approx([1.5, 0.75, 1.5, 0.75, 1])
    plain = rows[-1]
    assert (plain["against_static"], plain["against_eager"]) == (None, None)
    assert plain["inputs_per_step"] == rows[0]["inputs_per_step"] == 4
    for row in rows:
        assert row["speed_against_torchvision"] == pytest.approx(row["inputs_per_s"] / plain["inputs_per_s"])
    assert said == [
        *("compiled, static: about 133 inputs/s", "compiled, routed: about 67 inputs/s"),
        *("eager, static: about 133 inputs/s", "eager, routed: about 67 inputs/s"),
        "compiled, torchvision: about 89 inputs/s",
    ]
    assert all(row["speed_against_torchvision"] is None for row in measure_training(TINY, ["eager"], rounds=1))


@pytest.mark.usefixtures("timed")
def test_long_rounds_are_announced() -> None:
    said: list[str] = []
    measure_training(TINY, ["eager"], rounds=2000, found=said.append)
    assert said[-1] == "2000 rounds take about 3 minutes; --rounds sets their number"


@pytest.mark.usefixtures("timed")
@pytest.mark.parametrize(
    ("error", "why"),
    [
        (RuntimeError("no compiler\nat all"), "it fails on this machine (no compiler)."),
        (torch.OutOfMemoryError("out of memory"), "cpu has too little memory for steps of 2 images in 2 views"),
    ],
)
def test_a_loop_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch, error: Exception, why: str) -> None:
    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(training_speed, "_plain", fail)
    said: list[str] = []
    rows = measure_training(TINY, ["eager"], rounds=1, torchvision=True, found=said.append)
    assert [row["network"] for row in rows] == ["static", "routed"]
    assert said[-1].startswith(f"torchvision's loop is left out: {why}")


def test_networks_that_torchvision_lacks() -> None:
    with pytest.raises(UserError, match=r"^--torchvision compares resnet50 and resnet101; remove it for resnet20\.$"):
        measure_training(TrainSetting("resnet20", 2, 2, CPU, amp=False), ["eager"], rounds=1, torchvision=True)


WORDS = ["bench", "resnet50", "--train", "--device", "cpu", "--batch", "2", "--image-size", "32", "--rounds", "1"]


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*WORDS, "--torchvision"]) == 0
    captured = capsys.readouterr()
    assert "resnet50 on cpu, 1 thread: steps of 2 images in 2 views, 32×32, eager" in captured.err
    assert "eager, torchvision: about " in captured.err
    assert "× torchvision's" in captured.out
    assert [line.split()[1] for line in captured.out.splitlines() if line.startswith("│")] == [
        *("static", "routed", "torchvision")
    ]


def test_without_torchvision(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ModuleType:
        raise UserError(f"{name} cannot be imported (none); install it with pip install timm torchvision.")

    monkeypatch.setattr("codinet.adopt.import_vision", missing)
    assert cli.main([*WORDS, "--torchvision", "--json"]) == 0
    captured = capsys.readouterr()
    assert "codinet: torchvision's loop is left out: torchvision cannot be imported (none); install it" in captured.err
    assert [row["network"] for row in json.loads(captured.out)["rows"]] == ["static", "routed"]
    assert cli.main(["bench", "resnet20", "--train", "--torchvision"]) == 2
    assert "--torchvision compares resnet50 and resnet101; remove it for resnet20." in capsys.readouterr().err
    assert cli.main(["bench", "resnet50", "--torchvision"]) == 2
    assert "--torchvision applies to training; add --train or remove it" in capsys.readouterr().err
