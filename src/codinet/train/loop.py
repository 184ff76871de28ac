"""The training loop: stages, epochs, steps; metrics, checkpoints, warnings; at the end, the evaluation.

Several processes (`distributed.World`) take every step together, and each evaluates its share of the images; all
get the same figures, so that they hold the same network and take the same turns. The first one alone reads and
writes the run folder and reports.
"""

import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from codinet import files
from codinet.config import RunConfig
from codinet.cost import block_costs
from codinet.data.dataset import Dataset
from codinet.data.placing import Loader
from codinet.data.resident import epoch_order
from codinet.environment import describe, is_out_of_memory
from codinet.errors import UserError
from codinet.evaluate import Evaluation
from codinet.kernels import available
from codinet.runs import DataBrief, RunFolder, build_model
from codinet.thresholds import MISSED, require_reach
from codinet.train import checkpoint
from codinet.train.budget import SETTLE, BudgetController
from codinet.train.building import Builder, Go, Means
from codinet.train.checkpoint import Checkpoint, Position
from codinet.train.distillation import Teacher
from codinet.train.distributed import World, seed_apart
from codinet.train.folder import CHECKPOINTS, claimed_folder, identify
from codinet.train.judging import Judge
from codinet.train.reporting import Reporter
from codinet.train.sources import begin_from, read_sources
from codinet.train.splits import split_data
from codinet.train.stages import Stage, grip_at, stages_of
from codinet.train.step import Speed, Step

SAVE_SECONDS = 300  # within long epochs, a checkpoint at least this often
PAUSE_SECONDS = 5  # after short epochs, none until the last one is this old
ASK_EVERY = 16  # steps after which several processes ask the first one whether it is time for that


