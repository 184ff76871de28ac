from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.repeated_metrics import repeated_metrics

from codinet.config import LossConfig, RunConfig
from codinet.data import Dataset
from codinet.data.npz import load_digits
from codinet.errors import UserError
from codinet.evaluate import Evaluation, evaluate
from codinet.presets import demo
from codinet.resolving import resolve
from codinet.runs import DATA_WAIT, RunFolder
from codinet.train import accelerate, budget, loop, splits
from codinet.train.accelerate import Execution
from codinet.train.step import Speed

CPU = torch.device("cpu")
SameRun = Callable[[Path, Path], None]
Train = Callable[..., Any]


def with_losses(config: RunConfig, **losses: Any) -> RunConfig:
    return replace(config, losses=LossConfig(**losses))


def test_a_row_for_each_epoch_is_told_and_written(
    train: Train, tmp_path: Path, small_run: RunConfig, few: Dataset
) -> None:
    listener = train(tmp_path / "run", small_run, few)
    assert listener.rows == RunFolder.open(tmp_path / "run").metrics()
    assert [(row["stage"], row["epoch"]) for row in listener.rows] == [("joint", 1), ("joint", 2), ("finetune", 1)]
    assert all(0 <= row[DATA_WAIT] < 1 for row in listener.rows)
    assert listener.steps == 12
    assert listener.done == 0
    assert listener.titles[0].startswith("Training resnet20 on few to 0.6 of its static cost: ")
    assert "12 steps" in listener.titles[0]


def test_the_same_run_twice_is_the_same_bit_for_bit(
    train: Train, tmp_path: Path, small_run: RunConfig, few: Dataset, whole: Path, assert_same_run: SameRun
) -> None:
    train(tmp_path / "again", small_run, few)
    assert_same_run(tmp_path / "again", whole)


def test_another_seed_is_another_run(
    train: Train, tmp_path: Path, small_run: RunConfig, few: Dataset, whole: Path
) -> None:
    train(tmp_path / "other", replace(small_run, seed=1), few)
    assert repeated_metrics(tmp_path / "other") != repeated_metrics(whole)


@pytest.mark.parametrize("budget", [0.5, 0.75])
def test_the_budget_is_met_on_held_out_images(tmp_path: Path, budget: float) -> None:
    digits = load_digits()
    data = replace(digits, train=digits.train.subset(torch.arange(0, len(digits.train), 4)))
    config = demo("digits")
    config = replace(
        config,
        losses=replace(config.losses, budget=budget),
        schedule=replace(config.schedule, epochs=5, finetune=2, batch=32),
    )
    _, evaluation = loop.train(tmp_path / "run", resolve(config), data, device=CPU)
    assert evaluation.cost_share == pytest.approx(budget, abs=0.02)
    assert not evaluation.collapsed


def test_a_given_gamma_weighs_the_cost_in_the_first_stage(
    train: Train, tmp_path: Path, small_run: RunConfig, few: Dataset
) -> None:
    listener = train(tmp_path / "run", with_losses(small_run, gamma=0.25), few)
    assert [row["gamma"] for row in listener.rows] == [0.25, 0.25, 0]
    assert "static cost:" not in listener.titles[0]


def test_a_static_network_has_one_stage_and_runs_every_block(
    train: Train, tmp_path: Path, small_run: RunConfig, few: Dataset
) -> None:
    config = with_losses(replace(small_run, network=replace(small_run.network, routed=False)))
    listener = train(tmp_path / "run", config, few)
    assert {row["stage"] for row in listener.rows} == {"static"}
    assert listener.rows[-1]["cost_share"] == 1
    assert listener.warnings == []  # every image takes the same path, as it should


