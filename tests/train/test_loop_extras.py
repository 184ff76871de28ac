import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from codinet.config import ExtraConfig, RunConfig
from codinet.cost import block_costs
from codinet.data import Dataset
from codinet.data.batches import Resident
from codinet.evaluate import evaluate
from codinet.model import CoDiNet
from codinet.presets import as_static
from codinet.run_reader import DataInfo
from codinet.runs import RunFolder
from codinet.train import budget, checkpoint, loop

CPU = torch.device("cpu")
SameRun = Callable[[Path, Path], None]
Train = Callable[..., Any]


@pytest.fixture(scope="module")
def aided_run(small_run: RunConfig, finished_run: Path) -> RunConfig:
    extra = ExtraConfig(0.1, 0.9, start=str(finished_run), teacher=str(finished_run), distill=0.5)
    return replace(small_run, schedule=replace(small_run.schedule, finetune=2), extra=extra)


@pytest.fixture(scope="module")
def aided(train: Train, tmp_path_factory: pytest.TempPathFactory, aided_run: RunConfig, few: Dataset) -> Path:
    """2 + 2 epochs of four steps that nothing has stopped."""
    out = tmp_path_factory.mktemp("loop") / "aided"
    train(out, aided_run, few)
    return out


@pytest.mark.parametrize("steps", [1, 7, 12, 15])
def test_a_run_with_every_aid_goes_on_to_the_same_end(
    train: Train,
    tmp_path: Path,
    aided_run: RunConfig,
    few: Dataset,
    aided: Path,
    assert_same_run: SameRun,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
) -> None:
    if steps % 2:
        monkeypatch.setattr(loop, "SAVE_SECONDS", -1)
    train(tmp_path / "run", aided_run, few, stop_after=steps)
    listener = train(tmp_path / "run", aided_run, few, resume=True)
    assert listener.done == (steps - 1 if steps % 2 else (steps - 1) // 4 * 4)
    assert listener.warnings == []
    assert_same_run(tmp_path / "run", aided)


def test_a_run_that_has_begun_can_do_without_its_start(
    train: Train, tmp_path: Path, aided_run: RunConfig, few: Dataset, own_run: Path, assert_same_run: SameRun
) -> None:
    config = replace(aided_run, extra=ExtraConfig(start=str(own_run)))
    train(tmp_path / "whole", config, few)
    train(tmp_path / "killed", config, few, stop_after=1)
    shutil.rmtree(own_run)
    train(tmp_path / "killed", config, few, resume=True)
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


def kept_after(train: Train, out: Path, config: RunConfig, data: Dataset, steps: int) -> checkpoint.Checkpoint:
    """The checkpoint of a run that was stopped early in the epoch after so many steps."""
    train(out, config, data, stop_after=steps + 1)
    found = checkpoint.latest(out / "checkpoints", pytest.fail)
    assert found is not None
    return found


def test_the_averaged_network_is_what_is_watched(
    train: Train, tmp_path: Path, aided_run: RunConfig, few: Dataset, aided: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "TOLERANCE", 1.0)  # no nudge after it was watched
    found = kept_after(train, tmp_path / "run", aided_run, few, 4)
    row = RunFolder.open(aided).metrics()[0]
    assert row["distillation"] > 0
    losses = {}
    for prefix in ("model.", "average.model."):
        model = CoDiNet(DataInfo.of(few).model_config(aided_run.network))
        model.load_state_dict(found.part(prefix))
        data = Resident.of(few.test, few, CPU)
        losses[prefix] = evaluate(model, data.batches(250), block_costs(model, few.image_shape)).loss
    assert row["held_loss"] == losses["average.model."]
    assert row["held_loss"] != losses["model."]


def test_a_stage_ends_with_the_average_as_its_network(
    train: Train, tmp_path: Path, aided_run: RunConfig, few: Dataset
) -> None:
    found = kept_after(train, tmp_path / "run", aided_run, few, 8)
    assert found.position.stage == 1
    for name, tensor in found.part("model.").items():
        assert torch.equal(tensor, found.part("average.model.")[name]) == tensor.is_floating_point(), name


def test_routers_are_shifted_in_both_networks_alike(
    train: Train, tmp_path: Path, aided_run: RunConfig, few: Dataset
) -> None:
    before = kept_after(train, tmp_path / "one", aided_run, few, 8).part("model.")
    found = kept_after(train, tmp_path / "two", aided_run, few, 12)
    name = "routers.each.0.out.bias"
    live, mean = (found.part(prefix) for prefix in ("model.", "average.model."))
    assert live[name][0] == before[name][0]
    assert live[name][1] != before[name][1]  # the second stage trains no routers, so this is the calibration
    assert all(torch.equal(live[key], mean[key]) for key in live if "router" in key)
    assert not torch.equal(live["fc.weight"], mean["fc.weight"])


def test_a_static_network_takes_every_aid(train: Train, tmp_path: Path, aided_run: RunConfig, few: Dataset) -> None:
    config = as_static(aided_run)
    whole = train(tmp_path / "whole", config, few)
    assert {row["stage"] for row in whole.rows} == {"static"}
    assert all(row["distillation"] > 0 for row in whole.rows)
    # Begun with the weights of a routed network, whose routers nobody asks.
    first = kept_after(train, tmp_path / "stopped", config, few, 4)
    assert first.part("average.model.").keys() == first.part("model.").keys()
    assert not any("router" in name for name in first.tensors)


def test_other_routers_than_the_starts_begin_fresh_and_that_is_told(
    train: Train, tmp_path: Path, aided_run: RunConfig, few: Dataset, finished_run: Path
) -> None:
    config = replace(aided_run, network=replace(aided_run.network, router="rnn"))
    listener = train(tmp_path / "run", config, few, stop_after=1)
    assert listener.warnings == [f"The routers of {finished_run} do not fit; initialising new ones."]
    assert train(tmp_path / "run", config, few, resume=True, stop_after=1).warnings == []
