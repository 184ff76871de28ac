"""One optimisation step on fixed buffers: views, forward, losses, backward, update, budget, sums.

Nothing here waits for the device, and no allocation depends on values there, so the same function runs eagerly and
inside a CUDA graph. The host sets `index_L`, `lr`, `grip` and the controller's target before each step, and reads
`sums` when it needs figures.

In distributed training each process takes its share of the images of a step. Means over the batch are means over the
share, and the mean of the processes' gradients is that of the whole batch; diversity compares the images of all
processes. The sums and the controller cover all images and are the same in every process.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from codinet.config import ExtraConfig, LossConfig, RunConfig
from codinet.cost import CostTable
from codinet.data.resident import Resident
from codinet.data.views import random_views
from codinet.losses import Terms, consistency, diversity, expected_cost, score_decay, total
from codinet.model import RoutedNetwork, RoutedStep, train_only
from codinet.records import RoutedOutput
from codinet.relaxation import run_probability
from codinet.train.asking import Ask
from codinet.train.averaging import Average
from codinet.train.budget import BudgetController
from codinet.train.distillation import Teacher, distillation
from codinet.train.distributed import World
from codinet.train.stages import Stage

SUMS = (
    *("loss", "classification", "consistency", "diversity", "cost", "decay", "distillation"),
    *("gamma", "accuracy", "cost_share", "steps"),
)
_TERMS = SUMS[:7]
COST_SHARE = SUMS.index("cost_share")


def _as_it_is(function: Any) -> Any:
    return function


class Speed(NamedTuple):
    """Replacements that make a step faster and change nothing else; none by default. See `accelerate`."""

    block: RoutedStep | None = None  # replaces `model.routed_step`
    compile: Callable[[Any], Any] = _as_it_is  # for the parts before and after the blocks
    ask: Callable[[RoutedNetwork, torch.Tensor], Ask | None] | None = None  # makes a teacher for such images


class Step:
    """The step of one stage."""

    def __init__(
        self,
        model: RoutedNetwork,
        data: Resident,
        table: CostTable,
        config: RunConfig,
        stage: Stage,
        controller: BudgetController | None,
        *,
        pad: int,
        flip: bool,
        amp: bool,
        speed: Speed = Speed(),  # noqa: B008  # never changes
        world: World | None = None,
        teacher: Teacher | None = None,
    ) -> None:
        device = data.labels_N.device
        schedule, network = config.schedule, config.network
        assert schedule.batch is not None
        self.world = world or World()
        assert schedule.batch % self.world.size == 0
        self.model, self.data, self.stage, self.controller = model, data, stage, controller
        self.losses, self.extra, self.views = config.losses, config.extra, schedule.views
        self.acting = stage.path_losses and network.routed
        self.pad, self.flip, self.amp, self.device = pad, flip, amp, device
        self.weights_N = table.loss_weights().to(device)
        self.run_share_N, self.base_share = share_of_blocks(table, device)

        train_only(model, routers=stage.train_routers, backbone=True)
        self.shared = self.world.share(model)
        self.average = Average(model, config.extra.ema) if config.extra.ema else None
        self.index_L = torch.zeros(schedule.batch // self.world.size, dtype=torch.long, device=device)
        self.speed, self.stem, self.inputs = speed, speed.compile(model.stem), speed.compile(_inputs)
        self.ask = self._make_ask(teacher) if teacher else None
        # Communication between processes cannot be compiled.
        self.loss_of = speed.compile(loss_of) if self.world.alone else loss_of
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.lr = torch.zeros((), device=device)
        self.grip = torch.ones((), device=device)
        self.gamma = torch.full((), self.losses.gamma or 0.0, device=device)  # where no controller sets it
        self.optimizer = torch.optim.SGD(
            self.trained.values(),
            lr=self.lr,
            momentum=schedule.momentum,
            weight_decay=schedule.weight_decay,
            fused=device.type in ("cpu", "cuda"),
        )
        for parameter in self.trained.values():
            # Made here and not by the first step, so that a graph and a checkpoint find them.
            self.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        self.sums = torch.zeros(len(SUMS), device=device)
        self.bad = torch.full((2,), -1.0, device=device)  # step and term of the first loss that is not finite

    def momentum(self) -> dict[str, torch.Tensor]:
        """SGD's buffers, by the names of the parameters."""
        return {name: self.optimizer.state[p]["momentum_buffer"] for name, p in self.trained.items()}

    def averaged(self) -> dict[str, torch.Tensor]:
        """The state of the averaged network; empty if there is none."""
        return {} if self.average is None else self.average.state()

    @property
    def judged(self) -> RoutedNetwork:
        """The network that is evaluated: the averaged one, if there is one."""
        return self.model if self.average is None else self.average.model

    def __call__(self) -> None:
        inputs_BCHW, labels_B = self.inputs(
            self.data, self.index_L, self.views, pad=self.pad, flip=self.flip, blank=self.extra.cutout
        )
        with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False) if self.amp else nullcontext():
            taught_BK = self._ask_teacher(inputs_BCHW)
            output = self.shared(inputs_BCHW, decide=self.stage.decide, step=self.speed.block, stem=self.stem)
        gamma = self.controller.gamma() if self.controller else self.gamma
        loss, mine = self.loss_of(
            output,
            labels_B,
            views=self.views,
            losses=self.losses,
            extra=self.extra,
            gamma=gamma * self.acting,
            grip=self.grip,
            weights_N=self.weights_N,
            run_share_N=self.run_share_N,
            rows=self.world.rows if self.acting else None,
            taught_BK=taught_BK,
        )
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        with torch.no_grad():
            figures = self.world.mean_(mine)
            figures[COST_SHARE] += self.base_share
            if self.acting and self.controller:
                self.controller.observe(figures[COST_SHARE])
            self._note(figures)

    @torch.no_grad()
    def _ask_teacher(self, inputs_BCHW: torch.Tensor) -> torch.Tensor | None:
        return None if self.ask is None else self.ask(inputs_BCHW)

    def _make_ask(self, teacher: Teacher) -> Ask:
        """The teacher's logits for the images of a step, the fastest way there is."""
        model, fast = teacher.model, None
        if self.speed.ask is not None:
            own = torch.Generator(self.device).manual_seed(0)  # leaves the random numbers of training unchanged
            shape = len(self.index_L) * self.views, *self.data.images_NCHW.shape[1:]
            fast = self.speed.ask(model, torch.randn(shape, generator=own, device=self.device))
        if fast is not None:
            return lambda inputs_BCHW: fast(teacher.prepare(inputs_BCHW))
        stem = self.speed.compile(model.stem)
        return lambda inputs_BCHW: model(teacher.prepare(inputs_BCHW), step=self.speed.block, stem=stem).logits_BK

    def _note(self, figures: torch.Tensor) -> None:
        finite = figures[: len(_TERMS)].isfinite()
        # The total comes first but is not finite because a term is not: name the term if there is one.
        culprit = torch.where(finite[1:].all(), 0, 1 + finite[1:].int().argmin()).float()
        now = torch.stack([self.sums[-1], culprit])
        first = (~finite.all()) & (self.bad[0] < 0)
        self.bad.copy_(torch.where(first, now, self.bad))
        self.sums.add_(figures)

    def first_bad(self) -> tuple[int, str] | None:
        """Step since the sums were cleared and name of the first loss that was not finite (waits for the device)."""
        step, term = self.bad.tolist()
        return None if step < 0 else (int(step), _TERMS[int(term)])

    def means(self) -> dict[str, float]:
        """Averages over the steps since the sums were cleared (waits for the device)."""
        values = self.sums.tolist()
        steps = max(values[-1], 1.0)
        return {name: value / steps for name, value in zip(SUMS[:-1], values[:-1], strict=True)}


