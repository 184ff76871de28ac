"""The training loop: stages, epochs, steps; metrics, checkpoints, warnings; at the end, the evaluation."""

import math
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from codinet import files
from codinet.config import RunConfig, to_dict
from codinet.cost import block_costs
from codinet.data.dataset import Dataset
from codinet.data.resident import Resident, epoch_order
from codinet.environment import describe
from codinet.errors import UserError
from codinet.evaluate import Evaluation, evaluate
from codinet.relaxation import hard
from codinet.runs import DataBrief, RunFolder, build_model
from codinet.train import accelerate, checkpoint
from codinet.train.budget import BudgetController, find_threshold
from codinet.train.checkpoint import Checkpoint, Position
from codinet.train.reporting import Reporter
from codinet.train.stages import Stage, stages_of
from codinet.train.step import Step

SAVE_SECONDS = 300  # within long epochs, a checkpoint at least this often
CALIBRATION_IMAGES = 5000
TOLERANCE = 0.004  # gap between cost and budget, on calibration images, that is left as it is


def train(
    out: Path,
    config: RunConfig,
    dataset: Dataset,
    *,
    device: torch.device,
    resume: bool = False,
    compile: bool | None = None,
    amp: bool | None = None,
    reporter: Reporter | None = None,
) -> tuple[RunFolder, Evaluation]:
    """Train to the end, or from where a killed run stopped, and evaluate on the test set.

    `config` must be resolved. Compilation, graph capture and bfloat16 are on by default on CUDA devices only.
    """
    with reporter or Reporter() as told:
        try:
            return _Training(out, config, dataset, device, resume, compile, amp, told).run()
        except RuntimeError as error:
            # torch has a class for a GPU's memory, and only words for the machine's.
            if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
                raise UserError(
                    f"The memory of {device} is too small for steps of {config.schedule.batch} images in "
                    f"{config.schedule.views} views; start again with a smaller --batch and another --out."
                ) from error
            raise


