"""Checkpoints: everything needed to go on as if nothing had happened.

One sealed file each, named by its place in the run; the newest two are kept. A damaged one is reported and
the one before it is used.

The first of several processes writes for all. What differs between them, random numbers and within an epoch
BatchNorm's running statistics, those of an averaged network too, goes in under each one's rank; as many processes
go on exactly. Another number of them takes the mean of the statistics and draws its random numbers anew.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from codinet import files
from codinet.train.budget import BudgetController
from codinet.train.distributed import named_statistics, put_statistics, seed_apart, statistics
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
    """A place in a run, and the tensors that stood there."""

    position: Position = field(default_factory=Position)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def part(self, prefix: str) -> dict[str, torch.Tensor]:
        """The tensors under a prefix, by the rest of their names."""
        return {name[len(prefix) :]: tensor for name, tensor in self.tensors.items() if name.startswith(prefix)}

    @property
    def processes(self) -> int:
        """How many processes were training."""
        return max(1, len(self.part("random.cpu.")))

    def own(self, rank: int) -> dict[str, torch.Tensor]:
        """What the process of this rank had to itself."""
        names = ("random.cpu", "random.cuda", "random.mps", "statistics", "averaged_statistics")
        tail = f".{rank}" if self.processes > 1 else ""
        return {name: self.tensors[name + tail] for name in names if name + tail in self.tensors}


def save(
    folder: Path, position: Position, model: torch.nn.Module, step: Step, controller: BudgetController | None
) -> None:
    """Write a checkpoint; every process calls this, the first one writes."""
    world = step.world
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"momentum.{name}": tensor for name, tensor in step.momentum().items()}
    tensors |= {f"average.{name}": tensor for name, tensor in step.averaged().items()}
    tensors["sums"] = step.sums
    if controller:
        tensors |= {f"controller.{name}": tensor for name, tensor in controller.state().items()}
    if world.size == 1:
        tensors |= _random_state(step.device)
    else:
        networks = {"statistics": ("model.", model)}
        if step.average is not None:
            networks["averaged_statistics"] = ("average.model.", step.average.model)
        vectors = {key: statistics(network).cpu() for key, (_, network) in networks.items()}
        own = world.gather({**_random_state(step.device), **vectors})
        tensors |= {f"{name}.{rank}": tensor for rank, state in enumerate(own) for name, tensor in state.items()}
        for key, (prefix, network) in networks.items():
            mean = named_statistics(network, _mean([state[key] for state in own]))
            tensors |= {f"{prefix}{name}": tensor.clone() for name, tensor in mean.items()}
    world.lead(lambda: _write(folder, position, tensors))


def _random_state(device: torch.device) -> dict[str, torch.Tensor]:
    state = {"random.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["random.cuda"] = torch.cuda.get_rng_state(device)
    if device.type == "mps":
        state["random.mps"] = torch.mps.get_rng_state()
    return state


def _mean(vectors: list[torch.Tensor]) -> torch.Tensor:
    """The mean, to the bit where all are equal, as they are between epochs."""
    first = vectors[0]
    return first if all(torch.equal(first, other) for other in vectors) else torch.stack(vectors).mean(dim=0)


def _write(folder: Path, position: Position, tensors: dict[str, torch.Tensor]) -> None:
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
            return _read(found.pop())
        except files.DamagedError as error:
            back = "the checkpoint before it" if found else "the beginning, for no other checkpoint is left"
            warn(f"{error} Going back to {back}.")
    return None


def _read(file: Path) -> Checkpoint:
    tensors, position = files.load_tensors(file)
    try:
        return Checkpoint(Position(**position), tensors)
    except TypeError as error:
        raise files.DamagedError(f"{file} is no checkpoint.") from error


def restore(checkpoint: Checkpoint, model: torch.nn.Module, controller: BudgetController | None) -> None:
    """Put weights and controller back; `restore_step` does the rest once the stage is built."""
    model.load_state_dict(checkpoint.part("model."))
    for name, tensor in checkpoint.part("controller.").items():
        if controller:
            controller.state()[name].copy_(tensor)


def restore_step(checkpoint: Checkpoint, step: Step, *, seed: int = 0) -> None:
    """Put back the rest; `seed` is the run's, of which another number of processes draw anew."""
    if checkpoint.position.step or checkpoint.position.epoch:
        # Momentum starts anew with each stage, so it is taken over only within one.
        for name, tensor in checkpoint.part("momentum.").items():
            step.momentum()[name].copy_(tensor)
        # So does the average: a stage begins with that of the one before it as its weights.
        for name, tensor in checkpoint.part("average.").items():
            step.averaged()[name].copy_(tensor)
    if checkpoint.position.step:
        step.sums.copy_(checkpoint.tensors["sums"])
    world, place = step.world, checkpoint.position
    if checkpoint.processes != world.size:
        seed_apart(seed, world.rank, place.stage, place.epoch, place.step)
        return
    own = checkpoint.own(world.rank)
    torch.set_rng_state(own["random.cpu"])
    if "random.cuda" in own and step.device.type == "cuda":
        torch.cuda.set_rng_state(own["random.cuda"], step.device)
    if "random.mps" in own and step.device.type == "mps":
        torch.mps.set_rng_state(own["random.mps"])
    if "statistics" in own:
        put_statistics(step.model, own["statistics"])
    within = checkpoint.position.step or checkpoint.position.epoch
    if "averaged_statistics" in own and step.average is not None and within:
        put_statistics(step.average.model, own["averaged_statistics"])


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
