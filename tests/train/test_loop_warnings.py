from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from codinet.config import LossConfig, RunConfig
from codinet.data import Dataset
from codinet.errors import UserError
from codinet.evaluate import Evaluation
from codinet.runs import RunFolder
from codinet.train import budget, checkpoint, loop

Train = Callable[..., Any]


def with_losses(config: RunConfig, **losses: Any) -> RunConfig:
    return replace(config, losses=LossConfig(**losses))


def checkpoints(out: Path) -> list[Path]:
    return sorted((out / "checkpoints").glob("*.safetensors"))


@pytest.mark.parametrize("lr", [1e9, 1e38])
def test_a_loss_that_is_not_finite_stops_the_run(
    train: Train, tmp_path: Path, small_run: RunConfig, few: Dataset, lr: float
) -> None:
    config = replace(small_run, schedule=replace(small_run.schedule, lr=lr, warmup=0.0))
    with pytest.raises(
        UserError, match=r"The \w+ loss was not finite at step [2-4] of epoch 1 of the joint stage; start again"
    ):
        train(tmp_path / "run", config, few)
    assert not checkpoints(tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").metrics() == []


def test_weights_spoilt_by_the_last_step_of_an_epoch_are_not_kept(
    train: Train, tmp_path: Path, small_run: RunConfig, few: Dataset
) -> None:
    # One step an epoch, so that no later loss in it can tell.
    schedule = replace(small_run.schedule, lr=3e38, weight_decay=1e3, warmup=0.0, batch=64)
    with pytest.raises(UserError, match=r"The weights were not finite in epoch 1 of the joint stage"):
        train(tmp_path / "run", replace(small_run, schedule=schedule), few)
    assert not checkpoints(tmp_path / "run")


def test_a_checkpoint_within_an_epoch_is_not_written_once_a_loss_was_bad(
    train: Train, tmp_path: Path, small_run: RunConfig, few: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SAVE_SECONDS", -1)
    config = replace(small_run, schedule=replace(small_run.schedule, lr=1e9, warmup=0.0))
    with pytest.raises(UserError, match="finite"):
        train(tmp_path / "run", config, few)
    found = checkpoint.latest(tmp_path / "run" / "checkpoints", pytest.fail)
    assert found is None or all(tensor.isfinite().all() for tensor in found.tensors.values())


def test_routing_that_does_not_depend_on_the_image_is_told(
    train: Train, tmp_path: Path, small_run: RunConfig, few: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Evaluation, "collapsed", property(lambda _: True))
    listener = train(tmp_path / "run", small_run, few)
    assert listener.warnings == [loop.COLLAPSE, loop.COLLAPSE]  # once a stage
    assert "the routing has collapsed: every image takes the same path" in loop.COLLAPSE
    assert "--beta" in loop.COLLAPSE


def test_a_network_that_misses_its_budget_on_test_images_is_told(
    train: Train, tmp_path: Path, small_run: RunConfig, few: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "TOLERANCE", 1.0)  # nothing is calibrated
    schedule = replace(small_run.schedule, lr=1e-6, finetune_lr=1e-6)  # routers stay as open as they start
    config = replace(small_run, schedule=schedule, losses=replace(small_run.losses, budget=0.5))
    listener = train(tmp_path / "run", config, few)
    share = RunFolder.open(tmp_path / "run").load_evaluation()["cost_share"]
    assert abs(share - 0.5) > 0.02
    assert f"Test images cost {share:.3f} of the static network, and the budget is 0.5" in listener.warnings[-1]
    met = replace(config, losses=replace(config.losses, budget=min(1.0, round(share, 2))))
    assert not any("Test images" in warning for warning in train(tmp_path / "met", met, few).warnings)


def test_a_fixed_path_that_misses_its_budget_is_told_why(
    train: Train, tmp_path: Path, small_run: RunConfig, few: Dataset
) -> None:
    network = replace(small_run.network, arch="resnet14", router="bias")
    config = with_losses(replace(small_run, network=network, method="fixed"), budget=0.4)
    (warning,) = train(tmp_path / "run", config, few).warnings
    assert warning.endswith(
        "and the budget is 0.4. All images run the same blocks, and no set of blocks costs closer to it. Use another "
        "budget."
    )


def test_a_network_that_nothing_teaches_to_skip_is_told_to_have_collapsed(
    train: Train, tmp_path: Path, small_run: RunConfig, few: Dataset
) -> None:
    config = replace(small_run, schedule=replace(small_run.schedule, lr=1e-6))  # routers stay as open as they start
    listener = train(tmp_path / "run", with_losses(config, gamma=0.0, alpha=0.0, beta=0.0), few)
    assert [row["distinct_paths"] for row in listener.rows] == [1, 1, 1]
    assert listener.warnings == [loop.COLLAPSE, loop.COLLAPSE]


def test_lost_rows_of_metrics_are_told_and_later_ones_kept_once(
    train: Train, tmp_path: Path, small_run: RunConfig, few: Dataset
) -> None:
    out = tmp_path / "run"
    train(out, small_run, few, stop_after=9)  # early in the second stage
    file = RunFolder.open(out).metrics_file
    first, _second = file.read_text().splitlines(keepends=True)
    file.write_text(first + "damaged")
    listener = train(out, small_run, few, resume=True)
    assert listener.warnings == [f"{file} was damaged; one epoch is missing from it, and the run continues."]
    assert [(row["stage"], row["epoch"]) for row in RunFolder.open(out).metrics()] == [("joint", 1), ("finetune", 1)]
