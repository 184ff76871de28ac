"""Rounds, ratios and memory of a bench, on engines whose speed is known."""

import importlib
from collections.abc import Callable

import pytest
import torch

from codinet.bench import memory
from codinet.bench.contest import Call, Contestant, contestants, pick_engines
from codinet.bench.measure import Setting, measure
from codinet.bench.memory import peak_mb
from codinet.cost import CostTable
from codinet.errors import UserError
from codinet.model import create_model
from codinet.records import RoutedOutput

CPU = torch.device("cpu")
TABLE = CostTable((100, 100), (0, 0), (0, 0), 0, (3, 4, 4), 1)
KEYS = {
    "engine", "batch", "threads", "device", "precision", "p50_ms", "p95_ms", "images_per_s",
    "mac_speedup", "speedup", "realised",
}  # fmt: skip


class Clock:
    """Time that passes only when an engine says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(importlib.import_module("codinet.bench.measure"), "time", clock)
    return clock


def taking(seconds: float, clock: Clock, log: list[str], name: str) -> Call:
    def call(images_BCHW: torch.Tensor) -> RoutedOutput:
        log.append(name)
        clock.now += seconds
        path_BN = torch.tensor([[1.0, 0.0]]).repeat(len(images_BCHW), 1)
        return RoutedOutput(torch.zeros(len(images_BCHW), 2), torch.zeros(len(images_BCHW), 2, 2), path_BN)

    return call


def test_figures_of_known_engines(clock: Clock) -> None:
    log: list[str] = []
    contest = [
        Contestant("slow", "torch", True, taking(0.05, clock, log, "slow")),
        Contestant("static", "torch", True, taking(0.03, clock, log, "static")),
        Contestant("routed", "torch", False, taking(0.015, clock, log, "routed")),
    ]
    rows = measure(contest, torch.zeros(4, 3, 4, 4), TABLE, Setting(2, 1, CPU, "float32"), rounds=3)
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


def test_memory_of_a_call() -> None:
    grown = peak_mb(lambda: torch.ones(64, 2**18).sum(), CPU)
    assert grown is not None
    assert 60 < grown < 200


def test_memory_where_nobody_counts(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(memory, "_RESET", tmp_path / "missing" / "file")
    called = []
    assert peak_mb(lambda: called.append(1), CPU) is None
    assert called


def test_which_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    routed, static = create_model("resnet20"), create_model("resnet20", routed=False)
    monkeypatch.setattr("codinet.bench.contest.has_onnx", lambda *_args: True)
    assert pick_engines((), 1, routed, CPU) == ["masked", "branch", "onnx"]
    assert pick_engines((), 64, routed, CPU) == ["masked", "gather"]
    assert pick_engines(("gather",), 1, routed, CPU) == ["gather"]
    assert pick_engines((), 1, static, CPU) == []
    monkeypatch.setattr("codinet.bench.contest.has_onnx", lambda *_args: False)
    assert pick_engines((), 1, routed, CPU) == ["masked", "branch"]
    with pytest.raises(UserError, match="onnx"):
        pick_engines(("onnx",), 1, routed, CPU)


def test_every_contestant_answers(monkeypatch: pytest.MonkeyPatch) -> None:
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
