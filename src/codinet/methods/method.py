"""The interface of a training method, and the stages of a training.

A method names its routers, lists its stages and computes a loss. The training step is captured as a CUDA graph, so a
loss must not wait for the device: it samples with torch and reads no values.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch

from codinet.checks import LARGEST_COUNT, require_callable, require_choice, require_kind, require_number, require_whole
from codinet.methods import DEFAULT
from codinet.records import RoutedOutput
from codinet.relaxation import Decide, hard
from codinet.routers import Routers

if TYPE_CHECKING:
    from codinet.config import LossConfig, RunConfig, ScheduleConfig


@dataclass(frozen=True)
class Stage:
    """A part of the training with one relaxation and one set of trained parameters."""

    name: str
    epochs: int
    decide: Decide
    train_routers: bool
    path_losses: bool  # whether the losses on paths act; otherwise only the classification loss does
    lr: float
    schedule: str
    warmup: float  # epochs
    milestones: tuple[float, ...] = ()  # fractions of the epochs after which a multi-step rate drops tenfold
    train_backbone: bool = True  # whether everything but the routers is trained
    meets_budget: bool = True  # whether γ and shifts of the run scores bring the network to its budget
    ramp: bool = True  # whether the target of the cost falls to the budget little by little
    greedy: bool = False  # whether the loss compares with the output of hard decisions; see `Step`

    def __post_init__(self) -> None:
        require_whole("epochs", self.epochs, 1, LARGEST_COUNT)
        require_callable("decide", self.decide)
        require_number("lr", self.lr, 0)
        require_choice("schedule", self.schedule, ("multistep", "cosine"))
        require_number("warmup", self.warmup, 0)
        require_kind("milestones", self.milestones, tuple, "a tuple of fractions of the epochs")
        for milestone in self.milestones:
            require_number("A milestone", milestone, 0, 1)

    @property
    def has_target(self) -> bool:
        """Whether the controller has a target for the cost and sets γ."""
        return self.path_losses and self.meets_budget

    def lr_at(self, epoch: float) -> float:
        """Return the learning rate after `epoch` epochs of this stage, which may be a fraction."""
        require_number("epoch", epoch, 0, self.epochs)
        rate = self.lr * min(1.0, (epoch / self.warmup) if self.warmup > 0 else 1.0)
        done = epoch / self.epochs
        if self.schedule == "cosine":
            return rate * 0.5 * (1 + math.cos(math.pi * done))
        return rate * 0.1 ** sum(done >= mark for mark in self.milestones)


# Lists, because a stage of 0 epochs is left out.


def main_stage(
    name: str, schedule: "ScheduleConfig", epochs: int | None = None, *, lr: float | None = None, **settings: Any
) -> list[Stage]:
    """Return a stage of stage 1: with all of its epochs and its learning rate by default, and with its schedule."""
    epochs = schedule.epochs if epochs is None else epochs
    if epochs == 0:
        return []
    return [
        Stage(
            name=name,
            epochs=epochs,
            lr=schedule.lr if lr is None else lr,
            schedule=schedule.schedule,
            warmup=min(schedule.warmup, epochs / 5),  # at most a fifth of a short run
            milestones=schedule.milestones,
            **settings,
        )
    ]


def static_stage(schedule: "ScheduleConfig", epochs: int | None = None) -> list[Stage]:
    """Return a stage that trains the network with every block run."""
    fixed: dict[str, Any] = {"decide": run_all, "train_routers": False, "path_losses": False, "meets_budget": False}
    return main_stage("static", schedule, epochs, **fixed)


def finetune_stage(schedule: "ScheduleConfig", **settings: Any) -> list[Stage]:
    """Return stage 2, which trains the network under fixed routers with hard decisions."""
    if not schedule.finetune:
        return []
    return [
        Stage(
            name="finetune",
            epochs=schedule.finetune,
            decide=hard,
            train_routers=False,
            path_losses=False,
            lr=schedule.finetune_lr,
            schedule="cosine",
            warmup=0,
            **settings,
        )
    ]


def starts_trained(config: "RunConfig") -> bool:
    """Whether a run starts from trained weights, so that it needs no stage that trains the whole network first.

    `stages_of` gives a method a config without them if the classifier is new.
    """
    return bool(config.extra.start or config.extra.weights or config.extra.pretrained)


def run_all(scores_B2: torch.Tensor) -> torch.Tensor:
    """Decide that every image runs the block."""
    return torch.ones_like(scores_B2[:, 0])


class PathBatch(NamedTuple):
    """What a loss sees of a step. The views of an image are next to each other."""

    output: RoutedOutput
    labels_B: torch.Tensor
    views: int
    losses: "LossConfig"
    gamma: torch.Tensor  # weight of the cost; a controller may set it, and it may be negative
    decay_scale: torch.Tensor  # factor of the margins' decay, from 1 to 0
    weights_N: torch.Tensor  # c_k, see `CostTable.loss_weights`
    run_share_N: torch.Tensor  # what each block adds to the cost share
    base_share: float  # the cost share with every block skipped
    gather_rows: Callable[[torch.Tensor], torch.Tensor]  # the same tensor of all processes
    greedy: RoutedOutput | None  # with hard decisions and without gradients, if the stage asks for it


class PathLoss(NamedTuple):
    """The loss of a step, and its terms before weighting; those that a method does not have are 0."""

    loss: torch.Tensor
    consistency: torch.Tensor
    diversity: torch.Tensor
    cost: torch.Tensor
    decay: torch.Tensor


class StageStart(NamedTuple):
    """What a method may use to set up routers before a stage."""

    routers: Routers
    run_share_N: torch.Tensor  # on the CPU
    base_share: float
    budget: float | None
    measure_loss: Callable[[], float]  # of the network as it is, on training images with hard decisions


class Method:
    """A training method.

    Attributes:
        name: As in `codinet.methods.NAMES`.
        title: As in tables and figures.
        routers: The kinds of routers that it can use; the first one is its default.
        settings: The settings of routers, losses and stage 2 that it uses.
        routed: Whether networks have routers.
        one_path: Whether all images are meant to take the same path.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    routers: ClassVar[tuple[str, ...]]
    settings: ClassVar[frozenset[str]]
    routed: ClassVar[bool] = True
    one_path: ClassVar[bool] = False

    def configure(self, config: "RunConfig") -> "RunConfig":
        """Return the config with the method's router and without losses that it does not have."""
        network = config.network
        if not network.routed:
            return replace(config, method=DEFAULT)
        if network.router == type(network).router and network.router not in self.routers:  # not given
            network = replace(network, router=self.routers[0])  # type: ignore[arg-type]  # one of the choices
        off: dict[str, float] = {name: 0.0 for name in ("alpha", "beta", "score_decay") if name not in self.settings}
        return replace(config, network=network, losses=replace(config.losses, **off))  # type: ignore[arg-type]

    def title_of(self, config: "RunConfig") -> str:
        """Return the title of a run, which may depend on its settings."""
        return self.title

    def stages(self, config: "RunConfig") -> list[Stage]:
        """Return the stages of a run, in order, given its resolved config."""
        raise NotImplementedError

    def loss(self, classification: torch.Tensor, batch: PathBatch) -> PathLoss:
        """Return the loss of a step of a stage with `path_losses`.

        Args:
            classification: The classification loss, a scalar.
            batch: The rest of the step.
        """
        raise NotImplementedError

    def begin_stage(self, stage: Stage, start: StageStart) -> None:
        """Set up the routers before the first epoch of a stage."""

    def begin_epoch(self, stage: Stage, epoch: int, routers: Routers) -> None:
        """Set up routers before an epoch of a stage, counted from 0."""


ROUTING = frozenset({"router", "finetune", "finetune_lr", "budget"})  # settings that all methods with routers use


def rate_for(budget: float, run_share_N: torch.Tensor, base_share: float) -> torch.Tensor:
    """Return the rate at which every block has to run for a mean cost of the budget, between 0 and 1.

    Args:
        budget: The cost share to meet.
        run_share_N: What each block adds to the cost share.
        base_share: The cost share with every block skipped.
    """
    return ((budget - base_share) / run_share_N.sum()).clamp(0, 1)
