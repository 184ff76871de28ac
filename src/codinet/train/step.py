"""One optimisation step on fixed buffers: views, forward, losses, backward, update, budget, sums.

Nothing here waits for the device, and no allocation depends on values there, so the same function runs eagerly and
inside a CUDA graph. Before each step the host sets `index_L` (the images in `data`), `image_L` (the same images in the
training split), `epoch`, `lr`, `decay_scale` and the controller's target. It reads `sums` when it needs figures.

In distributed training each process takes a shard of the images of a step. Means over the batch are means over the
shard, and the mean of the processes' gradients is that of the whole batch; diversity compares the images of all
processes. The sums and the controller cover all images and are the same in every process.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from codinet.config import ExtraConfig, LossConfig, RunConfig
from codinet.cost import CostTable
from codinet.data.augmentation import Augmentation
from codinet.data.batches import Resident
from codinet.methods import method_named
from codinet.methods.method import Method, PathBatch, PathLoss
from codinet.model import RoutedNetwork, RoutedStep, without_statistics
from codinet.records import RoutedOutput
from codinet.train.averaging import Average
from codinet.train.budget import BudgetController
from codinet.train.distributed import World
from codinet.train.optimizer import Optimizer
from codinet.train.stages import Stage
from codinet.train.teaching import Teacher, distillation

SUMS = (
    *("loss", "classification", "consistency", "diversity", "cost", "decay", "distillation"),
    *("gamma", "accuracy", "cost_share", "steps"),
)
_TERMS = SUMS[:7]
COST_SHARE = SUMS.index("cost_share")


LogitsFn = Callable[[torch.Tensor], torch.Tensor]  # from images to logits


def _unchanged(function: Any) -> Any:
    return function


class Speed(NamedTuple):
    """Replacements that make a step faster and change nothing else; none by default. See `accelerate`."""

    block: RoutedStep | None = None  # replaces `model.routed_step`
    compile: Callable[[Any], Any] = _unchanged  # for the parts before and after the blocks
    freeze: Callable[[RoutedNetwork, torch.Tensor], LogitsFn | None] | None = None  # a teacher as a function
    backward: Callable[[], AbstractContextManager[None]] = nullcontext  # around backward passes


@dataclass(frozen=True)
class Task:
    """What is trained on what: all that a step needs and that stays the same in every stage.

    Args:
        model: The network.
        data: The images that a step can index.
        table: The network's cost table.
        config: A resolved config.
        controller: Sets γ; None where γ is fixed or the network static.
        augmentation: How views of an image are made.
        amp: Whether to compute in bfloat16.
        world: The processes that train.
        teacher: The network to distil from.
        answers_NVK: What it answers to fixed views of the training images; None: it runs in every step.
    """

    model: RoutedNetwork
    data: Resident
    table: CostTable
    config: RunConfig
    augmentation: Augmentation
    controller: BudgetController | None = None
    amp: bool = False
    world: World = World()  # noqa: RUF009  # immutable
    teacher: Teacher | None = None
    answers_NVK: torch.Tensor | None = None


class Step:
    """The step of one stage."""

    def __init__(self, task: Task, stage: Stage, speed: Speed = Speed()) -> None:  # noqa: B008  # immutable
        model, data, config, world, teacher = task.model, task.data, task.config, task.world, task.teacher
        device = data.labels_N.device
        schedule, network = config.schedule, config.network
        assert schedule.batch is not None
        assert schedule.batch % world.size == 0
        self.task, self.stage, self.speed, self.world, self.device = task, stage, speed, world, device
        self.model, self.data = model, data
        self.controller = task.controller if stage.meets_budget else None
        self.method = method_named(config.method)
        self.losses, self.extra, self.views = config.losses, config.extra, task.augmentation.views
        self.path_losses = stage.path_losses and network.routed
        self.weights_N = task.table.loss_weights().to(device)
        self.run_share_N, self.base_share = share_of_blocks(task.table, device)

        if model.routers is not None:  # parameters that the network itself froze stay so
            model.routers.requires_grad_(stage.train_routers)
        self.parallel_model = world.data_parallel(model)
        self.average = Average(model, config.extra.ema) if config.extra.ema else None
        self.index_L = torch.zeros(schedule.batch // world.size, dtype=torch.long, device=device)
        assert len(self.index_L) % schedule.accumulate == 0
        self.part = len(self.index_L) // schedule.accumulate  # images that are processed together
        self.image_L = torch.zeros_like(self.index_L)
        self.epoch = torch.zeros((), dtype=torch.long, device=device)
        self.stem, self.inputs = speed.compile(model.stem), speed.compile(_inputs)
        self.look_up, self.teacher = speed.compile(_look_up), None
        if teacher and task.answers_NVK is None:
            shape = self.part * self.views, data.images_NCHW.shape[1], *task.augmentation.size
            self.teacher = teacher_function(teacher, speed, shape, device)
        # Communication between processes cannot be compiled.
        self.loss_of = speed.compile(loss_of) if world.alone else loss_of
        self.lr = torch.zeros((), device=device)
        self.decay_scale = torch.ones((), device=device)
        self.gamma = torch.full((), self.losses.gamma or 0.0, device=device)  # used without a controller
        self.optimizer = Optimizer(model, schedule, self.lr)
        self.trained = self.optimizer.trained
        self.sums = torch.zeros(len(SUMS), device=device)
        self.nonfinite = torch.full((2,), -1.0, device=device)  # step and term of the first loss that is not finite

    def optimizer_state(self) -> dict[str, torch.Tensor]:
        """The tensors of the optimiser, by kind and name of the parameter."""
        return self.optimizer.state()

    def carried(self) -> dict[str, torch.Tensor]:
        """The tensors that a step for views of another size takes over."""
        return self.optimizer_state() | {f"average.{name}": tensor for name, tensor in self.averaged().items()}

    def averaged(self) -> dict[str, torch.Tensor]:
        """The state of the averaged network; empty if there is none."""
        return {} if self.average is None else self.average.state()

    @property
    def eval_model(self) -> RoutedNetwork:
        """The network to evaluate: the moving average if there is one, else the trained network."""
        return self.model if self.average is None else self.average.model

    def __call__(self) -> None:
        gamma = self.controller.gamma() if self.controller else self.gamma
        self.optimizer.zero_grad()
        starts = range(0, len(self.index_L), self.part)
        found = []
        for start in starts:
            # Processes exchange the sum of the gradients once, with the last part.
            with self.world.keep_gradients(self.parallel_model) if start != starts[-1] else nullcontext():
                found.append(self._add_gradients(slice(start, start + self.part), gamma))
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        with torch.no_grad():
            figures = self.world.mean_(found[0] if len(found) == 1 else torch.stack(found).mean(dim=0))
            figures[COST_SHARE] += self.base_share
            if self.path_losses and self.controller:
                self.controller.observe(figures[COST_SHARE])
            self._add(figures)

    def _add_gradients(self, part: slice, gamma: torch.Tensor) -> torch.Tensor:
        """Add the gradients of a part of the images, as its share of the step's mean; return the figures of `SUMS`."""
        task = self.task
        inputs_BCHW, labels_B = self.inputs(
            task.augmentation, self.data, self.index_L[part], self.image_L[part], self.epoch
        )
        with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False) if task.amp else nullcontext():
            teacher_BK = self._teacher_logits(inputs_BCHW, self.image_L[part])
            greedy = self._greedy_output(inputs_BCHW) if self.stage.greedy else None
            output = self.parallel_model(inputs_BCHW, decide=self.stage.decide, step=self.speed.block, stem=self.stem)
        loss, figures = self.loss_of(
            output,
            labels_B,
            views=self.views,
            losses=self.losses,
            extra=self.extra,
            gamma=gamma * self.path_losses,
            decay_scale=self.decay_scale,
            weights_N=self.weights_N,
            run_share_N=self.run_share_N,
            base_share=self.base_share,
            gather_rows=self.world.gather_rows if self.path_losses else None,
            teacher_BK=teacher_BK,
            method=self.method,
            greedy=greedy,
        )
        with self.speed.backward():
            (loss if self.part == len(self.index_L) else loss * (self.part / len(self.index_L))).backward()
        return figures

    @torch.no_grad()
    def _teacher_logits(self, inputs_BCHW: torch.Tensor, image_L: torch.Tensor) -> torch.Tensor | None:
        if self.task.answers_NVK is not None:
            return self.look_up(self.task.augmentation, self.task.answers_NVK, image_L, self.epoch)
        return None if self.teacher is None else self.teacher(inputs_BCHW)

    @torch.no_grad()
    def _greedy_output(self, inputs_BCHW: torch.Tensor) -> RoutedOutput:
        """What the network answers with hard decisions, in the mode in which the stage trains it.

        Parts that are trained normalise by the batch, as for sampled decisions. Their running statistics are those of
        sampled paths, with which hard decisions can be at chance. They stay as they are.
        """
        with without_statistics(self.model):
            return self.model(inputs_BCHW, step=self.speed.block)

    def _add(self, figures: torch.Tensor) -> None:
        finite = figures[: len(_TERMS)].isfinite()
        # The total is first in the list, but not finite because a term is not: name that term.
        culprit = torch.where(finite[1:].all(), 0, 1 + finite[1:].int().argmin()).float()
        now = torch.stack([self.sums[-1], culprit])
        first = (~finite.all()) & (self.nonfinite[0] < 0)
        self.nonfinite.copy_(torch.where(first, now, self.nonfinite))
        self.sums.add_(figures)

    def first_nonfinite(self) -> tuple[int, str] | None:
        """Step since the sums were cleared and name of the first loss that was not finite (waits for the device)."""
        step, term = self.nonfinite.tolist()
        return None if step < 0 else (int(step), _TERMS[int(term)])

    def means(self) -> dict[str, float]:
        """Averages over the steps since the sums were cleared (waits for the device)."""
        values = self.sums.tolist()
        steps = max(values[-1], 1.0)
        return {name: value / steps for name, value in zip(SUMS[:-1], values[:-1], strict=True)}