def train(
    out: Path,
    config: RunConfig,
    dataset: Dataset,
    *,
    device: torch.device,
    resume: bool = False,
    compile: bool | None = None,
    amp: bool | None = None,
    kernels: bool | None = None,
    reporter: Reporter | None = None,
    world: World | None = None,
    sync_bn: bool = False,
    loader: Loader = "auto",
) -> tuple[RunFolder, Evaluation]:
    """Train to the end, or from where a killed run stopped, and evaluate on the test set.

    `config` must be resolved. Compilation, graph capture, bfloat16 and, with all of them, our own kernels for narrow
    blocks are on by default on CUDA devices only.
    `loader` says where training images wait, which changes nothing but speed.
    Every process of a `world` calls this alike; with `sync_bn` BatchNorm sees the batches of all of them.
    """
    world = world or World()
    with reporter if reporter and world.leads else Reporter() as told:
        try:
            fast = device.type == "cuda"
            means = Means(
                compile=fast if compile is None else compile,
                amp=fast if amp is None else amp,
                kernels=fast if kernels is None else kernels,
                sync_bn=sync_bn,
                loader=loader,
            )
            return _Training(out, config, dataset, device, means, told, world, resume=resume).run()
        except RuntimeError as error:
            if is_out_of_memory(error):
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
        means: Means,
        reporter: Reporter,
        world: World,
        *,
        resume: bool,
    ) -> None:
        self.sources = world.lead(lambda: read_sources(config, out, resume=resume))
        self.config = config = self.sources.note(config)
        self.dataset, self.device, self.reporter = dataset, device, reporter
        able = means.kernels and means.amp and available(device)
        self.means = replace(means, kernels=able, sync_bn=means.sync_bn and world.size > 1)
        self.world, self.stages = world, stages_of(config)
        self.builder = Builder(self._make_step, self.means, device, world, reporter.warn)
        self.out, self.resume = out, resume
        # Before the folder is created, so that settings that cannot work leave no folder behind.
        self.brief = world.each(self._set_up)

    def _set_up(self) -> DataBrief:
        self.splits = split_data(self.config, self.dataset, self.device, self.world, self.means.loader)
        brief = DataBrief.of(self.dataset)
        torch.manual_seed(self.config.seed)
        self.model = build_model(self.config.network, brief).to(self.device)
        if self.device.type == "cuda":
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        start, teacher = self.sources.start.source, self.sources.teacher.source
        self.misfits = begin_from(start, self.model) if start else []
        self.teacher = Teacher(teacher.build(), teacher.data, self.dataset, self.device) if teacher else None
        self.table = block_costs(self.model, self.dataset.image_shape)
        self.judge = Judge(self.table, self.device, self.world)
        self.controller = self._controller()
        if self.means.sync_bn:
            if self.device.type != "cuda":
                raise UserError(f"--sync-bn needs GPUs, and this training is on {self.device.type}; leave it out.")
            self.model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(self.model)
        if self.world.size > 1:
            seed_apart(self.config.seed, self.world.rank)
        return brief

    def _require_same_data(self) -> None:
        if self.folder.data.sha256 != self.brief.sha256:
            raise UserError(
                f"Process {self.world.rank} finds other data under the name {self.brief.name} than the first process "
                "does; give all machines the same."
            )

    def _controller(self) -> BudgetController | None:
        budget = self.config.losses.budget
        if not self.config.network.routed or budget is None:
            return None
        require_reach(self.table, budget, self.config.network.arch)
        return BudgetController(budget, steps=self.stages[0].epochs * self.splits.steps, device=self.device)

    def run(self) -> tuple[RunFolder, Evaluation]:
        with ExitStack() as claim:
            self.folder = self.world.lead(lambda: claim.enter_context(self._claim()))
            self.identity = identify(self.folder.config, self.folder.data)
            self.world.each(self._require_same_data)
            if not self.world.lead(lambda: self.folder.finished):
                return self._train()
        self.reporter.warn(f"The run in {self.folder.path} is already finished. These are its results.")
        self.model.load_state_dict(self.world.lead(lambda: self.folder.load_model().state_dict()))
        return self.folder, self.judge.evaluate(self.model, self.splits.test)

    def _claim(self) -> AbstractContextManager[RunFolder]:
        here = describe(self.device) | ({} if self.world.size == 1 else {"processes": self.world.size})
        return claimed_folder(self.out, self.config, self.brief, here, resume=self.resume)

    def _train(self) -> tuple[RunFolder, Evaluation]:
        found = self.world.lead(self._find_start)
        start = found.position
        if found.tensors:
            checkpoint.restore(found, self.model, self.controller)
        else:
            self.sources.start.require()
        self.sources.teacher.require()
        self.rows = start.rows
        self._announce(start)
        if self.misfits and not found.tensors:
            what = " and ".join(self.misfits)
            self.reporter.warn(f"Other {what} than ours are in {self.config.extra.start}; ours start fresh.")
        if found.tensors and found.processes != self.world.size:
            self.reporter.warn(
                f"The processes that train were {found.processes} and are now {self.world.size}; random views and "
                "noise are drawn anew from here."
            )
        for number in range(start.stage, len(self.stages)):
            self._run_stage(number, found if number == start.stage else Checkpoint(Position(rows=self.rows)))
        evaluation = self.judge.evaluate(self.model, self.splits.test)
        self.world.lead(lambda: self.folder.save_results(self.model, evaluation))
        self._tell_missed(evaluation)
        return self.folder, evaluation

    def _find_start(self) -> Checkpoint:
        checkpoints = self.folder.path / CHECKPOINTS
        for place in (self.folder.path, checkpoints):
            files.sweep(place)
        found = checkpoint.latest(checkpoints, self.reporter.warn, self.identity) or Checkpoint()
        self.folder.keep_metrics(self.folder.metrics()[: found.position.rows])
        return found

    def _announce(self, start: Position) -> None:
        total = sum(stage.epochs for stage in self.stages) * self.splits.steps
        done = (
            sum(stage.epochs for stage in self.stages[: start.stage]) + start.epoch
        ) * self.splits.steps + start.step
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
        step, go = self.builder.build(stage)
        if start.tensors:
            checkpoint.restore_step(start, step, seed=self.config.seed)
        elif number == 0 and self.sources.start.source:
            self._save(Position(), step)  # from here on, the run that it starts from may go
        self.saved_at = time.monotonic()
        self.model.train()
        for epoch in range(start.position.epoch, stage.epochs):
            first = start.position.step if epoch == start.position.epoch else 0
            self._run_epoch(number, epoch, first, step, go)
            self.world.average_statistics(self.model)
            if step.average:
                self.world.average_statistics(step.average.model)
            self.world.each(partial(self._stop_if_not_finite, stage, epoch, step))
            last = epoch + 1 == stage.epochs
            if step.average and last:
                step.average.adopt()
            # In full precision, looking at images takes a GPU as long as a short epoch; the last look is for figures.
            half = self.means.amp and not last
            with torch.autocast(self.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
                if self.controller and (not stage.train_routers or last):
                    budget, data = self.controller.budget, self.splits.calibration
                    self.judge.calibrate(step.judged, self.model, data, budget)
                watched = self.judge.evaluate(step.judged, self.splits.watched)
                self._log(stage, epoch, step, watched)
                if self.controller and stage.train_routers and not last:
                    settling = epoch + 1 >= SETTLE * stage.epochs
                    self._steer(self.controller, step, watched, settling=settling)
            step.sums.zero_()
            if last:
                self._save(Position(number + 1, 0, 0, self.rows), step)
            elif self._saved_before(PAUSE_SECONDS):
                self._save(Position(number, epoch + 1, 0, self.rows), step)

    def _make_step(self, stage: Stage, speed: Speed) -> Step:
        assert self.config.schedule.batch is not None
        return Step(
            self.model,
            self.splits.train.window(self.config.schedule.batch // self.world.size),
            self.table,
            self.config,
            stage,
            self.controller,
            pad=self.dataset.pad,
            flip=self.dataset.flip,
            amp=self.means.amp,
            speed=speed,
            world=self.world,
            teacher=self.teacher,
        )

    def _run_epoch(self, number: int, epoch: int, first: int, step: Step, go: Go) -> None:
        stage, size, steps = self.stages[number], len(step.index_L), self.splits.steps
        order = epoch_order(len(self.splits.train), seed=self.config.seed, epoch=number * 100_000 + epoch)
        mine = order[: steps * self.world.size * size].unflatten(0, (steps, self.world.size, size))
        for i, index_L in enumerate(self.splits.train.deliver(mine[first:, self.world.rank]), start=first):
            done = epoch + i / steps
            step.index_L.copy_(index_L)
            step.lr.fill_(stage.lr_at(done))
            step.grip.fill_(grip_at(done / stage.epochs))
            if self.controller and stage.path_losses:
                self.controller.aim(done / stage.epochs)
            go()
            self.reporter.advance()
            if i + 1 < steps and self._is_time_to_save(i + 1):
                self._save(Position(number, epoch, i + 1, self.rows), step)

    def _is_time_to_save(self, steps: int) -> bool:
        if not self.world.alone and steps % ASK_EVERY:
            return False  # clocks differ, so the first process decides; to ask it waits, so not after every step
        return self._saved_before(SAVE_SECONDS)

    def _saved_before(self, seconds: float) -> bool:
        """Whether the last checkpoint is older than that, by the clock of the first process."""
        return self.world.lead(lambda: time.monotonic() - self.saved_at > seconds)

    def _stop_if_not_finite(self, stage: Stage, epoch: int, step: Step) -> None:
        bad = step.first_bad()
        if bad is not None:
            term = "total" if bad[1] == "loss" else bad[1]
            raise UserError(
                f"The {term} loss stopped being a finite number at step {bad[0] + 1} of epoch {epoch + 1} of the "
                f"{stage.name} stage; start again with a lower --lr and another --out."
            )
        # The last step may have spoiled the weights without having seen it in its own loss.
        tensors = [*self.model.state_dict().values(), *step.averaged().values()]
        if not torch.stack([tensor.isfinite().all() for tensor in tensors]).all():
            raise UserError(
                f"The weights stopped being finite numbers in epoch {epoch + 1} of the {stage.name} stage; "
                "start again with a lower --lr and another --out."
            )

    def _steer(self, controller: BudgetController, step: Step, watched: Evaluation, *, settling: bool) -> None:
        """Towards the budget, by the images to calibrate on: test images must not have a say where they are watched."""
        is_watched = self.splits.watched is self.splits.calibration
        plain = watched if is_watched else self.judge.evaluate(step.judged, self.splits.calibration)
        controller.compare(plain.cost_share, settling=settling)
        if settling:
            self.judge.nudge(step.judged, self.model, plain, controller.budget)

    def _log(self, stage: Stage, epoch: int, step: Step, held: Evaluation) -> None:
        means = step.means()
        row: dict[str, Any] = {"stage": stage.name, "epoch": epoch + 1, "watched": self._watched, **means}
        row |= {"train_accuracy": 100 * means["accuracy"], "train_cost_share": means["cost_share"]}
        row |= held.summary()
        row["loss"], row["held_loss"] = means["loss"], held.loss
        self.rows += 1
        self.world.lead(lambda: self.folder.add_metrics(row))
        self.reporter.row(row)
        if held.collapsed and self.config.network.routed and epoch + 1 == stage.epochs:
            self.reporter.warn(COLLAPSE)

    def _tell_missed(self, evaluation: Evaluation) -> None:
        if self.controller and abs(evaluation.cost_share - self.controller.budget) > MISSED:
            self.reporter.warn(
                f"test images cost {evaluation.cost_share:.3f} of the static network where {self.controller.budget:g} "
                "was asked for: with few paths there are gaps that no shift of the routers closes, and with few images "
                "to calibrate on others may take other paths. Raise --beta, --m-d or --score-decay, or train longer "
                "or on more."
            )

    @property
    def _watched(self) -> str:
        return "holdout" if self.config.data.holdout else self.config.data.watch

    def _save(self, position: Position, step: Step) -> None:
        stage = self.stages[min(position.stage, len(self.stages) - 1)]
        self.world.each(partial(self._stop_if_not_finite, stage, position.epoch, step))
        checkpoint.save(self.folder.path / CHECKPOINTS, position, self.model, step, self.controller, self.identity)
        self.saved_at = time.monotonic()


COLLAPSE = (
    "the routing has collapsed: every image takes the same path, so this is a static network of fewer blocks. "
    "Raise --beta, --m-d or --score-decay, keep --paths noise-free, train longer, or ask for a budget between 0.3 and "
    "0.9."
)
