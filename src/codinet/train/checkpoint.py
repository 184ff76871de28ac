"""Checkpoints: everything needed to go on as if nothing had happened.

One sealed file each, named by its place in the run; the newest two are kept. A damaged one is reported and
the one before it is used.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from codinet import files
from codinet.train.budget import BudgetController
from codinet.train.step import Step

KEEP = 2


@dataclass(frozen=True)
class Position:
    """Where training stands: the next step to take, and how many lines of metrics precede it."""

    stage: int = 0
    epoch: int = 0
    step: int = 0
    rows: int = 0

    @property
    def file_name(self) -> str:
        return f"{self.stage}-{self.epoch:05d}-{self.step:07d}.safetensors"


@dataclass
class Checkpoint:
    position: Position = field(default_factory=Position)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def part(self, prefix: str) -> dict[str, torch.Tensor]:
        return {name[len(prefix) :]: tensor for name, tensor in self.tensors.items() if name.startswith(prefix)}


def save(
    folder: Path, position: Position, model: torch.nn.Module, step: Step, controller: BudgetController | None
) -> None:
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"momentum.{name}": tensor for name, tensor in step.momentum().items()}
    tensors |= {"sums": step.sums, "random.cpu": torch.get_rng_state()}
    if step.device.type == "cuda":
        tensors["random.cuda"] = torch.cuda.get_rng_state(step.device)
    if controller:
        tensors |= {f"controller.{name}": tensor for name, tensor in controller.state().items()}
    folder.mkdir(exist_ok=True)
    files.save_tensors(folder / position.file_name, tensors, about=asdict(position))
    # Files of later places are damaged, else this run would have started from them.
    kept = [file for file in _files(folder) if file.name <= position.file_name][-KEEP:]
    for other in set(_files(folder)) - set(kept):
        other.unlink()


def latest(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that is whole; None where there is none."""
    found = _files(folder)
    while found:
        try:
            tensors, position = files.load_tensors(found.pop())
            return Checkpoint(Position(**position), tensors)
        except files.DamagedError as error:
            back = "the checkpoint before it" if found else "the beginning, for no other checkpoint is left"
            warn(f"{error} Going back to {back}.")
    return None


def restore(checkpoint: Checkpoint, model: torch.nn.Module, controller: BudgetController | None) -> None:
    """Put weights and controller back; `restore_step` does the rest once the stage is built."""
    model.load_state_dict(checkpoint.part("model."))
    for name, tensor in checkpoint.part("controller.").items():
        if controller:
            controller.state()[name].copy_(tensor)


def restore_step(checkpoint: Checkpoint, step: Step) -> None:
    if checkpoint.position.step or checkpoint.position.epoch:
        # Momentum starts anew with each stage, so it is taken over only within one.
        for name, tensor in checkpoint.part("momentum.").items():
            step.momentum()[name].copy_(tensor)
    if checkpoint.position.step:
        step.sums.copy_(checkpoint.tensors["sums"])
    torch.set_rng_state(checkpoint.tensors["random.cpu"])
    if "random.cuda" in checkpoint.tensors and step.device.type == "cuda":
        torch.cuda.set_rng_state(checkpoint.tensors["random.cuda"], step.device)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