class _Training:
    def __init__(
        self,
        out: Path,
        config: RunConfig,
        dataset: Dataset,
        device: torch.device,
        resume: bool,
        compile: bool | None,
        amp: bool | None,
        reporter: Reporter,
    ) -> None:
        fast = device.type == "cuda"
        self.config, self.dataset, self.device, self.reporter = config, dataset, device, reporter
        self.compile = fast if compile is None else compile
        self.amp = fast if amp is None else amp
        self.stages = stages_of(config)
        self._load_data()
        brief = DataBrief.of(dataset)
        torch.manual_seed(config.seed)
        self.model = build_model(config.network, brief).to(device)
        if fast:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.table = block_costs(self.model, dataset.image_shape)
        self.controller = self._controller()
        # Last, so that settings that cannot work leave no folder in the way of the next try.
        self.folder = open_folder(out, config, brief, device, resume=resume)

    def _load_data(self) -> None:
        holdout, size = self.config.data.holdout, self.config.schedule.batch
        assert size is not None
        train, watched = self.dataset.train, self.dataset.test
        if holdout:
            if holdout >= len(train):
                raise UserError(f"--holdout {holdout} leaves nothing of {len(train)} training images; hold out fewer.")
            order = epoch_order(len(train), seed=0, epoch=0)  # the same images whatever the run's seed
            train, watched = train.subset(order[holdout:]), train.subset(order[:holdout])
        self.steps = len(train) // size
        if self.steps == 0:
            raise UserError(f"--batch {size} is more than the {len(train)} training images; use a smaller one.")
        self.train_data = Resident.of(train, self.dataset, self.device)
        self.watched_data = Resident.of(watched, self.dataset, self.device)
        self.test_data = Resident.of(self.dataset.test, self.dataset, self.device) if holdout else self.watched_data
        quiet = watched if holdout else train.subset(torch.arange(min(CALIBRATION_IMAGES, len(train))))
        self.calibration_data = Resident.of(quiet, self.dataset, self.device)

    def _controller(self) -> BudgetController | None:
        budget = self.config.losses.budget
        if not self.config.network.routed or budget is None:
            return None
        least = self.table.share(torch.zeros(1, len(self.table.run_N))).item()
        if budget < least:
            raise UserError(
                f"A budget of {budget:g} cannot be met: with every block skipped {self.config.network.arch} still "
                f"costs {least:.3f} of its static form; ask for more."
            )
        return BudgetController(budget, steps=self.stages[0].epochs * self.steps, device=self.device)

    def run(self) -> tuple[RunFolder, Evaluation]:
        if self.folder.finished:
            self.reporter.warn(f"{self.folder.path} is finished already; here is what it reached.")
            return self.folder, self._evaluate(self.folder.load_model(self.device), self.test_data)
        for place in (self.folder.path, self.folder.path / "checkpoints"):
            files.sweep(place)
        found = checkpoint.latest(self.folder.path / "checkpoints", self.reporter.warn) or Checkpoint()
        start = found.position
        if found.tensors:
            checkpoint.restore(found, self.model, self.controller)
        self.folder.keep_metrics(self.folder.metrics()[: start.rows])
        self._announce(start)
        for number in range(start.stage, len(self.stages)):
            self._run_stage(number, found if number == start.stage else Checkpoint(Position(rows=self.rows)))
        evaluation = self._evaluate(self.model, self.test_data)
        self.folder.save_results(self.model, evaluation)
        return self.folder, evaluation

    def _announce(self, start: Position) -> None:
        self.rows = start.rows
        total = sum(stage.epochs for stage in self.stages) * self.steps
        done = (sum(stage.epochs for stage in self.stages[: start.stage]) + start.epoch) * self.steps + start.step
        verb = "Resuming" if done else "Training"
        budget = self.config.losses.budget
        aim = f" to {budget:g} of its static cost" if self.controller else ""
        self.reporter.begin(
            f"{verb} {self.config.network.arch} on {self.dataset.name}{aim}: "
            f"{self.table.static_macs / 1e6:.2f} M MACs static, {total} steps in {self.folder.path}",
            steps=total,
            done=done,
        )

    def _run_stage(self, number: int, start: Checkpoint) -> None:
        stage = self.stages[number]
        step, go = self._build_step(stage)
        if start.tensors:
            checkpoint.restore_step(start, step)
        self.saved_at = time.monotonic()
        self.model.train()
        for epoch in range(start.position.epoch, stage.epochs):
            first = start.position.step if epoch == start.position.epoch else 0
            self._run_epoch(number, epoch, first, step, go)
            if not stage.train_routers or epoch + 1 == stage.epochs:
                self._calibrate()
            self._log(stage, epoch, step)
            step.sums.zero_()
            after = Position(number, epoch + 1, 0, self.rows)
            if epoch + 1 == stage.epochs:
                after = Position(number + 1, 0, 0, self.rows)
            self._save(after, step)

    def _build_step(self, stage: Stage) -> tuple[Step, Any]:
        def build(block_step: Any) -> Step:
            return Step(
                self.model,
                self.train_data,
                self.table,
                self.config,
                stage,
                self.controller,
                pad=self.dataset.pad,
                flip=self.dataset.flip,
                amp=self.amp,
                block_step=block_step,
            )

        if not self.compile:
            step = build(None)
            return step, step
        try:
            step = build(accelerate.compile_step())
            if self.device.type != "cuda":
                return step, step
            return step, accelerate.capture(step)
        except (RuntimeError, torch._dynamo.exc.TorchDynamoException) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            self.reporter.warn(f"Compiling or capturing the step failed ({reason}); going on without.")
            self.compile = False
            return self._build_step(stage)

    def _run_epoch(self, number: int, epoch: int, first: int, step: Step, go: Any) -> None:
        stage, size = self.stages[number], len(step.index_L)
        order = epoch_order(len(self.train_data), seed=self.config.seed, epoch=number * 100_000 + epoch)
        order = order.to(self.device)
        for i in range(first, self.steps):
            done = epoch + i / self.steps
            step.index_L.copy_(order[i * size : (i + 1) * size])
            step.lr.fill_(stage.lr_at(done))
            if self.controller and stage.path_losses:
                self.controller.aim(done / stage.epochs)
            go()
            self.reporter.advance()
            if time.monotonic() - self.saved_at > SAVE_SECONDS and i + 1 < self.steps:
                self._save(Position(number, epoch, i + 1, self.rows), step)
        self._stop_if_not_finite(stage, epoch, step)

    def _stop_if_not_finite(self, stage: Stage, epoch: int, step: Step) -> None:
        bad = step.first_bad()
        if bad is not None:
            term = "total" if bad[1] == "loss" else bad[1]
            raise UserError(
                f"The {term} loss stopped being a finite number at step {bad[0] + 1} of epoch {epoch + 1} of the "
                f"{stage.name} stage; start again with a lower --lr and another --out."
            )
        # The last step may have spoiled the weights without having seen it in its own loss.
        if not torch.stack([tensor.isfinite().all() for tensor in self.model.state_dict().values()]).all():
            raise UserError(
                f"The weights stopped being finite numbers in epoch {epoch + 1} of the {stage.name} stage; "
                "start again with a lower --lr and another --out."
            )

    def _calibrate(self) -> None:
        """Shift the routers so that plain images in evaluation mode cost the budget."""
        budget = self.config.losses.budget
        if self.controller is None or budget is None or self.model.routers is None:
            return

        def cost_at(threshold: float) -> float:
            return self._evaluate(partial(self.model, decide=partial(hard, threshold=threshold)), None).cost_share

        self.model.eval()
        if abs(cost_at(0.5) - budget) > TOLERANCE:
            threshold = find_threshold(cost_at, budget)
            self.model.routers.shift(-math.log(threshold / (1 - threshold)))
        self.model.train()

    def _evaluate(self, model: Any, data: Resident | None) -> Evaluation:
        data = data or self.calibration_data
        size = 1000 if self.device.type == "cuda" else 250
        return evaluate(model, data.batches(size), self.table)

    def _log(self, stage: Stage, epoch: int, step: Step) -> None:
        means = step.means()
        held = self._evaluate(self.model, self.watched_data)
        row: dict[str, Any] = {"stage": stage.name, "epoch": epoch + 1, "watched": self._watched, **means}
        row |= {"train_accuracy": 100 * means["accuracy"], "train_cost_share": means["cost_share"]}
        row |= held.summary()
        row["loss"], row["held_loss"] = means["loss"], held.loss
        self.rows += 1
        self.folder.add_metrics(row)
        self.reporter.row(row)
        if held.collapsed and self.config.network.routed and epoch + 1 == stage.epochs:
            self.reporter.warn(COLLAPSE)

    @property
    def _watched(self) -> str:
        return "holdout" if self.config.data.holdout else "test"

    def _save(self, position: Position, step: Step) -> None:
        self._stop_if_not_finite(self.stages[min(position.stage, len(self.stages) - 1)], position.epoch, step)
        checkpoint.save(self.folder.path / "checkpoints", position, self.model, step, self.controller)
        self.saved_at = time.monotonic()


