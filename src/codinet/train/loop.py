"""The training loop: stages, epochs and steps; metrics, checkpoints and warnings; the evaluation at the end.

In distributed training all processes take every step together, each evaluates its shard of the images, and all get the
same figures, so they hold the same network and make the same decisions. Only rank 0 reads and writes the run folder and
reports.
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
from codinet.data.augmentation import Augmentation
from codinet.data.batches import Resident, image_order
from codinet.data.dataset import Dataset
from codinet.environment import describe, is_out_of_memory
from codinet.errors import UserError
from codinet.evaluate import Evaluation
from codinet.methods import method_named
from codinet.methods.method import StageStart
from codinet.runs import DATA_WAIT, RunFolder, RunWriter
from codinet.specs import library_versions
from codinet.thresholds import MISSED
from codinet.train import checkpoint
from codinet.train.accelerate import BuiltStep, Execution, ask_teacher, build_step
from codinet.train.budget import estimated_cost
from codinet.train.checkpoint import Checkpoint, Position, RunIdentity
from codinet.train.distributed import World, seed_apart
from codinet.train.reporting import Reporter
from codinet.train.setup import (
    CHECKPOINTS,
    LOADER,
    NEW_CLASSIFIER,
    claimed_folder,
    identify,
    loader_matters,
    loader_of,
    prepare,
    read_sources,
)
from codinet.train.splits import SplitEvaluator, augmentation_of
from codinet.train.stages import Stage, decay_scale, path_progress, view_side
from codinet.train.step import Step, Task, share_of_blocks
from codinet.train.waiting import DataWait

SAVE_SECONDS = 300  # within long epochs, write a checkpoint at least this often
PAUSE_SECONDS = 5  # after short epochs, write none until the last one is this old
CHOICE_BATCHES = 2  # of the evaluation split, on which a method measures the loss before a stage
ASK_EVERY = 16  # steps after which several processes ask rank 0 whether to write one

COLLAPSED = (
    "the routing has collapsed: every image takes the same path, so this is a static network with fewer blocks. "
)
COLLAPSE = (
    f"{COLLAPSED}Raise --beta, --m-d or --score-decay, keep --paths noise-free, train longer, or use a budget between "
    "0.3 and 0.9."
)


def train(
    out: Path,
    config: RunConfig,
    dataset: Dataset,
    *,
    device: torch.device,
    resume: bool = False,
    execution: Execution | None = None,
    reporter: Reporter | None = None,
    world: World | None = None,
) -> tuple[RunFolder, Evaluation]:
    """Train a network to the end, or continue an interrupted run, and evaluate it on the test set.

    Args:
        out: The run folder to write.
        config: A resolved config.
        dataset: The data set.
        device: Where to train.
        resume: Continue the run in `out` if there is one.
        execution: How to execute it: compilation, precision, kernels, loader. The defaults depend on the device.
        reporter: Gets progress and warnings.
        world: The processes that train. Each of them calls this function with the same arguments.

    Returns:
        The finished run folder and the evaluation.
    """
    world = world or World()
    with reporter if reporter and world.is_rank0 else Reporter() as active:
        try:
            return _Training(out, config, dataset, device, execution or Execution(), active, world, resume=resume).run()
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise UserError(
                    f"{device} has too little memory for steps of {config.schedule.batch} images in "
                    f"{config.schedule.views} views; start again with a smaller --batch and another --out."
                ) from error
            raise


class _Training:
    folder: RunWriter  # set when the folder is claimed
    identity: RunIdentity
    rows: int  # of metrics
    saved_at: float  # time of the last checkpoint

    def __init__(
        self,
        out: Path,
        config: RunConfig,
        dataset: Dataset,
        device: torch.device,
        execution: Execution,
        reporter: Reporter,
        world: World,
        *,
        resume: bool,
    ) -> None:
        self.out, self.dataset, self.device, self.resume = out, dataset, device, resume
        self.reporter, self.world = reporter, world
        self.skipped: set[str] = set()  # damaged image files that were reported
        self.answers: dict[tuple[int, int], torch.Tensor] = {}  # of the teacher to fixed views, by their size
        self.execution = execution = execution.resolve(device, world)
        self.sources = world.on_rank0(lambda: read_sources(config, out, resume=resume))
        self.config = config = self.sources.record_in(config)
        self.method = method_named(config.method)
        loader = world.on_rank0(lambda: loader_of(out, config, dataset, execution.loader, resume=resume))
        # Before the folder is created, so that settings that cannot work leave no folder behind.
        self.setup = setup = world.on_every_rank(
            lambda: prepare(
                config,
                dataset,
                self.sources,
                device,
                world,
                sync_bn=execution.sync_bn,
                loader=loader,
                resume=resume,
            )
        )
        if world.size > 1:
            seed_apart(config.seed, world.rank)
        self.model, self.splits, self.controller = setup.model, setup.splits, setup.controller
        self.stages = setup.stages
        self.frozen = {name for name, parameter in self.model.named_parameters() if not parameter.requires_grad}
        self.evaluator = SplitEvaluator(setup.table, device, world)
        augmentation = augmentation_of(config, dataset)
        self.task = Task(
            self.model,
            self._window(augmentation),
            setup.table,
            config,
            augmentation,
            self.controller,
            amp=bool(execution.amp),
            world=world,
            teacher=setup.teacher,
        )

    def _window(self, augmentation: Augmentation) -> Resident:
        assert self.config.schedule.batch is not None
        return self.splits.train.window(self.config.schedule.batch // self.world.size, augmentation)

    def run(self) -> tuple[RunFolder, Evaluation]:
        with ExitStack() as claim:
            self.folder = self.world.on_rank0(lambda: claim.enter_context(self._claim()))
            self.identity = identify(self.folder.config, self.folder.data)
            self.world.on_every_rank(self._require_same_data)
            if not self.world.on_rank0(lambda: self.folder.finished):
                return self._train()
        self.model.load_state_dict(self.world.on_rank0(self._finished_weights))
        self.reporter.warn(f"The run in {self.folder.path} is already finished. These are its results.")
        return self.folder, self.evaluator.evaluate(self.model, self.splits.test)

    def _finished_weights(self) -> dict[str, torch.Tensor]:
        """The weights of a finished run. If their file is missing or damaged, the last checkpoint restores it."""
        folder = self.folder
        try:
            return folder.load_model().state_dict()
        except UserError as error:
            found = checkpoint.latest(folder.path / CHECKPOINTS, lambda _warning: None, self.identity)
            if found is None or found.position.stage < len(self.stages):
                raise UserError(
                    f"The run in {folder.path} is finished, but {folder.weights_file.name} is missing or damaged, and "
                    "so is the last checkpoint; restore one of them, or train again with another --out."
                ) from error
        checkpoint.restore(found, self.model, self.controller)
        folder.save_weights(self.model)
        self.reporter.warn(f"{folder.weights_file} was missing or damaged; the last checkpoint restored it.")
        return self.model.state_dict()

    def _claim(self) -> AbstractContextManager[RunWriter]:
        environment = describe(self.device) | library_versions(self.config.network.arch)
        environment |= {} if self.world.size == 1 else {"processes": self.world.size}
        environment |= {NEW_CLASSIFIER: True} if self.setup.new_classifier else {}
        if loader_matters(self.config, self.dataset):
            environment[LOADER] = "resident" if isinstance(self.splits.train, Resident) else "stream"
        groups = self.model.groups
        return claimed_folder(self.out, self.config, self.setup.data, environment, groups, resume=self.resume)

    def _require_same_data(self) -> None:
        if self.folder.data.sha256 != self.setup.data.sha256:
            raise UserError(
                f"Process {self.world.rank} found other data for {self.setup.data.name} than process 0; use the same "
                "data on all machines."
            )

    def _train(self) -> tuple[RunFolder, Evaluation]:
        found = self.world.on_rank0(self._find_checkpoint)
        start = found.position
        if found.tensors:
            checkpoint.restore(found, self.model, self.controller)
        else:
            self.sources.require_initial()
            if self.setup.missing is not None:
                raise UserError(self.setup.missing)
        self.sources.teacher.require()
        self.rows = start.rows
        self._announce(start)
        if self.setup.reinitialised and not found.tensors:
            parts = " and ".join(self.setup.reinitialised)
            new = (
                "does not fit; initialising a new one" if parts == "classifier" else "do not fit; initialising new ones"
            )
            extra = self.config.extra
            self.reporter.warn(f"The {parts} of {extra.start or extra.weights or 'the published weights'} {new}.")
        if found.tensors and found.processes != self.world.size:
            self.reporter.warn(
                f"The number of processes changed from {found.processes} to {self.world.size}; random views and noise "
                "differ from here on."
            )
        for number in range(start.stage, len(self.stages)):
            self._run_stage(number, found if number == start.stage else Checkpoint(Position(rows=self.rows)))
        evaluation = self.evaluator.evaluate(self.model, self.splits.test)
        self.world.on_rank0(lambda: self.folder.save_results(self.model, evaluation))
        self._warn_if_missed(evaluation)
        return self.folder, evaluation

    def _find_checkpoint(self) -> Checkpoint:
        checkpoints = self.folder.path / CHECKPOINTS
        for place in (self.folder.path, checkpoints):
            files.remove_leftovers(place)
        found = checkpoint.latest(checkpoints, self.reporter.warn, self.identity) or Checkpoint()
        rows = self.folder.metrics()[: found.position.rows]
        if lost := found.position.rows - len(rows):
            file = self.folder.metrics_file
            what = "one epoch is" if lost == 1 else f"{lost} epochs are"
            self.reporter.warn(f"{file} was damaged; {what} missing from it, and the run continues.")
            found.position = replace(found.position, rows=len(rows))
        self.folder.keep_metrics(rows)
        return found

    def _announce(self, start: Position) -> None:
        total = sum(stage.epochs for stage in self.stages) * self.splits.steps
        epochs = sum(stage.epochs for stage in self.stages[: start.stage]) + start.epoch
        done = epochs * self.splits.steps + start.step
        verb = "Resuming" if done else "Training"
        budget = f" to {self.controller.budget:g} of its static cost" if self.controller else ""
        data, (_, height, width) = self.dataset, self.dataset.image_shape
        crop = "" if data.crop == 1 else f", crop {data.crop:g}"
        crop += ", views of random parts" if self.task.augmentation.min_area else ""
        if (first := self._view_size(0, 0)) != (height, width):
            crop += f", at first {first[0]}×{first[1]}"
        self.reporter.begin(
            f"{verb} {self.config.network.arch} on {data.name}{budget}: {len(data.train):,} training and "
            f"{len(data.test):,} test images, {len(data.classes)} classes, {height}×{width}{crop}\n"
            f"{self.setup.table.static_macs / 1e6:.2f} M MACs static, {total} steps in {self.folder.path}",
            steps=total,
            done=done,
            evaluation=self._evaluation_cost(),
        )
        self._report_damaged()

    def _evaluation_cost(self) -> float:
        """The images of an epoch's evaluations relative to those of its steps, where a backward pass counts twice."""
        splits, schedule = self.splits, self.config.schedule
        watched = len(splits.watched)
        calibration = len(splits.calibration) if self.controller and splits.calibration is not splits.watched else 0
        return (watched + calibration) / (3 * len(splits.train) * schedule.views)

    def _run_stage(self, number: int, start: Checkpoint) -> None:
        stage = self.stages[number]
        if not (start.position.epoch or start.position.step):
            self._begin_stage(stage)
        self._choose_trained(stage)
        built = self._build_step(number, start.position.epoch)
        if start.tensors:
            checkpoint.restore_step(start, built.step, seed=self.config.seed)
        elif number == 0 and (self.sources.given_initial or self.config.extra.pretrained):
            self._save(Position(), built.step)  # from here on, the start network is not needed any more
        self.saved_at = time.monotonic()
        for epoch in range(start.position.epoch, stage.epochs):
            first = start.position.step if epoch == start.position.epoch else 0
            if built.step.task.augmentation.size != self._view_size(number, epoch):
                carried = {name: tensor.clone() for name, tensor in built.step.carried().items()}
                del built  # two steps of one network must not both act on its gradients
                built = self._build_step(number, epoch)
                for name, tensor in built.step.carried().items():
                    tensor.copy_(carried[name])
            for network in {built.step.eval_model, self.model}:
                if network.routers is not None:
                    self.method.begin_epoch(stage, epoch, network.routers)
            waited = self._run_epoch(number, epoch, first, built)
            self._end_epoch(number, epoch, built.step, waited)
            if epoch + 1 == stage.epochs:
                self._save(Position(number + 1, 0, 0, self.rows), built.step)
            elif self._older_than(PAUSE_SECONDS):
                self._save(Position(number, epoch + 1, 0, self.rows), built.step)

    def _build_step(self, number: int, epoch: int) -> BuiltStep:
        """The step of a stage, for views of the size of an epoch."""
        task = replace(self.task, augmentation=replace(self.task.augmentation, size=self._view_size(number, epoch)))
        if task.augmentation.fixed:
            task = replace(task, answers_NVK=self._ask_teacher(task))
        task = replace(task, data=self._window(task.augmentation))
        built = build_step(task, self.stages[number], self.execution, self.reporter.warn)
        self.execution = built.execution
        return built

    def _ask_teacher(self, task: Task) -> torch.Tensor:
        """The teacher's answers to fixed views. They are kept while the views have the same size."""
        size = task.augmentation.size
        if size not in self.answers:
            self.answers.clear()
            images = len(self.splits.train)
            self.reporter.note(f"Asking the teacher about {task.augmentation.fixed} views of {images:,} images.")
            self.answers[size] = ask_teacher(task, self.splits.train, self.execution)
        return self.answers[size]

    def _view_size(self, number: int, epoch: int) -> tuple[int, int]:
        height, width = self.task.augmentation.size
        epoch += sum(stage.epochs for stage in self.stages[:number])
        return view_side(self.config, height, epoch), view_side(self.config, width, epoch)

    def _begin_stage(self, stage: Stage) -> None:
        """Let the method set up the routers, with the loss on a few calibration images as a measure."""
        if self.model.routers is None:
            return

        def measure_loss() -> float:
            half = bool(self.execution.amp)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
                return self.evaluator.evaluate(self.model, self.splits.calibration, most=CHOICE_BATCHES).loss

        shares = share_of_blocks(self.setup.table, torch.device("cpu"))
        self.method.begin_stage(stage, StageStart(self.model.routers, *shares, self.config.losses.budget, measure_loss))

    def _choose_trained(self, stage: Stage) -> None:
        """Put the parts that a stage trains into training mode, and the rest into evaluation mode without gradients."""
        self.model.train(stage.train_backbone)
        if self.model.routers is not None:
            self.model.routers.train(stage.train_routers)
        for name, parameter in self.model.named_parameters():
            if not name.startswith("routers.") and name not in self.frozen:
                parameter.requires_grad_(stage.train_backbone)

    def _run_epoch(self, number: int, epoch: int, first: int, built: BuiltStep) -> float:
        """Take the steps of an epoch; return the fraction of their time that this process waited for images."""
        step, stage, steps = built.step, self.stages[number], self.splits.steps
        size = len(step.index_L)
        unique = number * 100_000 + epoch  # over both stages
        images, seed = self.splits.train_images, self.config.seed
        order = image_order(images, seed=seed, epoch=unique, batch=self.world.size * size)
        batches = order.unflatten(0, (steps, self.world.size, size))[:, self.world.rank]
        step.epoch.fill_(unique)
        wait = DataWait.on(self.device)
        for i, index_L in enumerate(wait.over(self.splits.train.deliver(batches[first:], unique)), start=first):
            done = epoch + i / steps
            step.index_L.copy_(index_L)
            step.image_L.copy_(index_L if isinstance(self.splits.train, Resident) else batches[i])
            step.lr.fill_(stage.lr_at(done))
            step.decay_scale.fill_(decay_scale(done / stage.epochs))
            if self.controller and stage.has_target:
                self.controller.aim(path_progress(self.stages, number, done) if stage.ramp else 1.0)
            built.run()
            self.reporter.advance()
            if i + 1 < steps and self._is_time_to_save(i + 1):
                self._save(Position(number, epoch, i + 1, self.rows), step)
        return wait.fraction()  # the device must be done now in any case: the epoch is evaluated next

    def _end_epoch(self, number: int, epoch: int, step: Step, waited: float) -> None:
        """Average what processes hold apart, meet the budget, evaluate and log."""
        stage, controller = self.stages[number], self.controller if self.stages[number].meets_budget else None
        self.world.average_statistics(self.model)
        if step.average:
            self.world.average_statistics(step.average.model)
        self.world.on_every_rank(partial(self._stop_if_not_finite, stage, epoch, step))
        last = epoch + 1 == stage.epochs
        if step.average and last:
            step.average.adopt()
        networks, splits = {step.eval_model, self.model}, self.splits
        # In full precision an evaluation takes a GPU as long as a short epoch; only the last one is reported.
        half = bool(self.execution.amp) and not last
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            if controller and (not stage.train_routers or last):
                controller.calibrate(networks, self.evaluator.cost_at(step.eval_model, splits.calibration))
            watched = self.evaluator.evaluate(step.eval_model, splits.watched)
            self._log(stage, epoch, step, watched, waited)
            if controller and stage.train_routers and not last:
                # Test images must not influence the training, even if they are watched.
                calibrated = splits.watched is splits.calibration
                plain = watched if calibrated else self.evaluator.evaluate(step.eval_model, splits.calibration)
                cost_at = estimated_cost(self.setup.table, plain.paths.run_probability_TN)
                progress = path_progress(self.stages, number, epoch + 1)
                controller.settle(networks, plain.cost_share, cost_at, progress=progress)
        step.sums.zero_()
        self._report_damaged()

    def _report_damaged(self) -> None:
        """Name the image files that were skipped since the last report, in any process."""
        if self.dataset.damaged is None:
            return
        found = {name for names in self.world.gather(self.dataset.damaged.names()) for name in names}
        new = sorted(found - self.skipped)
        self.skipped |= found
        if new:
            more = f" and {len(new) - 5} more" if len(new) > 5 else ""
            what = "1 damaged image file is" if len(new) == 1 else f"{len(new)} damaged image files are"
            self.reporter.warn(f"{what} skipped: {', '.join(new[:5])}{more}.")

    def _log(self, stage: Stage, epoch: int, step: Step, evaluation: Evaluation, waited: float) -> None:
        means = step.means()
        watched = "holdout" if self.config.data.holdout else self.config.data.watch
        row: dict[str, Any] = {"stage": stage.name, "epoch": epoch + 1, "watched": watched, **means}
        row |= {"train_accuracy": 100 * means["accuracy"], "train_cost_share": means["cost_share"]}
        row |= evaluation.summary()
        row["loss"], row["held_loss"] = means["loss"], evaluation.loss
        row[DATA_WAIT] = round(max(self.world.gather(waited)), 4)
        self.rows += 1
        self.world.on_rank0(lambda: self.folder.add_metrics(row))
        self.reporter.row(row)
        meant = self.method.one_path or not (self.config.network.routed and stage.meets_budget)
        if evaluation.collapsed and not meant and epoch + 1 == stage.epochs:
            other = f"{COLLAPSED}Train longer, or use a budget between 0.3 and 0.9."
            self.reporter.warn(COLLAPSE if "beta" in self.method.settings else other)

    def _stop_if_not_finite(self, stage: Stage, epoch: int, step: Step) -> None:
        found = step.first_nonfinite()
        if found is not None:
            term = "total" if found[1] == "loss" else found[1]
            raise UserError(
                f"The {term} loss was not finite at step {found[0] + 1} of epoch {epoch + 1} of the {stage.name} "
                "stage; start again with a lower --lr and another --out."
            )
        # The last step may have made weights infinite without a sign of it in its own loss.
        tensors = [*self.model.state_dict().values(), *step.averaged().values()]
        if not torch.stack([tensor.isfinite().all() for tensor in tensors]).all():
            raise UserError(
                f"The weights were not finite in epoch {epoch + 1} of the {stage.name} stage; start again with a lower "
                "--lr and another --out."
            )

    def _warn_if_missed(self, evaluation: Evaluation) -> None:
        if self.controller and abs(evaluation.cost_share - self.controller.budget) > MISSED:
            more = "Raise --beta, --m-d or --score-decay, train" if "beta" in self.method.settings else "Train"
            why = (
                "With few paths, no shift of the routers gives every cost; with few calibration images, test images "
                f"may take other paths. {more} longer, or use more images."
            )
            if self.method.one_path:
                why = "All images run the same blocks, and no set of blocks costs closer to it. Use another budget."
            self.reporter.warn(
                f"Test images cost {evaluation.cost_share:.3f} of the static network, and the budget is "
                f"{self.controller.budget:g}. {why}"
            )

    def _is_time_to_save(self, steps: int) -> bool:
        if not self.world.alone and steps % ASK_EVERY:
            return False  # clocks differ, so rank 0 decides; asking it makes the others wait
        return self._older_than(SAVE_SECONDS)

    def _older_than(self, seconds: float) -> bool:
        """Whether the last checkpoint is older than that, by the clock of rank 0."""
        return self.world.on_rank0(lambda: time.monotonic() - self.saved_at > seconds)

    def _save(self, position: Position, step: Step) -> None:
        stage = self.stages[min(position.stage, len(self.stages) - 1)]
        self.world.on_every_rank(partial(self._stop_if_not_finite, stage, position.epoch, step))
        checkpoint.save(self.folder.path / CHECKPOINTS, position, self.model, step, self.controller, self.identity)
        self.saved_at = time.monotonic()
