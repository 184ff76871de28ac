"""Sweeps without training: workers copy run folders made in advance."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from codinet import files
from codinet.backbones import ARCHITECTURES
from codinet.config import NetworkConfig, RunConfig, ScheduleConfig
from codinet.run_reader import DataInfo
from codinet.runs import RunWriter
from codinet.sweep import Grid, PlannedRun, from_static, plan, workers
from codinet.sweep.workers import Command


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "POLL_SECONDS", 0.005)
    monkeypatch.setattr(workers, "GRACE_SECONDS", 0.3)


@pytest.fixture
def planned() -> list[PlannedRun]:
    """Four runs: two budgets, two seeds."""
    base = RunConfig("digits", network=NetworkConfig(arch="resnet20"), schedule=ScheduleConfig(epochs=2, finetune=1))
    return plan(base, Grid(budget=(0.5, 0.7), seed=(0, 1)))


@pytest.fixture
def chained(planned: list[PlannedRun]) -> list[PlannedRun]:
    """The same four runs, after the static runs of their seeds."""
    return from_static(planned)


@pytest.fixture
def figures() -> Callable[..., dict[str, Any]]:
    def make(**other: float) -> dict[str, Any]:
        plain = {"accuracy": 90.0, "cost_share": 0.5, "macs": 2e7, "paper_gmaccs": 0.04, "mean_blocks": 4.5}
        plain |= {"loss": 0.3, "distinct_paths": 7, "path_entropy": 2.0, "always_on": 1, "always_off": 0, "n": 40}
        return {**plain, **other}

    return make


@pytest.fixture
def fakes(
    tmp_path: Path, planned: list[PlannedRun], figures: Callable[..., dict[str, Any]]
) -> Callable[..., tuple[Path, Command]]:
    """Make a sweep folder and a command whose runs finish, or execute the code that `instead` gives for a name."""

    def make(
        instead: dict[str, str] | None = None, runs: Sequence[PlannedRun] = tuple(planned)
    ) -> tuple[Path, Command]:
        out, made = tmp_path / "sweep", tmp_path / "made"
        brief = DataInfo("digits", ("0", "1"), (0.5,), (0.5,), (1, 8, 8), "")
        for run in runs:
            config, groups = _saved_config(run, out), ARCHITECTURES[run.config.network.arch].counts
            folder = RunWriter.create(made / run.name, config, brief, {"commit": "tests"}, groups)
            folder.keep_metrics([{"epoch": 1}, {"epoch": 2}, {"epoch": 1}])
            files.write_json(folder.path / "evaluation.json", figures(accuracy=90 + run.config.seed))

        def command(run: PlannedRun, device: str | None) -> list[str]:
            copy = f"import shutil; shutil.copytree({str(made / run.name)!r}, {str(out / run.name)!r})"
            return [sys.executable, "-S", "-c", (instead or {}).get(run.name, copy), f"on {device}"]

        return out, command

    return make


def _saved_config(run: PlannedRun, out: Path) -> RunConfig:
    """The config in the run folder, with the digests of the runs that it starts from and learns from."""
    config, digest = run.training_config(out), None if run.depends_on is None else "1f"
    return replace(config, extra=replace(config.extra, start_sha256=digest, teacher_sha256=digest))