COLLAPSE = (
    "the routing has collapsed: every image takes the same path, so this is a static network of fewer blocks. "
    "Raise --beta or --m-d, keep --paths noise-free, train longer, or ask for a budget between 0.3 and 0.9."
)


def open_folder(out: Path, config: RunConfig, brief: DataBrief, device: torch.device, *, resume: bool) -> RunFolder:
    """A new run folder, or with `resume` the one that is there if it is the same run."""
    if not (out / "config.json").exists():
        if out.exists() and not out.is_dir():
            raise UserError(f"{out} is a file, not a folder; choose another --out.")
        if out.is_dir() and any(out.iterdir()) and not resume:
            raise UserError(f"{out} exists and is not empty; choose another --out.")
        return RunFolder.create(out, config, brief, describe(device))
    if not resume:
        raise UserError(f"{out} holds a run already; continue it with --resume or choose another --out.")
    folder = RunFolder.open(out)
    difference = _first_difference(to_dict(folder.config), to_dict(config))
    if difference:
        raise UserError(f"{out} was begun with other settings ({difference}); repeat them or choose another --out.")
    if folder.data.sha256 != brief.sha256:
        raise UserError(f"{out} was begun on other data than {brief.name} holds now; restore it or start anew.")
    return replace(folder, data=brief)


def _first_difference(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    for key, value in old.items():
        if isinstance(value, dict):
            inner = _first_difference(value, new[key])
            if inner:
                return inner
        elif value != new[key]:
            return f"{key} was {value}, now {new[key]}"
    return None
