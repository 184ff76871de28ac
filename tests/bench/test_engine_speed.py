"""Rounds and ratios on engines of known speed, and the choice of engines."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from codinet import environment
from codinet.adopt import make_dynamic
from codinet.bench import engine_speed, with_run_rate
from codinet.bench.engine_speed import Call, Contestant, Setting, compare, contestants, measure, pick_engines
from codinet.cost import CostTable
from codinet.create import create_model
from codinet.errors import UserError
from codinet.records import RoutedOutput

CPU = torch.device("cpu")
TABLE = CostTable((100, 100), (0, 0), (0, 0), 0, (3, 4, 4), 1)
KEYS = {
    "engine", "batch", "threads", "device", "precision", "p50_ms", "p95_ms", "images_per_s",
    "mac_speedup", "speedup", "realised",
}  # fmt: skip


class Clock:
    """A clock that only engines advance."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(environment, "time", clock)
    return clock


def taking(seconds: float, clock: Clock, log: list[str], name: str) -> Call:
    def call(images_BCHW: torch.Tensor) -> RoutedOutput:
        log.append(name)
        clock.now += seconds
        path_BN = torch.tensor([[1.0, 0.0]]).repeat(len(images_BCHW), 1)
        return RoutedOutput(torch.zeros(len(images_BCHW), 2), torch.zeros(len(images_BCHW), 2, 2), path_BN)

    return call


def test_rows_of_known_engines(clock: Clock) -> None:
    log: list[str] = []
    contest = [
        Contestant("slow", "torch", True, taking(0.05, clock, log, "slow")),
        Contestant("static", "torch", True, taking(0.03, clock, log, "static")),
        Contestant("routed", "torch", False, taking(0.015, clock, log, "routed")),
    ]
    steps: list[tuple[str, float]] = []
    rows = measure(
        contest,
        torch.zeros(4, 3, 4, 4),
        TABLE,
        Setting(2, 1, CPU, "float32"),
        rounds=3,
        progress=lambda name, done: steps.append((name, done)),
    )
    assert [name for name, _ in steps[2:4]] == ["routed: warm-up", "round 1 of 3"]
    assert [done for _, done in steps] == pytest.approx([0, 1 / 12, 2 / 12, 1 / 4, 2 / 4, 3 / 4])
    slow, static, routed = rows
    assert set(routed) >= KEYS
    assert static["speedup"] == static["mac_speedup"] == 1
    assert slow["speedup"] < 1
    assert routed["against"] == "static"  # the faster of the two
    assert routed["mac_speedup"] == 2
    assert routed["speedup"] == pytest.approx(2)
    assert routed["realised"] == pytest.approx(1)
    assert routed["p50_ms"] == pytest.approx(15)
    assert routed["p95_ms"] == pytest.approx(15)
    assert routed["images_per_s"] == pytest.approx(2 / 0.015)


def test_engines_take_turns(clock: Clock) -> None:
    log: list[str] = []
    contest = [Contestant(name, "torch", name == "a", taking(1, clock, log, name)) for name in "abc"]
    measure(contest, torch.zeros(2, 3, 4, 4), TABLE, Setting(1, 1, CPU, "float32"), rounds=3)
    assert "".join(log)[-18:] == "aabbccbbccaaccaabb"


def test_default_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    routed, static = create_model("resnet20"), create_model("resnet20", routed=False)
    monkeypatch.setattr("codinet.bench.engine_speed.has_onnx", lambda *_args: True)
    assert pick_engines((), 1, routed, CPU) == ["masked", "branch", "onnx"]
    assert pick_engines((), 64, routed, CPU) == ["masked", "gather"]
    assert pick_engines(("gather",), 1, routed, CPU) == ["gather"]
    assert pick_engines((), 1, static, CPU) == []
    monkeypatch.setattr("codinet.bench.engine_speed.has_onnx", lambda *_args: False)
    assert pick_engines((), 1, routed, CPU) == ["masked", "branch"]
    with pytest.raises(UserError, match="onnx"):
        pick_engines(("onnx",), 1, routed, CPU)


@pytest.mark.parametrize("router", ["fc", "rnn"])
def test_the_static_graph_does_not_depend_on_routers(router: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`StaticGraphEngine` never evaluates routers, so the baseline exists for routers that `GraphEngine` rejects."""
    monkeypatch.setattr(engine_speed, "has_graph", lambda model, _device, *, routers=True: not routers)
    monkeypatch.setattr(engine_speed, "StaticGraphEngine", lambda model, **_options: model)
    entries = contestants(create_model("resnet20", router=router), [], (3, 32, 32), threads=1)
    assert "static-graph" in [entry.name for entry in entries]


def test_every_contestant_classifies(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Callable] = []

    def fake(function: Callable, **_flags: object) -> Callable:
        compiled.append(function)
        return function

    monkeypatch.setattr(torch, "compile", fake)
    model = create_model("resnet20")
    names = ["masked", "branch", "gather"]
    images = torch.randn(2, 3, 32, 32)
    contest = contestants(model, names, (3, 32, 32), threads=1, compiled=True)
    assert len(compiled) == 1
    logits = {entry.name: entry.call(images).logits_BK for entry in contest}
    assert {"static", "static-compiled", *names} <= set(logits)
    static = logits.pop("static")
    assert torch.equal(static, logits["static-compiled"])


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x)


@pytest.mark.parametrize(("batch", "engine"), [(1, "branch"), (4, "gather")])
def test_an_adopted_network_is_compared_with_its_static_form(batch: int, engine: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 1), *(Residual() for _ in range(4)), nn.Flatten(), nn.Linear(8 * 64, 5))
    images = torch.randn(8, 3, 8, 8)
    model = with_run_rate(make_dynamic(module, blocks=Residual, image_shape=(3, 8, 8)), images, 0.5)
    rows = {row["engine"]: row for row in compare(model, images, batch=batch, rounds=2)}
    assert set(rows) - {"static-onnx", "onnx"} == {"static", "masked", engine}  # onnxruntime is optional
    assert rows["static"]["speedup"] == 1
    # Half of four 3×3 convolutions of 8 channels are skipped; routers, stem and head are not.
    fixed, block, router = 64 * 8 * 3 + 8 * 64 * 5, 64 * 8 * 8 * 9, 8 * 8 + 8 * 2
    expected = (fixed + 4 * block) / (fixed + 2 * block + 4 * router)
    assert rows[engine]["mac_speedup"] == pytest.approx(expected)


@pytest.mark.parametrize("batch", [0, 3])
def test_a_batch_larger_than_the_images_is_rejected(batch: int) -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 1), Residual(), nn.Flatten(), nn.Linear(8 * 64, 5))
    model = make_dynamic(module, blocks=Residual, image_shape=(3, 8, 8))
    with pytest.raises(UserError, match=f"batch must be from 1 to the number of images, 2, got {batch}"):
        compare(model, torch.randn(2, 3, 8, 8), batch=batch)


@pytest.mark.parametrize(("calls", "slowest_of_95"), [(1, 1), (16, 16), (20, 19), (40, 38)])
def test_the_95th_percentile_is_the_nearest_rank(calls: int, slowest_of_95: int) -> None:
    assert engine_speed._percentile(range(calls, 0, -1), 0.95) == slowest_of_95
