"""Plans without training: workers that copy a run folder made beforehand, and start in no time."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from codinet import files
from codinet.config import NetworkConfig, RunConfig, ScheduleConfig
from codinet.runs import DataBrief, RunFolder
from codinet.sweep import Grid, Planned, from_static, plan
from codinet.sweep.fleet import Command


@pytest.fixture
def planned() -> list[Planned]:
    """Four runs: two budgets, two seeds."""
    base = RunConfig("digits", network=NetworkConfig(arch="resnet20"), schedule=ScheduleConfig(epochs=2, finetune=1))
    return plan(base, Grid(budget=(0.5, 0.7), seed=(0, 1)))


@pytest.fixture
def chained(planned: list[Planned]) -> list[Planned]:
    """The same four runs, after the two static ones of their seeds."""
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
    tmp_path: Path, planned: list[Planned], figures: Callable[..., dict[str, Any]]
) -> Callable[..., tuple[Path, Command]]:
    """A folder to sweep in, and a command whose runs come to their end, or to what `instead` has them do."""

    def make(instead: dict[str, str] | None = None, runs: Sequence[Planned] = tuple(planned)) -> tuple[Path, Command]:
        out, made = tmp_path / "sweep", tmp_path / "made"
        brief = DataBrief("digits", ("0", "1"), (0.5,), (0.5,), (1, 8, 8), "")
        for run in runs:
            folder = RunFolder.create(made / run.name, _noted(run, out), brief, {"commit": "tests"})
            folder.keep_metrics([{"epoch": 1}, {"epoch": 2}, {"epoch": 1}])
            files.write_json(folder.path / "evaluation.json", figures(accuracy=90 + run.config.seed))

        def command(run: Planned, device: str | None) -> list[str]:
            copy = f"import shutil; shutil.copytree({str(made / run.name)!r}, {str(out / run.name)!r})"
            return [sys.executable, "-S", "-c", (instead or {}).get(run.name, copy), f"on {device}"]

        return out, command

    return make


def _noted(run: Planned, out: Path) -> RunConfig:
    """What a training writes down: the config, and the digests of the runs that it learnt from."""
    config, digest = run.trained(out), None if run.after is None else "1f"
    return replace(config, extra=replace(config.extra, start_sha256=digest, teacher_sha256=digest))