def teacher_function(teacher: Teacher, speed: Speed, shape_BCHW: tuple[int, ...], device: torch.device) -> LogitsFn:
    """Return a function from normalised views of this shape to the teacher's logits."""
    model, fast = teacher.model, None
    if speed.freeze is not None:
        own = torch.Generator(device).manual_seed(0)  # leaves the random numbers of training unchanged
        fast = speed.freeze(model, torch.randn(shape_BCHW, generator=own, device=device))
    if fast is not None:
        return lambda inputs_BCHW: fast(teacher.prepare(inputs_BCHW))
    stem = speed.compile(model.stem)
    return lambda inputs_BCHW: model(teacher.prepare(inputs_BCHW), step=speed.block, stem=stem).logits_BK


def _look_up(
    augmentation: Augmentation, answers_NVK: torch.Tensor, image_L: torch.Tensor, epoch: torch.Tensor
) -> torch.Tensor:
    """The teacher's logits for the views of an epoch, up to a constant that is added to all of a view."""
    return answers_NVK[image_L[:, None], augmentation.numbers(epoch, image_L)].flatten(0, 1).float()


def _inputs(
    augmentation: Augmentation, data: Resident, index_L: torch.Tensor, image_L: torch.Tensor, epoch: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of the images with these indices, and a label for each view."""
    images, labels_L = data.take(index_L)
    views_BCHW = augmentation.make_views(images, image_L, epoch, ready=data.views is not None)
    return views_BCHW, labels_L.repeat_interleave(augmentation.views)


def loss_of(
    output: RoutedOutput,
    labels_B: torch.Tensor,
    *,
    views: int,
    losses: LossConfig,
    extra: ExtraConfig,
    gamma: torch.Tensor,
    decay_scale: torch.Tensor,
    weights_N: torch.Tensor,
    run_share_N: torch.Tensor,
    base_share: float,
    gather_rows: Callable[[torch.Tensor], torch.Tensor] | None,
    teacher_BK: torch.Tensor | None,
    method: Method,
    greedy: RoutedOutput | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the loss of this process's images.

    Args:
        output: The network's output for all views; the views of an image are next to each other.
        labels_B: A label for each view.
        views: Views per image, M.
        losses: Weights and margins.
        extra: Label smoothing and distillation.
        gamma: Weight of the cost loss.
        decay_scale: Factor of the margins' decay; see `stages.decay_scale`.
        weights_N: Weights of the blocks in the cost loss.
        run_share_N: What each block adds to the cost share.
        base_share: The cost share with every block skipped.
        gather_rows: Gathers the paths of all processes; None switches the losses on paths off.
        teacher_BK: The teacher's logits.
        method: The method, which has the losses on paths.
        greedy: The output with hard decisions, if the method asks for it.

    Returns:
        The loss, and the figures named by `SUMS`.
    """
    zero = torch.zeros_like(gamma)
    classification = F.cross_entropy(output.logits_BK, labels_B, label_smoothing=extra.label_smoothing)
    loss, distilled = classification, zero
    if teacher_BK is not None:
        assert extra.distill is not None
        distilled = distillation(output.logits_BK, teacher_BK, temperature=extra.distill_temperature)
        loss = (1 - extra.distill) * classification + extra.distill * distilled
    found = PathLoss(loss, zero, zero, zero, zero)
    if gather_rows is not None:
        batch = PathBatch(
            *(output, labels_B, views, losses, gamma, decay_scale),
            *(weights_N, run_share_N, base_share, gather_rows, greedy),
        )
        found = method.loss(loss, batch)
    loss, *terms, decay = found
    hard_BN = (output.scores_BN2[..., 1] >= output.scores_BN2[..., 0]).float()
    cost_share = (hard_BN @ run_share_N).mean()
    hits = (output.logits_BK.argmax(dim=1) == labels_B).float().mean()
    figures = [loss, classification, *terms, decay, distilled, gamma, hits, cost_share, torch.ones_like(loss)]
    return loss, torch.stack([figure.detach() for figure in figures])


def share_of_blocks(table: CostTable, device: torch.device) -> tuple[torch.Tensor, float]:
    """Return what running each block adds to the cost share, and the cost share with every block skipped."""
    blocks = len(table.run_N)
    none = torch.zeros(1, blocks)
    each = table.share(torch.eye(blocks)) - table.share(none)
    return each.float().to(device), table.share(none).item()
