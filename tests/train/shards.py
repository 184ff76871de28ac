"""Two processes that take steps together and write down what they did: `python shards.py FOLDER`.

Imports torch once and forks the second process. Rank r leaves `r.safetensors`: for each step the weights before
it, the gradients, and the figures after it, under names that begin with the step's.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from codinet import create_model, make_dynamic
from codinet.config import LossConfig, RunConfig, ScheduleConfig
from codinet.cost import block_costs
from codinet.data.augmentation import Augmentation
from codinet.data.batches import Resident
from codinet.data.npz import load_digits
from codinet.files import save_tensors
from codinet.model import RoutedNetwork
from codinet.resolving import resolve
from codinet.train.budget import BudgetController
from codinet.train.distributed import World, joined
from codinet.train.stages import stages_of
from codinet.train.step import Step, Task

CPU = torch.device("cpu")
SIZE = 2
IMAGES = 8  # of a step, of both processes together
STEPS = 3
LIBRARY: dict[str, Any] = {"optimizer": "adamw", "decay_norms": False, "clip": 0.05}
LOSSES = LossConfig(budget=0.5, alpha=0.3, beta=0.7, m_c=0.01, m_d=2.0, score_decay=0.01)


def digits() -> Resident:
    whole = load_digits()
    return Resident.of(whole.train.subset(torch.arange(STEPS * IMAGES)), whole, CPU)


def network() -> RoutedNetwork:
    torch.manual_seed(0)
    return create_model("resnet20", in_channels=1)


class Residual(nn.Module):
    """A block that draws random numbers, with a constant that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Dropout(0.2)
        self.register_buffer("mask", torch.full((1,), 0.7), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.norm(self.conv(x)).relu()) * self.mask


def library_network() -> RoutedNetwork:
    """A network that is not codinet's own."""
    torch.manual_seed(1)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    module = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), Residual(), Residual(), head)
    return make_dynamic(module, blocks=Residual, image_shape=(1, 8, 8))


def controller() -> BudgetController:
    made = BudgetController(0.5, steps=100, device=CPU)
    made.aim(1.0)
    return made


def make_step(
    model: RoutedNetwork,
    data: Resident,
    world: World,
    *,
    stage: int = 0,
    paths: Literal["noise-free", "noised"] = "noise-free",
    **settings: Any,
) -> Step:
    schedule = ScheduleConfig(epochs=2, finetune=1, batch=IMAGES, views=2, **settings)
    config = resolve(RunConfig("digits", losses=replace(LOSSES, paths=paths), schedule=schedule))
    table, stages = block_costs(model, (1, 8, 8)), stages_of(config)
    task = Task(model, data, table, config, Augmentation((8, 8), 2, pad=1), controller(), world=world)
    step = Step(task, stages[stage])
    model.train()
    step.lr.fill_(0.05)
    return step


def take(step: Step, number: int, name: str, world: World) -> dict[str, torch.Tensor]:
    """One step on this process's share of the images, with random numbers of its own; what it did."""
    before = {f"{name}.weight.{key}": value.clone() for key, value in step.model.state_dict().items()}
    step.index_L.copy_(torch.arange(IMAGES).view(world.size, -1)[world.rank] + number * IMAGES)
    torch.manual_seed(100 * number + world.rank)
    step.sums.zero_()
    step()
    gradients = {f"{name}.gradient.{key}": p.grad.clone() for key, p in step.trained.items() if p.grad is not None}
    assert step.controller is not None
    after = {f"{name}.{key}": value.clone() for key, value in step.controller.state().items()}
    return before | gradients | after | {f"{name}.sums": step.sums.clone()}


def main(folder: Path, world: World) -> None:
    data, model = digits(), network()
    done: dict[str, torch.Tensor] = {}
    step = make_step(model, data, world)
    for number in range(STEPS):
        done |= take(step, number, f"joint{number}", world)
    done |= take(make_step(model, data, world, paths="noised"), 0, "noised", world)
    done |= take(make_step(model, data, world, stage=1), 0, "finetune", world)
    done |= take(make_step(model, data, world, stage=1, accumulate=2), 0, "finetune-parts", world)
    done |= take(make_step(library_network(), data, world, **LIBRARY), 0, "library", world)
    done |= {f"own.{name}": buffer.clone() for name, buffer in model.named_buffers()}
    world.average_statistics(model)
    done |= {f"mean.{name}": buffer.clone() for name, buffer in model.named_buffers()}

    # The images of the second process alone become something else than numbers.
    bad = replace(data, std_C=data.std_C * (world.rank == 0))
    step = make_step(network(), bad, world)
    take(step, 0, "bad", world)
    done["bad"] = step.nonfinite
    save_tensors(folder / f"{world.rank}.safetensors", done)


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank = 0 if os.fork() else 1
    code = 1
    try:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        with joined(CPU) as joint:
            main(Path(sys.argv[1]), joint)
        code = 0
    finally:
        if rank == 1:
            os._exit(code)
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
