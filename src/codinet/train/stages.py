"""What is trained when, as data: the paper's two stages, and the one stage of a static network."""

import math
from dataclasses import dataclass
from functools import partial

from codinet.config import RunConfig, ScheduleConfig
from codinet.relaxation import RELAXATIONS, Decide, hard
from codinet.train.budget import SETTLE


@dataclass(frozen=True)
class Stage:
    """A stretch of training with one way of deciding and one set of trained parameters."""

    name: str
    epochs: int
    decide: Decide
    train_routers: bool
    path_losses: bool  # whether L_con, L_div and L_cost act
    lr: float
    schedule: str
    warmup: float  # epochs
    milestones: tuple[float, ...] = ()  # shares of the epochs after which a multi-step rate drops tenfold

    def lr_at(self, epoch: float) -> float:
        """Learning rate after `epoch` epochs (a fraction counts) of this stage."""
        rate = self.lr * min(1.0, (epoch / self.warmup) if self.warmup > 0 else 1.0)
        done = epoch / self.epochs
        if self.schedule == "cosine":
            return rate * 0.5 * (1 + math.cos(math.pi * done))
        return rate * 0.1 ** sum(done >= mark for mark in self.milestones)


def grip_at(done: float) -> float:
    """Share of the margins' decay that acts when this share of a stage is done: all of it while routers are to move,
    none in the end, when they are to be sure, so that the relaxed network becomes the hard one."""
    return min(1.0, (1 - done) / (1 - SETTLE))


def stages_of(config: RunConfig) -> list[Stage]:
    """The stages of a run, in order."""
    schedule = config.schedule
    if not config.network.routed:
        return [_stage("static", schedule, decide=hard, train_routers=False, path_losses=False)]
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
    # A warm-up longer than a fifth of a short run would leave nothing to train with.
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
