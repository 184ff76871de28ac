"""Training stages as data: the paper's two stages, and the one stage of a static network."""

import math
from dataclasses import dataclass
from functools import partial

from codinet.checks import LARGEST_COUNT, require_callable, require_choice, require_kind, require_number, require_whole
from codinet.config import RunConfig, ScheduleConfig
from codinet.relaxation import RELAXATIONS, Decide, hard
from codinet.train.budget import SETTLE


@dataclass(frozen=True)
class Stage:
    """A part of the training with one way of deciding and one set of trained parameters."""

    name: str
    epochs: int
    decide: Decide
    train_routers: bool
    path_losses: bool  # whether L_con, L_div and L_cost act
    lr: float
    schedule: str
    warmup: float  # epochs
    milestones: tuple[float, ...] = ()  # shares of the epochs after which a multi-step rate drops tenfold

    def __post_init__(self) -> None:
        require_whole("epochs", self.epochs, 1, LARGEST_COUNT)
        require_callable("decide", self.decide)
        require_number("lr", self.lr, 0)
        require_choice("schedule", self.schedule, ("multistep", "cosine"))
        require_number("warmup", self.warmup, 0)
        require_kind("milestones", self.milestones, tuple, "a tuple of shares of the epochs")
        for share in self.milestones:
            require_number("A milestone", share, 0, 1)

    def lr_at(self, epoch: float) -> float:
        """Learning rate after `epoch` epochs of this stage; fractions count."""
        require_number("epoch", epoch, 0, self.epochs)
        rate = self.lr * min(1.0, (epoch / self.warmup) if self.warmup > 0 else 1.0)
        done = epoch / self.epochs
        if self.schedule == "cosine":
            return rate * 0.5 * (1 + math.cos(math.pi * done))
        return rate * 0.1 ** sum(done >= mark for mark in self.milestones)


def grip_at(done: float) -> float:
    """The factor of the margins' decay when this share of a stage is done.

    1 in the first part, so that routers can move; it falls to 0 at the end, so that routers become certain and the
    relaxed network becomes the hard one.
    """
    require_number("done", done, 0, 1)
    return min(1.0, (1 - done) / (1 - SETTLE))


def stages_of(config: RunConfig) -> list[Stage]:
    """The stages of a run, in order. The config is one that `config.resolve` returned."""
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
    # In a short run the warm-up is at most a fifth, so that epochs are left to train in.
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
