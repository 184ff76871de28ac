"""The training loop: stages, epochs, steps; metrics, checkpoints, warnings; at the end, the evaluation.

Several processes (`distributed.World`) take every step together, and each evaluates its share of the images; all
get the same figures, so that they hold the same network and take the same turns. The first one alone reads and
writes the run folder and reports.
"""

import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from codinet import files
from codinet.config import RunConfig
from codinet.cost import CostTable, block_costs
from codinet.data.dataset import Dataset
from codinet.data.placing import Loader
from codinet.data.resident import epoch_order
from codinet.data.stream import lost_workers
from codinet.environment import describe, is_out_of_memory
from codinet.errors import UserError, first_line
from codinet.evaluate import Evaluation, evaluate, summarise
from codinet.kernels import available
from codinet.model import RoutedNetwork
from codinet.records import PathTable
from codinet.relaxation import hard
from codinet.runs import DataBrief, RunFolder, build_model
from codinet.train import accelerate, checkpoint
from codinet.train.budget import BudgetController, find_threshold
from codinet.train.checkpoint import Checkpoint, Position
from codinet.train.distillation import Teacher
from codinet.train.distributed import World, seed_apart
from codinet.train.folder import open_folder
from codinet.train.reporting import Reporter
from codinet.train.sources import begin_from, read_sources
from codinet.train.splits import Placed, split_data
from codinet.train.stages import Stage, stages_of
from codinet.train.step import Speed, Step

SAVE_SECONDS = 300  # within long epochs, a checkpoint at least this often
ASK_EVERY = 16  # steps after which several processes ask the first one whether it is time for that
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
    with reporter if reporter and world.leads else Reporter() as told, lost_workers():
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


