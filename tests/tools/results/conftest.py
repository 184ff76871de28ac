"""Finished run folders made without training or analysis: a config, metrics and an environment."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from codinet import files
from codinet.analysis.run_analysis import RunAnalysis
from codinet.backbones import ARCHITECTURES
from codinet.config import NetworkConfig, RunConfig
from codinet.presets import paper
from codinet.resolving import resolve
from codinet.run_reader import DataInfo
from codinet.runs import RunFolder, RunWriter
from codinet.sweep.plan import METHODS
from tools.results.record import Record, make_record

MADE = {"codinet": "0.1.0", "commit": "abc", "python": "3.11", "torch": "2.13", "device": "H200"}


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Makes a run of ResNet-110 on CIFAR-10 with the paper's recipe, changed by the arguments."""

    def make(
        name: str,
        *,
        method: str = "codinet",
        budget: float | None = 0.57,
        seed: int = 0,
        config: Callable[[RunConfig], RunConfig] = lambda config: config,
        **figures: Any,
    ) -> Path:
        base = replace(paper("cifar10"), network=NetworkConfig(arch="resnet110"), seed=seed)
        if method != "static":
            base = replace(base, losses=replace(base.losses, budget=budget))
        made = resolve(METHODS[method](config(base)), gpu=True)
        brief = DataInfo("CIFAR-10", ("a",) * 10, (0.5,) * 3, (0.5,) * 3, (3, 32, 32), "d" * 64)
        folder = RunWriter.create(tmp_path / "runs" / name, made, brief, MADE, ARCHITECTURES[made.network.arch].counts)
        found = {"accuracy": 94.0, "loss": 0.2, "cost_share": budget or 1.0, "macs": 2.5e8, "paper_gmaccs": 0.29}
        blocks = ARCHITECTURES[made.network.arch].blocks
        found |= {
            "mean_blocks": min(30.0, blocks),
            "distinct_paths": 300,
            "path_entropy": 3.0,
            "always_on": 1,
            "always_off": 1,
        }
        files.write_json(folder.path / "evaluation.json", {**found, "n": 10_000, **figures})
        files.write_json(folder.path / "timing.json", {"seconds": 1800.0})
        (folder.path / "model.safetensors").write_text(f"the weights of seed {seed}")
        return folder.path

    return make


@pytest.fixture
def record(make_run: Callable[..., Path]) -> Callable[..., Record]:
    """Makes the record of such a run for the given tables."""
    number = iter(range(99))

    def make(*tables: str, **words: Any) -> Record:
        return make_record(RunFolder.open(make_run(str(next(number)), **words)), tables or ["results"])

    return make


@pytest.fixture
def analyse() -> Callable[..., Path]:
    """Writes an analysis of a run's current weights into its folder."""

    def put(run: Path, **changes: Any) -> Path:
        kinds = {"crop": {"pairs": 2, "mean": 0.5}, "rotation": {"pairs": 2, "mean": 0.25}}
        consistency = {"pairs": 4, "same_path": 0.375, "same_path_kinds": kinds, "blocks_changed": 0.5}
        correlation = {"pcc_relaxed": 0.25, "pcc_hard": 0.125, "features": "the routed network's own last layer"}
        correlation |= {key: value for key, value in changes.items() if key in correlation}
        consistency |= {key: value for key, value in changes.items() if key in consistency}
        made_from = {"network": files.sha256_of(run / "model.safetensors"), "data": "d" * 64, "seed": 0}
        figures = {"images": 4, "consistency": consistency, "correlation": correlation}
        if "swapped" in changes:  # old analyses have none
            figures["swapped"] = dict(zip(("accuracy_any", "accuracy_class"), changes["swapped"], strict=True))
        RunAnalysis(made_from, figures, {"kl": torch.zeros(4)}).save(run)
        return run

    return put
