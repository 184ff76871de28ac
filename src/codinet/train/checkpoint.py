"""Checkpoints: everything needed to continue a run exactly.

Each is one checksummed file, named by its position in the run, and records which run it belongs to. The newest two are
kept. A damaged one is reported and the one before it is used.

Rank 0 writes for all processes. What differs between processes (random states and, within an epoch, BatchNorm's
running statistics, including those of an averaged network) is stored per rank, so the same number of processes
continues exactly. Another number of processes takes the mean of the statistics and draws new random numbers.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from codinet import files
from codinet.config import RunConfig, first_difference, flat, to_dict
from codinet.data.catalogue import KNOWN
from codinet.errors import UserError, first_line
from codinet.train.budget import BudgetController
from codinet.train.distributed import named_statistics, put_statistics, seed_apart, statistics
from codinet.train.optimizer import STATE_PREFIXES, part_of
from codinet.train.step import Step

KEEP = 2
DEFAULTS = to_dict(RunConfig(""))


class RunIdentity(NamedTuple):
    """The run that a checkpoint belongs to."""

    config: dict[str, Any]  # as `config.to_dict` gives it
    data: str  # sha256 of the data set

    def difference(self, other: "RunIdentity") -> str | None:
        """What sets another run apart from this one, in words; None if it is the same run."""
        mine, theirs = (flat(DEFAULTS) | flat(of.config) for of in (self, other))  # older files lack later settings
        if not {mine.get("source"), theirs.get("source")} & KNOWN.keys():
            mine["source"] = theirs["source"] = None  # the user's own data may have moved
        difference = first_difference(mine, theirs)
        return "other data" if difference is None and self.data != other.data else difference


@dataclass(frozen=True)
class Position:
    """Where training stands: the next step, and the number of lines of metrics before it."""

    stage: int = 0
    epoch: int = 0
    step: int = 0
    rows: int = 0

    @property
    def file_name(self) -> str:
        return f"{self.stage}-{self.epoch:05d}-{self.step:07d}.safetensors"


@dataclass
class Checkpoint:
    """A position in a run, and the tensors at that position."""

    position: Position = field(default_factory=Position)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    run: RunIdentity | None = None  # None: written before checkpoints recorded it
    file: Path | None = None

    def part(self, prefix: str) -> dict[str, torch.Tensor]:
        """The tensors under a prefix, by the rest of their names."""
        return part_of(self.tensors, prefix)

    @property
    def processes(self) -> int:
        """The number of processes that were training."""
        return max(1, len(self.part("random.cpu.")))

    def own(self, rank: int) -> dict[str, torch.Tensor]:
        """The tensors that the process of this rank did not share with others."""
        names = ("random.cpu", "random.cuda", "random.mps", "statistics", "averaged_statistics")
        tail = f".{rank}" if self.processes > 1 else ""
        return {name: self.tensors[name + tail] for name in names if name + tail in self.tensors}


def save(
    folder: Path,
    position: Position,
    model: torch.nn.Module,
    step: Step,
    controller: BudgetController | None,
    run: RunIdentity,
) -> None:
    """Write a checkpoint. Every process calls this; rank 0 writes."""
    world = step.world
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= step.optimizer_state()
    tensors |= {f"average.{name}": tensor for name, tensor in step.averaged().items()}
    tensors["sums"] = step.sums
    if controller:
        tensors |= {f"controller.{name}": tensor for name, tensor in controller.state().items()}
    if world.size == 1:
        tensors |= random_state(step.device)
    else:
        networks = {"statistics": ("model.", model)}
        if step.average is not None:
            networks["averaged_statistics"] = ("average.model.", step.average.model)
        vectors = {key: statistics(network).cpu() for key, (_, network) in networks.items()}
        own = world.gather({**random_state(step.device), **vectors})
        tensors |= {f"{name}.{rank}": tensor for rank, state in enumerate(own) for name, tensor in state.items()}
        for key, (prefix, network) in networks.items():
            mean = named_statistics(network, _mean([state[key] for state in own]))
            tensors |= {f"{prefix}{name}": tensor.clone() for name, tensor in mean.items()}
    world.on_rank0(lambda: _write(folder, position, tensors, run))


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """Return the states of torch's generators of random numbers, on the CPU and on a device."""
    state = {"random.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["random.cuda"] = torch.cuda.get_rng_state(device)
    if device.type == "mps":
        state["random.mps"] = torch.mps.get_rng_state()
    return state


def set_random_state(state: dict[str, torch.Tensor], device: torch.device) -> None:
    """Restore the states that `random_state` returned; those of another kind of device are left out."""
    torch.set_rng_state(state["random.cpu"])
    if "random.cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["random.cuda"], device)
    if "random.mps" in state and device.type == "mps":
        torch.mps.set_rng_state(state["random.mps"])


def _mean(vectors: list[torch.Tensor]) -> torch.Tensor:
    """The mean; bit-exact if all are equal, as they are between epochs."""
    first = vectors[0]
    return first if all(torch.equal(first, other) for other in vectors) else torch.stack(vectors).mean(dim=0)


def _write(folder: Path, position: Position, tensors: dict[str, torch.Tensor], run: RunIdentity) -> None:
    folder.mkdir(exist_ok=True)
    files.save_tensors(folder / position.file_name, tensors, about=asdict(position) | {"run": run._asdict()})
    # Files of later positions are damaged; otherwise this run would have started from them.
    kept = [file for file in _files(folder) if file.name <= position.file_name][-KEEP:]
    for other in set(_files(folder)) - set(kept):
        other.unlink()


def latest(folder: Path, warn: Callable[[str], None], run: RunIdentity | None = None) -> Checkpoint | None:
    """The newest undamaged checkpoint, or None; `UserError` if it belongs to another run than `run`."""
    found = _files(folder)
    while found:
        try:
            checkpoint = _read(found.pop())
        except files.DamagedError as error:
            back = "the checkpoint before it" if found else "the start, because no other checkpoint is left"
            warn(f"{error} Going back to {back}.")
            continue
        difference = checkpoint.run.difference(run) if checkpoint.run and run else None
        if difference:
            raise UserError(
                f"{folder} holds checkpoints of another run ({difference}); restore that run's config.json or choose "
                "another --out."
            )
        return checkpoint
    return None


def _read(file: Path) -> Checkpoint:
    tensors, about = files.load_tensors(file)
    try:
        run = about.pop("run", None)
        position = Position(**about)
        if not all(type(value) is int and value >= 0 for value in asdict(position).values()):
            raise TypeError(position)
        identity = None if run is None else RunIdentity(**run)
        if identity and not (isinstance(identity.config, dict) and isinstance(identity.data, str)):
            raise TypeError(identity)
        return Checkpoint(position, tensors, identity, file)
    except (TypeError, AttributeError) as error:
        raise files.DamagedError(f"{file} is not a checkpoint.") from error


def restore(checkpoint: Checkpoint, model: torch.nn.Module, controller: BudgetController | None) -> None:
    """Restore weights and controller; `restore_step` restores the rest once the stage is built."""
    _fill(checkpoint, "model.", model.state_dict())
    if controller:
        _fill(checkpoint, "controller.", controller.state())


def _fill(checkpoint: Checkpoint, prefix: str, targets: dict[str, torch.Tensor]) -> None:
    """Copy a part of the checkpoint into tensors, which must be exactly those that the part holds."""
    saved = checkpoint.part(prefix)
    for name in sorted({*saved, *targets}):
        if name not in saved:
            raise _misfit(checkpoint, f"it lacks {prefix}{name}")
        if name not in targets:
            raise _misfit(checkpoint, f"it holds {prefix}{name}, which this run does not have")
        if saved[name].shape != targets[name].shape or saved[name].dtype != targets[name].dtype:
            kinds = (f"{tensor.dtype} {list(tensor.shape)}" for tensor in (saved[name], targets[name]))
            raise _misfit(checkpoint, f"its {prefix}{name} is {next(kinds)} where {next(kinds)} is needed")
        targets[name].copy_(saved[name])


def _misfit(checkpoint: Checkpoint, why: str) -> UserError:
    return UserError(f"{checkpoint.file} does not fit this run: {why}; remove it to continue from the one before.")


def restore_step(checkpoint: Checkpoint, step: Step, *, seed: int = 0) -> None:
    """Restore the rest. Another number of processes than before draws new random numbers from the run's `seed`."""
    within_stage = bool(checkpoint.position.step or checkpoint.position.epoch)
    if within_stage:
        # Optimiser and average start anew with each stage; a stage begins with the average of the one before.
        for prefix in STATE_PREFIXES:
            _fill(checkpoint, prefix, part_of(step.optimizer_state(), prefix))
        _fill(checkpoint, "average.", step.averaged())
    if checkpoint.position.step:
        if "sums" not in checkpoint.tensors or checkpoint.tensors["sums"].shape != step.sums.shape:
            raise _misfit(checkpoint, "its sums are missing or of another shape")
        step.sums.copy_(checkpoint.tensors["sums"])
    world, place = step.world, checkpoint.position
    if checkpoint.processes != world.size:
        seed_apart(seed, world.rank, place.stage, place.epoch, place.step)
        return
    own = checkpoint.own(world.rank)
    try:
        set_random_state(own, step.device)
        if "statistics" in own:
            put_statistics(step.model, own["statistics"])
        if "averaged_statistics" in own and step.average is not None and within_stage:
            put_statistics(step.average.model, own["averaged_statistics"])
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise _misfit(checkpoint, f"its random state or statistics cannot be used ({first_line(error)})") from error


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