def test_held_out_images_are_watched_and_not_trained_on(
    train: Train, tmp_path: Path, small_run: RunConfig, few: Dataset
) -> None:
    config = replace(small_run, data=replace(small_run.data, holdout=20))
    listener = train(tmp_path / "run", config, few)
    assert {(row["watched"], row["n"]) for row in listener.rows} == {("holdout", 20)}
    assert listener.steps == 3 * ((64 - 20) // 16)
    assert RunFolder.open(tmp_path / "run").load_evaluation()["n"] == 40


def test_the_test_set_can_be_left_alone_until_the_end(
    train: Train, tmp_path: Path, small_run: RunConfig, few: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def listen(model: Any, batches: Any, table: Any) -> Evaluation:
        found = evaluate(model, batches, table)
        seen.append(found.n)
        return found

    monkeypatch.setattr(splits, "evaluate", listen)
    listener = train(tmp_path / "run", replace(small_run, data=replace(small_run.data, watch="train")), few)
    assert {(row["watched"], row["n"]) for row in listener.rows} == {("train", 64)}
    assert seen.count(40) == 1
    assert seen[-1] == 40


@pytest.mark.parametrize("amp", [False, True])
def test_figures_that_stay_are_exact_and_others_as_precise_as_the_training(
    tmp_path: Path, small_run: RunConfig, few: Dataset, monkeypatch: pytest.MonkeyPatch, amp: bool
) -> None:
    halved: list[bool] = []

    def listen(model: Any, batches: Any, table: Any) -> Evaluation:
        halved.append(torch.is_autocast_enabled("cpu"))
        return evaluate(model, batches, table)

    monkeypatch.setattr(splits, "evaluate", listen)
    monkeypatch.setattr(budget, "TOLERANCE", 1.0)  # one look is enough to calibrate
    loop.train(tmp_path / "run", small_run, few, device=CPU, execution=Execution(amp=amp))
    # An epoch and what plain images cost, an epoch and a calibration, another epoch and calibration, and the test set.
    assert halved == [amp, amp, False, False, False, False, False]


@pytest.mark.parametrize("stop_after", [None, 6])
def test_a_step_that_compiles_trains_bit_for_bit_as_a_plain_one(
    train: Train,
    tmp_path: Path,
    small_run: RunConfig,
    few: Dataset,
    monkeypatch: pytest.MonkeyPatch,
    whole: Path,
    assert_same_run: SameRun,
    stop_after: int | None,
) -> None:
    """The step is taken once when it is built, and undone, also where a run goes on."""
    monkeypatch.setattr(accelerate, "compiled", Speed)
    for resume in (False,) if stop_after is None else (False, True):
        stop = None if resume else stop_after
        train(tmp_path / "run", small_run, few, execution=Execution(compile=True), stop_after=stop, resume=resume)
    assert_same_run(tmp_path / "run", whole)


def test_nothing_is_compiled_or_captured_on_a_cpu_unless_asked(
    train: Train, tmp_path: Path, small_run: RunConfig, few: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("compiled", "fused", "capture"):
        monkeypatch.setattr(accelerate, name, pytest.fail)
    monkeypatch.setattr(torch, "autocast", pytest.fail)
    train(tmp_path / "run", small_run, few, stop_after=2)


@pytest.mark.parametrize("at_once", [True, False])  # or at the first use, which compiles
def test_what_cannot_be_compiled_is_told_and_left_out(
    train: Train,
    tmp_path: Path,
    small_run: RunConfig,
    few: Dataset,
    monkeypatch: pytest.MonkeyPatch,
    whole: Path,
    assert_same_run: SameRun,
    at_once: bool,
) -> None:
    def fail(*_args: object, **_named: object) -> Any:
        raise RuntimeError("no compiler here\nand more")

    monkeypatch.setattr(accelerate, "compiled", fail if at_once else lambda: Speed(fail))
    listener = train(tmp_path / "run", small_run, few, execution=Execution(compile=True))
    assert listener.warnings == ["Compiling or capturing the step failed (no compiler here); continuing without."]
    assert_same_run(tmp_path / "run", whole)


def test_kernels_that_fail_are_told_and_left_out_alone(
    train: Train, tmp_path: Path, small_run: RunConfig, few: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ValueError("too large for this chip\nand more")

    pytest.importorskip("triton")
    compiled = []

    def compile() -> Speed:
        compiled.append("yes")
        return Speed()

    monkeypatch.setattr(accelerate, "available", lambda _device: True)  # a GPU's kernels are not for the CPU
    monkeypatch.setattr(accelerate, "fused", fail)
    monkeypatch.setattr(accelerate, "compiled", compile)
    listener = train(tmp_path / "run", small_run, few, execution=Execution(compile=True, amp=True, kernels=True))
    said = [warning for warning in listener.warnings if warning != loop.COLLAPSE]  # which so short a run may do
    assert said == ["The fused kernels failed (too large for this chip); continuing without."]
    assert compiled


def test_steps_that_do_not_fit_in_memory_are_told(
    train: Train,
    tmp_path: Path,
    small_run: RunConfig,
    few: Dataset,
    memory_of: Callable[[int], AbstractContextManager[None]],
) -> None:
    schedule = replace(small_run.schedule, views=10_000)
    sentence = r"cpu has too little memory for steps of 16 .* smaller --batch"
    with memory_of(2**27), pytest.raises(UserError, match=sentence):
        train(tmp_path / "run", replace(small_run, schedule=schedule), few)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schedule": {"batch": 65}}, "--batch must be at most 64, the number of training images, got 65"),
        ({"data": {"holdout": 64}}, "--holdout must be below 64, the number of training images, got 64"),
        (
            {"schedule": {"batch": 2, "accumulate": 2, "views": 1}, "losses": {"alpha": 0.0}},
            "must give a process 2 views or more at once, because BatchNorm compares them, got 1",
        ),
        (
            {"losses": {"budget": 0.001}},
            r"The budget must be at least 0\.0\d+, .* with every block skipped, got 0\.001",
        ),
    ],
)
def test_settings_that_cannot_work_leave_no_folder_in_the_way(
    train: Train, tmp_path: Path, small_run: RunConfig, few: Dataset, change: dict[str, dict[str, Any]], words: str
) -> None:
    parts = {part: replace(getattr(small_run, part), **values) for part, values in change.items()}
    with pytest.raises(UserError, match=words):
        train(tmp_path / "run", replace(small_run, **parts), few)
    assert not (tmp_path / "run").exists()
