import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from codinet.config import ExtraConfig, LossConfig, RunConfig, resolve
from codinet.cost import block_costs
from codinet.data import Dataset
from codinet.data.digits import load_digits
from codinet.data.resident import Resident
from codinet.errors import UserError
from codinet.evaluate import Evaluation, evaluate
from codinet.presets import as_static, demo
from codinet.runs import DataBrief, RunFolder, build_model
from codinet.train import accelerate, checkpoint, judging, loop
from codinet.train.budget import BudgetController
from codinet.train.reporting import Reporter
from codinet.train.step import Speed

CPU = torch.device("cpu")
SameRun = Callable[[Path, Path], None]


class Stopped(Exception):  # noqa: N818
    """What a test raises to stop a run."""


class Listener(Reporter):
    """Keeps what is said, and stops the run after so many steps."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.titles: list[str] = []
        self.warnings: list[str] = []
        self.rows: list[dict[str, Any]] = []
        self.steps, self.done, self.stop_after = 0, 0, stop_after

    def begin(self, title: str, *, steps: int, done: int) -> None:
        self.titles.append(title)
        self.done = done

    def advance(self) -> None:
        self.steps += 1
        if self.steps == self.stop_after:
            raise Stopped

    def row(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def warn(self, sentence: str) -> None:
        self.warnings.append(sentence)


def train(
    out: Path, config: RunConfig, data: Dataset, *, resume: bool = False, stop_after: int | None = None
) -> Listener:
    """A run to its end, or until it was stopped."""
    listener = Listener(stop_after)
    try:
        loop.train(out, config, data, device=CPU, resume=resume, reporter=listener)
    except Stopped:
        assert stop_after is not None
    return listener


def with_losses(config: RunConfig, **losses: Any) -> RunConfig:
    return replace(config, losses=LossConfig(**losses))


def checkpoints(out: Path) -> list[Path]:
    return sorted((out / "checkpoints").glob("*.safetensors"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, small_run: RunConfig, few: Dataset) -> Path:
    """The run that nothing has stopped: 2 + 1 epochs of four steps."""
    out = tmp_path_factory.mktemp("loop") / "whole"
    train(out, small_run, few)
    return out


def test_a_row_for_each_epoch_is_told_and_written(tmp_path: Path, small_run: RunConfig, few: Dataset) -> None:
    listener = train(tmp_path / "run", small_run, few)
    assert listener.rows == RunFolder.open(tmp_path / "run").metrics()
    assert [(row["stage"], row["epoch"]) for row in listener.rows] == [("joint", 1), ("joint", 2), ("finetune", 1)]
    assert listener.steps == 12
    assert listener.done == 0
    assert listener.titles[0].startswith("Training resnet20 on few to 0.6 of its static cost: ")
    assert "12 steps" in listener.titles[0]


def test_the_same_run_twice_is_the_same_bit_for_bit(
    tmp_path: Path, small_run: RunConfig, few: Dataset, whole: Path, assert_same_run: SameRun
) -> None:
    train(tmp_path / "again", small_run, few)
    assert_same_run(tmp_path / "again", whole)


def test_another_seed_is_another_run(tmp_path: Path, small_run: RunConfig, few: Dataset, whole: Path) -> None:
    train(tmp_path / "other", replace(small_run, seed=1), few)
    assert (tmp_path / "other" / "metrics.jsonl").read_text() != (whole / "metrics.jsonl").read_text()


@pytest.mark.parametrize("steps", [2, 4, 5, 8, 10, 12])
def test_a_stopped_run_goes_on_to_the_same_end(
    tmp_path: Path, small_run: RunConfig, few: Dataset, whole: Path, assert_same_run: SameRun, steps: int
) -> None:
    train(tmp_path / "run", small_run, few, stop_after=steps)
    listener = train(tmp_path / "run", small_run, few, resume=True)
    assert listener.done == (steps - 1) // 4 * 4  # only whole epochs were kept
    assert listener.warnings == []
    assert_same_run(tmp_path / "run", whole)


def test_short_epochs_share_a_checkpoint(
    tmp_path: Path,
    small_run: RunConfig,
    few: Dataset,
    whole: Path,
    assert_same_run: SameRun,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "PAUSE_SECONDS", 1000)
    saved: list[checkpoint.Position] = []
    save = checkpoint.save

    def note(folder: Path, position: checkpoint.Position, *rest: Any) -> None:
        saved.append(position)
        save(folder, position, *rest)

    monkeypatch.setattr(checkpoint, "save", note)
    train(tmp_path / "run", small_run, few)
    assert [(position.stage, position.epoch) for position in saved] == [(1, 0), (2, 0)]  # a stage's end is kept
    assert_same_run(tmp_path / "run", whole)


@pytest.mark.parametrize("steps", [2, 7, 11])
def test_a_checkpoint_within_an_epoch_goes_on_to_the_same_end(
    tmp_path: Path,
    small_run: RunConfig,
    few: Dataset,
    whole: Path,
    assert_same_run: SameRun,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
) -> None:
    monkeypatch.setattr(loop, "SAVE_SECONDS", -1)
    train(tmp_path / "run", small_run, few, stop_after=steps)
    listener = train(tmp_path / "run", small_run, few, resume=True)
    assert listener.done == steps - 1
    assert listener.titles[0].startswith("Resuming resnet20")
    assert_same_run(tmp_path / "run", whole)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1000])


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut, flip_a_bit, empty])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_leads_to_the_same_end(
    tmp_path: Path,
    small_run: RunConfig,
    few: Dataset,
    whole: Path,
    assert_same_run: SameRun,
    damage: Callable[[Path], None],
) -> None:
    train(tmp_path / "run", small_run, few, stop_after=9)
    newest = checkpoints(tmp_path / "run")[-1]
    damage(newest)
    listener = train(tmp_path / "run", small_run, few, resume=True)
    (warning,) = listener.warnings
    assert newest.name in warning
    assert "Going back to the checkpoint before it" in warning
    assert listener.done == 4
    assert_same_run(tmp_path / "run", whole)


def test_where_every_checkpoint_is_damaged_the_run_starts_again_and_says_so(
    tmp_path: Path, small_run: RunConfig, few: Dataset, whole: Path, assert_same_run: SameRun
) -> None:
    train(tmp_path / "run", small_run, few, stop_after=9)
    for file in checkpoints(tmp_path / "run"):
        cut(file)
    listener = train(tmp_path / "run", small_run, few, resume=True)
    assert len(listener.warnings) == 2
    assert "Going back to the beginning" in listener.warnings[-1]
    assert listener.done == 0
    assert_same_run(tmp_path / "run", whole)


@pytest.mark.parametrize("tail", ['{"stage": "joint", "epo', '{"stage": "joint", "epoch": 7}\n'])
def test_lines_of_metrics_beyond_the_checkpoint_are_dropped(
    tmp_path: Path, small_run: RunConfig, few: Dataset, whole: Path, assert_same_run: SameRun, tail: str
) -> None:
    train(tmp_path / "run", small_run, few, stop_after=6)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write(tail)
    train(tmp_path / "run", small_run, few, resume=True)
    assert_same_run(tmp_path / "run", whole)


def test_a_finished_run_is_evaluated_again_and_left_alone(small_run: RunConfig, few: Dataset, whole: Path) -> None:
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    listener = Listener()
    _, evaluation = loop.train(whole, small_run, few, device=CPU, resume=True, reporter=listener)
    assert "finished already" in listener.warnings[0]
    assert evaluation.summary() == json.loads((whole / "evaluation.json").read_text())
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


# with every aid to training


@pytest.fixture(scope="module")
def aided_run(small_run: RunConfig, finished_run: Path) -> RunConfig:
    extra = ExtraConfig(0.1, 0.9, start=str(finished_run), teacher=str(finished_run), distill=0.5)
    return replace(small_run, schedule=replace(small_run.schedule, finetune=2), extra=extra)


@pytest.fixture(scope="module")
def aided(tmp_path_factory: pytest.TempPathFactory, aided_run: RunConfig, few: Dataset) -> Path:
    """2 + 2 epochs of four steps that nothing has stopped."""
    out = tmp_path_factory.mktemp("loop") / "aided"
    train(out, aided_run, few)
    return out


@pytest.mark.parametrize("steps", [1, 7, 12, 15])
def test_a_run_with_every_aid_goes_on_to_the_same_end(
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
    tmp_path: Path, aided_run: RunConfig, few: Dataset, own_run: Path, assert_same_run: SameRun
) -> None:
    config = replace(aided_run, extra=ExtraConfig(start=str(own_run)))
    train(tmp_path / "whole", config, few)
    train(tmp_path / "killed", config, few, stop_after=1)
    shutil.rmtree(own_run)
    train(tmp_path / "killed", config, few, resume=True)
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


def kept_after(out: Path, config: RunConfig, data: Dataset, steps: int) -> checkpoint.Checkpoint:
    """The checkpoint of a run that was stopped early in the epoch after so many steps."""
    train(out, config, data, stop_after=steps + 1)
    found = checkpoint.latest(out / "checkpoints", pytest.fail)
    assert found is not None
    return found


def test_the_averaged_network_is_what_is_watched(
    tmp_path: Path, aided_run: RunConfig, few: Dataset, aided: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "TOLERANCE", 1.0)  # no nudge after it was watched
    found = kept_after(tmp_path / "run", aided_run, few, 4)
    row = RunFolder.open(aided).metrics()[0]
    assert row["distillation"] > 0
    losses = {}
    for prefix in ("model.", "average.model."):
        model = build_model(aided_run.network, DataBrief.of(few))
        model.load_state_dict(found.part(prefix))
        data = Resident.of(few.test, few, CPU)
        losses[prefix] = evaluate(model, data.batches(250), block_costs(model, few.image_shape)).loss
    assert row["held_loss"] == losses["average.model."]
    assert row["held_loss"] != losses["model."]


def test_a_stage_ends_with_the_average_as_its_network(tmp_path: Path, aided_run: RunConfig, few: Dataset) -> None:
    found = kept_after(tmp_path / "run", aided_run, few, 8)
    assert found.position.stage == 1
    for name, tensor in found.part("model.").items():
        assert torch.equal(tensor, found.part("average.model.")[name]) == tensor.is_floating_point(), name


def test_routers_are_shifted_in_both_networks_alike(tmp_path: Path, aided_run: RunConfig, few: Dataset) -> None:
    before = kept_after(tmp_path / "one", aided_run, few, 8).part("model.")
    found = kept_after(tmp_path / "two", aided_run, few, 12)
    name = "routers.each.0.out.bias"
    live, mean = (found.part(prefix) for prefix in ("model.", "average.model."))
    assert live[name][0] == before[name][0]
    assert live[name][1] != before[name][1]  # the second stage trains no routers, so this is the calibration
    assert all(torch.equal(live[key], mean[key]) for key in live if "router" in key)
    assert not torch.equal(live["fc.weight"], mean["fc.weight"])


def test_a_static_network_takes_every_aid(tmp_path: Path, aided_run: RunConfig, few: Dataset) -> None:
    config = as_static(aided_run)
    whole = train(tmp_path / "whole", config, few)
    assert {row["stage"] for row in whole.rows} == {"static"}
    assert all(row["distillation"] > 0 for row in whole.rows)
    # Begun with the weights of a routed network, whose routers nobody asks.
    first = kept_after(tmp_path / "stopped", config, few, 4)
    assert first.part("average.model.").keys() == first.part("model.").keys()
    assert not any("router" in name for name in first.tensors)


def test_other_routers_than_the_starts_begin_fresh_and_that_is_told(
    tmp_path: Path, aided_run: RunConfig, few: Dataset, finished_run: Path
) -> None:
    config = replace(aided_run, network=replace(aided_run.network, router="rnn"))
    listener = train(tmp_path / "run", config, few, stop_after=1)
    assert listener.warnings == [f"Other routers than ours are in {finished_run}; ours start fresh."]
    assert train(tmp_path / "run", config, few, resume=True, stop_after=1).warnings == []


def test_what_a_kill_left_half_written_is_swept_away(tmp_path: Path, small_run: RunConfig, few: Dataset) -> None:
    train(tmp_path / "run", small_run, few, stop_after=6)
    halves = [tmp_path / "run" / ".config.json.1.tmp", tmp_path / "run" / "checkpoints" / ".x.safetensors.1.tmp"]
    for half in halves:
        half.write_bytes(b"half")
    train(tmp_path / "run", small_run, few, resume=True, stop_after=1)
    assert not any(half.exists() for half in halves)


@pytest.mark.parametrize("lr", [1e9, 1e38])
def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path, small_run: RunConfig, few: Dataset, lr: float) -> None:
    config = replace(small_run, schedule=replace(small_run.schedule, lr=lr, warmup=0.0))
    with pytest.raises(
        UserError, match=r"The \w+ loss stopped .* at step [2-4] of epoch 1 of the joint stage; start again"
    ):
        train(tmp_path / "run", config, few)
    assert not checkpoints(tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").metrics() == []


def test_weights_spoilt_by_the_last_step_of_an_epoch_are_not_kept(
    tmp_path: Path, small_run: RunConfig, few: Dataset
) -> None:
    # One step an epoch, so that no later loss in it can tell.
    schedule = replace(small_run.schedule, lr=3e38, weight_decay=1e3, warmup=0.0, batch=64)
    with pytest.raises(UserError, match=r"The weights stopped being finite numbers in epoch 1 of the joint stage"):
        train(tmp_path / "run", replace(small_run, schedule=schedule), few)
    assert not checkpoints(tmp_path / "run")


def test_a_checkpoint_within_an_epoch_is_not_written_once_a_loss_was_bad(
    tmp_path: Path, small_run: RunConfig, few: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SAVE_SECONDS", -1)
    config = replace(small_run, schedule=replace(small_run.schedule, lr=1e9, warmup=0.0))
    with pytest.raises(UserError, match="finite"):
        train(tmp_path / "run", config, few)
    found = checkpoint.latest(tmp_path / "run" / "checkpoints", pytest.fail)
    assert found is None or all(tensor.isfinite().all() for tensor in found.tensors.values())


@pytest.mark.parametrize("budget", [0.5, 0.75])
def test_the_budget_is_met_on_held_out_images(tmp_path: Path, budget: float) -> None:
    digits = load_digits()
    data = replace(digits, train=digits.train.subset(torch.arange(0, len(digits.train), 2)))
    config = demo("digits")
    config = replace(
        config,
        losses=replace(config.losses, budget=budget),
        schedule=replace(config.schedule, epochs=5, finetune=2, batch=64),
    )
    _, evaluation = loop.train(tmp_path / "run", resolve(config), data, device=CPU)
    assert evaluation.cost_share == pytest.approx(budget, abs=0.02)
    assert not evaluation.collapsed


def test_a_given_gamma_weighs_the_cost_in_the_first_stage(tmp_path: Path, small_run: RunConfig, few: Dataset) -> None:
    listener = train(tmp_path / "run", with_losses(small_run, gamma=0.25), few)
    assert [row["gamma"] for row in listener.rows] == [0.25, 0.25, 0]
    assert "static cost:" not in listener.titles[0]


def test_a_static_network_has_one_stage_and_runs_every_block(
    tmp_path: Path, small_run: RunConfig, few: Dataset
) -> None:
    config = with_losses(replace(small_run, network=replace(small_run.network, routed=False)))
    listener = train(tmp_path / "run", config, few)
    assert {row["stage"] for row in listener.rows} == {"static"}
    assert listener.rows[-1]["cost_share"] == 1
    assert listener.warnings == []  # every image takes the same path, as it should


def test_held_out_images_are_watched_and_not_trained_on(tmp_path: Path, small_run: RunConfig, few: Dataset) -> None:
    config = replace(small_run, data=replace(small_run.data, holdout=20))
    listener = train(tmp_path / "run", config, few)
    assert {(row["watched"], row["n"]) for row in listener.rows} == {("holdout", 20)}
    assert listener.steps == 3 * ((64 - 20) // 16)
    assert RunFolder.open(tmp_path / "run").load_evaluation()["n"] == 40


def test_the_test_set_can_be_left_alone_until_the_end(
    tmp_path: Path, small_run: RunConfig, few: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def listen(model: Any, batches: Any, table: Any) -> Evaluation:
        found = evaluate(model, batches, table)
        seen.append(found.n)
        return found

    monkeypatch.setattr(judging, "evaluate", listen)
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

    monkeypatch.setattr(judging, "evaluate", listen)
    monkeypatch.setattr(judging, "TOLERANCE", 1.0)  # one look is enough to calibrate
    loop.train(tmp_path / "run", small_run, few, device=CPU, amp=amp)
    # An epoch and what plain images cost, an epoch and a calibration, another epoch and calibration, and the test set.
    assert halved == [amp, amp, False, False, False, False, False]


def test_routing_that_does_not_depend_on_the_image_is_told(
    tmp_path: Path, small_run: RunConfig, few: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Evaluation, "collapsed", property(lambda _: True))
    listener = train(tmp_path / "run", small_run, few)
    assert listener.warnings == [loop.COLLAPSE, loop.COLLAPSE]  # once a stage
    assert "the routing has collapsed: every image takes the same path" in loop.COLLAPSE
    assert "--beta" in loop.COLLAPSE


def test_routers_that_no_cost_moves_are_told(
    tmp_path: Path, small_run: RunConfig, few: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BudgetController, "is_stuck", lambda _: True)
    monkeypatch.setattr(Evaluation, "collapsed", property(lambda _: False))
    (warning,) = train(tmp_path / "run", small_run, few).warnings  # after stage 1 alone
    assert f"where {small_run.losses.budget:g} was asked for" in warning
    assert "--score-decay (now 0.0001)" in warning


def test_a_network_that_misses_its_budget_on_test_images_is_told(
    tmp_path: Path, small_run: RunConfig, few: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "TOLERANCE", 1.0)  # nothing is calibrated
    schedule = replace(small_run.schedule, lr=1e-6, finetune_lr=1e-6)  # routers stay as open as they start
    config = replace(small_run, schedule=schedule, losses=replace(small_run.losses, budget=0.5))
    listener = train(tmp_path / "run", config, few)
    share = RunFolder.open(tmp_path / "run").load_evaluation()["cost_share"]
    assert abs(share - 0.5) > 0.02
    assert f"test images cost {share:.3f} of the static network where 0.5 was asked for" in listener.warnings[-1]
    met = replace(config, losses=replace(config.losses, budget=round(share, 2)))
    assert not any("test images" in warning for warning in train(tmp_path / "met", met, few).warnings)


def test_a_network_that_nothing_teaches_to_skip_is_told_to_have_collapsed(
    tmp_path: Path, small_run: RunConfig, few: Dataset
) -> None:
    config = replace(small_run, schedule=replace(small_run.schedule, lr=1e-6))  # routers stay as open as they start
    listener = train(tmp_path / "run", with_losses(config, gamma=0.0, alpha=0.0, beta=0.0), few)
    assert [row["distinct_paths"] for row in listener.rows] == [1, 1, 1]
    assert listener.warnings == [loop.COLLAPSE, loop.COLLAPSE]


def test_nothing_is_compiled_or_captured_on_a_cpu_unless_asked(
    tmp_path: Path, small_run: RunConfig, few: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("compiled", "fused", "capture"):
        monkeypatch.setattr(accelerate, name, pytest.fail)
    monkeypatch.setattr(torch, "autocast", pytest.fail)
    train(tmp_path / "run", small_run, few, stop_after=2)


def test_what_cannot_be_compiled_is_told_and_left_out(
    tmp_path: Path,
    small_run: RunConfig,
    few: Dataset,
    monkeypatch: pytest.MonkeyPatch,
    whole: Path,
    assert_same_run: SameRun,
) -> None:
    def fail() -> None:
        raise RuntimeError("no compiler here\nand more")

    monkeypatch.setattr(accelerate, "compiled", fail)
    listener = Listener()
    loop.train(tmp_path / "run", small_run, few, device=CPU, compile=True, reporter=listener)
    assert listener.warnings == ["Compiling or capturing the step failed (no compiler here); going on without."]
    assert_same_run(tmp_path / "run", whole)


def test_kernels_that_fail_are_told_and_left_out_alone(
    tmp_path: Path, small_run: RunConfig, few: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ValueError("too large for this chip\nand more")

    pytest.importorskip("triton")
    listener, compiled = Listener(), []

    def compile() -> Speed:
        compiled.append("yes")
        return Speed()

    monkeypatch.setattr(accelerate, "fused", fail)
    monkeypatch.setattr(accelerate, "compiled", compile)
    loop.train(tmp_path / "run", small_run, few, device=CPU, compile=True, amp=True, kernels=True, reporter=listener)
    said = [warning for warning in listener.warnings if warning != loop.COLLAPSE]  # which so short a run may do
    assert said == ["The fused kernels failed (too large for this chip); going on without."]
    assert compiled


def test_steps_that_do_not_fit_in_memory_are_told(tmp_path: Path, small_run: RunConfig, few: Dataset) -> None:
    schedule = replace(small_run.schedule, views=10**12)
    with pytest.raises(UserError, match=r"The memory of cpu is too small for steps of 16 .* smaller --batch"):
        train(tmp_path / "run", replace(small_run, schedule=schedule), few)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schedule": {"batch": 65}}, "--batch 65 is more than the 64 training images"),
        ({"data": {"holdout": 64}}, "--holdout 64 leaves nothing of 64"),
        ({"losses": {"budget": 0.001}}, r"A budget of 0\.001 cannot be met: .* still costs 0\.0\d+"),
    ],
)
def test_settings_that_cannot_work_leave_no_folder_in_the_way(
    tmp_path: Path, small_run: RunConfig, few: Dataset, change: dict[str, dict[str, Any]], words: str
) -> None:
    parts = {part: replace(getattr(small_run, part), **values) for part, values in change.items()}
    with pytest.raises(UserError, match=words):
        train(tmp_path / "run", replace(small_run, **parts), few)
    assert not (tmp_path / "run").exists()