@dataclass(frozen=True)
class Means:
    """How a training is carried out, as against what is trained; see `train`."""

    compile: bool
    amp: bool
    kernels: bool
    sync_bn: bool
    loader: Loader


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
        self.world, self.loader, self.compile, self.amp = world, means.loader, means.compile, means.amp
        self.kernels = means.kernels and means.amp and available(device)
        self.sync_bn = means.sync_bn and world.size > 1
        self.stages = stages_of(config)
        brief = world.each(self._set_up)
        here = {} if world.size == 1 else {"processes": world.size}
        # Last, so that settings that cannot work leave no folder in the way of the next try.
        self.folder = world.lead(lambda: open_folder(out, config, brief, describe(device) | here, resume=resume))
        world.each(lambda: self._require_same_data(brief))

    def _set_up(self) -> DataBrief:
        self.splits = split_data(self.config, self.dataset, self.device, self.world, self.loader)
        brief = DataBrief.of(self.dataset)
        torch.manual_seed(self.config.seed)
        self.model = build_model(self.config.network, brief).to(self.device)
        if self.device.type == "cuda":
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        start, teacher = self.sources.start.source, self.sources.teacher.source
        self.misfits = begin_from(start, self.model) if start else []
        self.teacher = Teacher(teacher.build(), teacher.data, self.dataset, self.device) if teacher else None
        self.table = block_costs(self.model, self.dataset.image_shape)
        self.controller = self._controller()
        if self.sync_bn:
            if self.device.type != "cuda":
                raise UserError(f"--sync-bn needs GPUs, and this training is on {self.device.type}; leave it out.")
            self.model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(self.model)
        if self.world.size > 1:
            seed_apart(self.config.seed, self.world.rank)
        return brief

    def _require_same_data(self, brief: DataBrief) -> None:
        if self.folder.data.sha256 != brief.sha256:
            raise UserError(
                f"Process {self.world.rank} finds other data under the name {brief.name} than the first process "
                "does; give all machines the same."
            )

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
        return BudgetController(budget, steps=self.stages[0].epochs * self.splits.steps, device=self.device)

    def run(self) -> tuple[RunFolder, Evaluation]:
        if self.world.lead(lambda: self.folder.finished):
            self.reporter.warn(f"{self.folder.path} is finished already; here is what it reached.")
            self.model.load_state_dict(self.world.lead(lambda: self.folder.load_model().state_dict()))
            return self.folder, self._evaluate(self.model, self.splits.test)
        found = self.world.lead(self._find_start)
        start = found.position
        if found.tensors:
            checkpoint.restore(found, self.model, self.controller)
        else:
            self.sources.start.require()
        self.sources.teacher.require()
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
        evaluation = self._evaluate(self.model, self.splits.test)
        self.world.lead(lambda: self.folder.save_results(self.model, evaluation))
        return self.folder, evaluation

    def _find_start(self) -> Checkpoint:
        for place in (self.folder.path, self.folder.path / "checkpoints"):
            files.sweep(place)
        found = checkpoint.latest(self.folder.path / "checkpoints", self.reporter.warn) or Checkpoint()
        self.folder.keep_metrics(self.folder.metrics()[: found.position.rows])
        return found

    def _announce(self, start: Position) -> None:
        self.rows = start.rows
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
        step, go = self._build_step(stage)
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
            if step.average and epoch + 1 == stage.epochs:
                step.average.adopt()
            if not stage.train_routers or epoch + 1 == stage.epochs:
                self._calibrate(step.judged)
            self._log(stage, epoch, step)
            step.sums.zero_()
            after = Position(number, epoch + 1, 0, self.rows)
            if epoch + 1 == stage.epochs:
                after = Position(number + 1, 0, 0, self.rows)
            self._save(after, step)

    def _build_step(self, stage: Stage) -> tuple[Step, Any]:
        while self.compile:
            fast, reason = self._build_fast_step(stage)
            reasons = [each for each in self.world.gather(reason) if each is not None]
            if fast and not reasons:
                return fast
            del fast  # two steps of one network must not both act on its gradients
            what = "The fused kernels" if self.kernels else "Compiling or capturing the step"
            self.reporter.warn(f"{what} failed ({reasons[0]}); going on without.")
            self.kernels, self.compile = False, self.kernels
        step = self._plain_step(stage, Speed())
        return step, step

    def _build_fast_step(self, stage: Stage) -> tuple[tuple[Step, Any] | None, str | None]:
        """The step compiled and captured, or why that failed."""
        try:
            # What is compiled cannot hold the exchange of BatchNorm's statistics.
            speed = Speed() if self.sync_bn else accelerate.fused() if self.kernels else accelerate.compiled()
            step = self._plain_step(stage, speed)
            return (step, accelerate.capture(step) if self.device.type == "cuda" else step), None
        except UserError:
            raise
        except Exception as error:  # whatever a compiler may raise: training does not depend on it
            return None, first_line(error)

    def _plain_step(self, stage: Stage, speed: Speed) -> Step:
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
            amp=self.amp,
            speed=speed,
            world=self.world,
            teacher=self.teacher,
        )

    def _run_epoch(self, number: int, epoch: int, first: int, step: Step, go: Any) -> None:
        stage, size, steps = self.stages[number], len(step.index_L), self.splits.steps
        order = epoch_order(len(self.splits.train), seed=self.config.seed, epoch=number * 100_000 + epoch)
        mine = order[: steps * self.world.size * size].unflatten(0, (steps, self.world.size, size))
        for i, index_L in enumerate(self.splits.train.deliver(mine[first:, self.world.rank]), start=first):
            done = epoch + i / steps
            step.index_L.copy_(index_L)
            step.lr.fill_(stage.lr_at(done))
            if self.controller and stage.path_losses:
                self.controller.aim(done / stage.epochs)
            go()
            self.reporter.advance()
            if i + 1 < steps and self._is_time_to_save(i + 1):
                self._save(Position(number, epoch, i + 1, self.rows), step)

    def _is_time_to_save(self, steps: int) -> bool:
        if not self.world.alone and steps % ASK_EVERY:
            return False  # clocks differ, so the first process decides; to ask it waits, so not after every step
        return self.world.lead(lambda: time.monotonic() - self.saved_at > SAVE_SECONDS)

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

    def _calibrate(self, judged: RoutedNetwork) -> None:
        """Shift the routers so that plain images in evaluation mode cost the budget.

        Where the network that is judged is an average of the one that is trained, both are shifted alike: else the
        average would drift back to where it was.
        """
        budget = self.config.losses.budget
        if self.controller is None or budget is None or self.model.routers is None:
            return

        def cost_at(threshold: float) -> float:
            return self._evaluate(partial(judged, decide=partial(hard, threshold=threshold)), None).cost_share

        was_training = judged.training
        judged.eval()
        if abs(cost_at(0.5) - budget) > TOLERANCE:
            threshold = find_threshold(cost_at, budget)
            for network in {self.model, judged}:
                assert network.routers is not None
                network.routers.shift(-math.log(threshold / (1 - threshold)))
        judged.train(was_training)

    def _evaluate(self, model: Any, data: Placed | None) -> Evaluation:
        data = self.splits.calibration if data is None else data  # not `or`, for a share may be empty
        size = 1000 if self.device.type == "cuda" else 250
        if self.world.size == 1:
            return evaluate(model, data.batches(size), self.table)
        # Of few images, a process may have none.
        mine = self.world.each(lambda: evaluate(model, data.batches(size), self.table) if len(data) else None)
        return join([part for part in self.world.gather(mine) if part is not None], self.table)

    def _log(self, stage: Stage, epoch: int, step: Step) -> None:
        means = step.means()
        held = self._evaluate(step.judged, self.splits.watched)
        row: dict[str, Any] = {"stage": stage.name, "epoch": epoch + 1, "watched": self._watched, **means}
        row |= {"train_accuracy": 100 * means["accuracy"], "train_cost_share": means["cost_share"]}
        row |= held.summary()
        row["loss"], row["held_loss"] = means["loss"], held.loss
        self.rows += 1
        self.world.lead(lambda: self.folder.add_metrics(row))
        self.reporter.row(row)
        if held.collapsed and self.config.network.routed and epoch + 1 == stage.epochs:
            self.reporter.warn(COLLAPSE)

    @property
    def _watched(self) -> str:
        return "holdout" if self.config.data.holdout else self.config.data.watch

    def _save(self, position: Position, step: Step) -> None:
        stage = self.stages[min(position.stage, len(self.stages) - 1)]
        self.world.each(partial(self._stop_if_not_finite, stage, position.epoch, step))
        checkpoint.save(self.folder.path / "checkpoints", position, self.model, step, self.controller)
        self.saved_at = time.monotonic()


COLLAPSE = (
    "the routing has collapsed: every image takes the same path, so this is a static network of fewer blocks. "
    "Raise --beta or --m-d, keep --paths noise-free, train longer, or ask for a budget between 0.3 and 0.9."
)


def join(parts: list[Evaluation], table: CostTable) -> Evaluation:
    """The evaluation of all images, of evaluations of some each."""
    paths = PathTable(*(torch.cat(column) for column in zip(*(part.paths for part in parts), strict=True)))
    loss = sum(part.loss * part.n for part in parts) / len(paths.label_T)
    return summarise(paths, table, loss=loss)