def _inputs(
    data: Resident, index_L: torch.Tensor, views: int, *, pad: int, flip: bool, blank: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of the images with these indices, and a label for each view."""
    images_LCHW, labels_L = data.take(index_L)
    return random_views(images_LCHW, views, pad=pad, flip=flip, blank=blank), labels_L.repeat_interleave(views)


def loss_of(
    output: RoutedOutput,
    labels_B: torch.Tensor,
    *,
    views: int,
    losses: LossConfig,
    extra: ExtraConfig,
    gamma: torch.Tensor,
    grip: torch.Tensor,
    weights_N: torch.Tensor,
    run_share_N: torch.Tensor,
    rows: Callable[[torch.Tensor], torch.Tensor] | None,
    taught_BK: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of this process's images, and its `SUMS`.

    `rows` gathers the paths of all processes; without it the losses on paths are off. `taught_BK` are the teacher's
    logits.
    """
    zero = torch.zeros_like(gamma)
    classification = F.cross_entropy(output.logits_BK, labels_B, label_smoothing=extra.label_smoothing)
    terms, decay, taught = Terms(classification, zero, zero, zero), zero, zero
    if rows is not None:
        paths_BN = output.path_BN if losses.paths == "noised" else run_probability(output.scores_BN2)
        paths_LMN = paths_BN.unflatten(0, (-1, views))
        terms = terms._replace(
            consistency=consistency(paths_LMN, margin=losses.m_c),
            diversity=diversity(rows(paths_LMN), margin=losses.m_d),
            cost=expected_cost(paths_BN, weights_N),
        )
        decay = score_decay(output.scores_BN2)
    learnt = terms
    if taught_BK is not None:
        assert extra.distill is not None
        taught = distillation(output.logits_BK, taught_BK, temperature=extra.distill_temperature)
        learnt = terms._replace(classification=(1 - extra.distill) * classification + extra.distill * taught)
    loss = total(learnt, alpha=losses.alpha, beta=losses.beta, gamma=gamma) + losses.score_decay * grip * decay
    hard_BN = (output.scores_BN2[..., 1] >= output.scores_BN2[..., 0]).float()
    cost_share = (hard_BN @ run_share_N).mean()
    hits = (output.logits_BK.argmax(dim=1) == labels_B).float().mean()
    figures = [loss, *terms, decay, taught, gamma, hits, cost_share, torch.ones_like(loss)]
    return loss, torch.stack([figure.detach() for figure in figures])


def share_of_blocks(table: CostTable, device: torch.device) -> tuple[torch.Tensor, float]:
    """What running each block adds to the cost share, and the cost share with every block skipped."""
    blocks = len(table.run_N)
    none = torch.zeros(1, blocks)
    each = table.share(torch.eye(blocks)) - table.share(none)
    return each.float().to(device), table.share(none).item()
