"""Training stages as data: the paper's two stages, and the one stage of a static network."""

import math
from dataclasses import dataclass
from functools import partial

from codinet.checks import LARGEST_COUNT, require_callable, require_choice, require_kind, require_number, require_whole
from codinet.config import RunConfig, ScheduleConfig
from codinet.relaxation import RELAXATIONS, Decide, hard
from codinet.train.budget import SETTLE

GROW_UNTIL = 0.7  # fraction of stage 1 after which views have the size of the images
GROW_STEP = 32  # pixels


@dataclass(frozen=True)
class Stage:
    """A part of the training with one relaxation and one set of trained parameters."""

    name: str
    epochs: int
    decide: Decide
    train_routers: bool
    path_losses: bool  # whether L_con, L_div and L_cost act
    lr: float
    schedule: str
    warmup: float  # epochs
    milestones: tuple[float, ...] = ()  # fractions of the epochs after which a multi-step rate drops tenfold

    def __post_init__(self) -> None:
        require_whole("epochs", self.epochs, 1, LARGEST_COUNT)
        require_callable("decide", self.decide)
        require_number("lr", self.lr, 0)
        require_choice("schedule", self.schedule, ("multistep", "cosine"))
        require_number("warmup", self.warmup, 0)
        require_kind("milestones", self.milestones, tuple, "a tuple of fractions of the epochs")
        for milestone in self.milestones:
            require_number("A milestone", milestone, 0, 1)

    def lr_at(self, epoch: float) -> float:
        """Return the learning rate after `epoch` epochs of this stage, which may be a fraction."""
        require_number("epoch", epoch, 0, self.epochs)
        rate = self.lr * min(1.0, (epoch / self.warmup) if self.warmup > 0 else 1.0)
        done = epoch / self.epochs
        if self.schedule == "cosine":
            return rate * 0.5 * (1 + math.cos(math.pi * done))
        return rate * 0.1 ** sum(done >= mark for mark in self.milestones)


def decay_scale(done: float) -> float:
    """Return the factor of the margins' decay, given the fraction of a stage that is done.

    It is 1 in the first part, so that routers can move. It falls to 0 at the end, so that routers become certain and
    the relaxed network approaches the hard one.
    """
    require_number("done", done, 0, 1)
    return min(1.0, (1 - done) / (1 - SETTLE))


def view_side(config: RunConfig, side: int, epoch: int) -> int:
    """Return the side length of the views of an epoch (`--grow-from`).

    It grows in equal steps of at least GROW_STEP pixels. So few sizes occur, each of which needs a compiled step.

    Args:
        config: A resolved config.
        side: The side length of the images.
        epoch: The epoch, counted from 0 over all stages.
    """
    first, last = config.data.grow_from, config.schedule.epochs - 1
    if first is None or epoch >= GROW_UNTIL * last:
        return side
    steps = max(1, (side - first) // GROW_STEP)
    return first + (side - first) * int(steps * epoch / (GROW_UNTIL * last)) // steps


def stages_of(config: RunConfig) -> list[Stage]:
    """Return the stages of a run, in order, given its resolved config."""
    require_kind("config", config, RunConfig, "a RunConfig")
    schedule = config.schedule
    if not config.network.routed:
        return [_stage("static", schedule, decide=hard, train_routers=False, path_losses=False)]
    require_choice("relaxation", config.network.relaxation, RELAXATIONS)
    relaxed = partial(RELAXATIONS[config.network.relaxation], tau=config.network.tau)
    stages = [_stage("joint", schedule, decide=relaxed, train_routers=True, path_losses=True)]
    if schedule.finetune:
        stages.append(
            Stage(
                name="finetune",
                epochs=schedule.finetune,
                decide=hard,
                train_routers=False,
                path_losses=False,
                lr=schedule.finetune_lr,
                schedule="cosine",
                warmup=0,
            )
        )
    return stages


def _stage(name: str, schedule: ScheduleConfig, *, decide: Decide, train_routers: bool, path_losses: bool) -> Stage:
    # The warm-up takes at most a fifth of a short run.
    return Stage(
        name=name,
        epochs=schedule.epochs,
        decide=decide,
        train_routers=train_routers,
        path_losses=path_losses,
        lr=schedule.lr,
        schedule=schedule.schedule,
        warmup=min(schedule.warmup, schedule.epochs / 5),
        milestones=schedule.milestones,
    )
