"""Several processes that train one network: who they are, what they tell each other, how they stop together.

`joined` makes the `World` of the processes that torchrun started; `World()` is a process of its own, for which
every method is a plain call. Tensors of the step travel over the default group (nccl on GPUs, gloo elsewhere)
and nothing in them waits for the host. What the hosts tell each other (sentences, checkpoints, figures) travels
over a second group, gloo everywhere.

Knows nothing of losses, stages or files.
"""

import gc
import hashlib
import math
import os
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from codinet.environment import pick_device
from codinet.errors import UserError, first_line

T = TypeVar("T")

_LONGEST_WAIT = 7 * 24 * 60  # minutes
WAIT_MINUTES = 10.0  # how long processes wait for the slowest, which may have to read its data first
_ENVIRONMENT = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class SharedError(UserError):
    """An error that every process raises at the same place, so that the first can tell it for all."""


@dataclass(frozen=True)
class World:
    """The processes of a run, seen from one of them."""

    rank: int = 0
    size: int = 1
    host: dist.ProcessGroup | None = None  # None: nobody else is there

    @property
    def alone(self) -> bool:
        return self.host is None

    @property
    def leads(self) -> bool:
        """Whether this is the process that speaks and writes."""
        return self.rank == 0

    # what hosts tell each other; these wait for the other processes

    def gather(self, value: T) -> list[T]:
        """Everybody's value, by rank."""
        if self.host is None:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.host)
        return values

    def each(self, call: Callable[[], T]) -> T:
        """What the call gives here; where it fails for anybody, it fails for all with the same sentence.

        The call must not wait for other processes: one that fails would let them wait for ever.
        """
        if self.host is None:
            return call()
        result, sentence = _attempt(call)
        for told in self.gather(sentence):
            if told is not None:
                raise SharedError(told)
        return result  # type: ignore[return-value]  # there is one where there is no sentence

    def lead(self, call: Callable[[], T]) -> T:
        """What the call gives to the first process, the only one to make it; where it fails, it fails for all."""
        if self.host is None:
            return call()
        told: list[Any] = [None, None]
        if self.leads:
            told = list(_attempt(call))
        dist.broadcast_object_list(told, src=0, group=self.host)
        result, sentence = told
        if sentence is not None:
            raise SharedError(sentence)
        return result

    # tensors of the step; these wait for nobody but the device

    def mean_(self, tensor: torch.Tensor) -> torch.Tensor:
        """The mean over processes, in place and without a gradient; the same bits everywhere."""
        if self.host is not None:
            dist.all_reduce(tensor)
            tensor.div_(self.size)
        return tensor

    def rows(self, mine: torch.Tensor) -> torch.Tensor:
        """Everybody's rows one below the other, for a loss that every process computes of all rows."""
        return mine if self.host is None else _Rows.apply(mine, self)

    def share(self, model: nn.Module) -> nn.Module:
        """The network, such that a backward pass leaves the processes' mean gradient; its weights become rank 0's.

        For the parameters that are trained now: to train others, share it again.
        """
        if self.host is None:
            return model
        # An older wrapper that is not collected yet would still act on gradients.
        gc.collect()
        # Blocks are compiled one by one, which leaves no graph worth cutting into buckets.
        torch._dynamo.config.optimize_ddp = False
        device = next(model.parameters()).device
        # Gradients are gathered on the stream that is current now, and the default one cannot be captured.
        stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream) if stream is not None else nullcontext():
            shared = DistributedDataParallel(model, gradient_as_bucket_view=True)
        if stream is not None:
            torch.cuda.current_stream(device).wait_stream(stream)
        # Told where a dimension of size one has an odd stride, which costs nothing.
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
        # BatchNorm's running statistics stay each process's own until `average_statistics`. Said by attribute
        # because the argument's name changed between versions of torch.
        shared.broadcast_buffers = False
        return shared

    def average_statistics(self, model: nn.Module) -> None:
        """Give all processes the mean of BatchNorm's running statistics.

        They are linear in the statistics of the batches, so it does not matter how often this is done.
        """
        if self.host is not None:
            put_statistics(model, self.mean_(statistics(model)))


class _Rows(torch.autograd.Function):
    """Everybody's rows; backward, this process's own part of the gradient times the number of processes.

    Let F(x_1 … x_W) be the loss of all rows, where x_r = x_r(θ) are those of process r. The gradient wanted is
    Σ_r ∂F/∂x_r · dx_r/dθ. Process r knows dx_r/dθ alone, and since all compute the same F of the same rows it
    knows ∂F/∂x_r without asking. DistributedDataParallel takes the mean over processes of what each hands in:
    if that is W · ∂F/∂x_r · dx_r/dθ, the mean is the sum wanted.
    """

    @staticmethod
    def forward(ctx: Any, mine: torch.Tensor, world: World) -> torch.Tensor:
        ctx.rank, ctx.size, ctx.number = world.rank, world.size, len(mine)
        rows = mine.new_empty(world.size * len(mine), *mine.shape[1:])
        dist.all_gather(list(rows.chunk(world.size)), mine.contiguous())
        return rows

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        own = slice(ctx.rank * ctx.number, (ctx.rank + 1) * ctx.number)
        return gradients[0][own] * ctx.size, None


def _attempt(call: Callable[[], T]) -> tuple[T | None, str | None]:
    """The call's result, or what the user is to be told."""
    try:
        return call(), None
    except UserError as error:
        return None, str(error)
    except BrokenPipeError:
        raise  # whoever read our output has gone, which is nobody's to be told
    except OSError as error:
        return None, f"{error.filename or 'a file'}: {error.strerror or error}; check the path."


# BatchNorm's statistics


def _running(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, buffer) for name, buffer in model.named_buffers() if buffer.is_floating_point()]


def statistics(model: nn.Module) -> torch.Tensor:
    """BatchNorm's running means and variances in one vector."""
    running = [buffer.flatten() for _, buffer in _running(model)]
    return torch.cat(running) if running else next(model.parameters()).new_zeros(0)


def put_statistics(model: nn.Module, vector: torch.Tensor) -> None:
    """Undo `statistics`, in place, because a captured step knows the buffers by their address."""
    for name, part in named_statistics(model, vector).items():
        model.get_buffer(name).copy_(part)


def named_statistics(model: nn.Module, vector: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """The parts of a vector of `statistics` under their buffers' names."""
    running = _running(model)
    parts = vector.split([buffer.numel() for _, buffer in running])
    return {name: part.view_as(buffer) for (name, buffer), part in zip(running, parts, strict=True)}


# random numbers


def seed_apart(seed: int, rank: int, *place: int) -> None:
    """Give a process random numbers that depend on the run's seed, on its rank and on a place in the run."""
    words = " ".join(map(str, (seed, rank, *place)))
    torch.manual_seed(int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "little", signed=True))


# joining and leaving


def launched() -> bool:
    """Whether torchrun, or what does as it does, started this process."""
    return all(name in os.environ for name in _ENVIRONMENT)


def own_device(name: str | None) -> torch.device:
    """The device asked for, or the best one there is; of several processes on GPUs, each has one to itself."""
    if not launched() or int(os.environ["WORLD_SIZE"]) == 1:
        return pick_device(name)
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and torch.cuda.is_available():
        processes, there = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
        if processes > there:
            raise UserError(
                f"{processes} processes on this machine need a GPU each, and it has {there}; "
                f"use --nproc-per-node {there}, or --device cpu."
            )
        # Before anything touches a device, lest every process keep a little of the first GPU.
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    device = pick_device(name)
    if device.type != "cpu":
        raise UserError(f"--device {name} cannot be shared by several processes; use --device cuda or --device cpu.")
    return device


@contextmanager
def joined(device: torch.device, *, wait_minutes: float = WAIT_MINUTES) -> Iterator[World]:
    """The world that this process was started in; on the way out all processes leave it together.

    A process that does not respond for `wait_minutes` ends the others. An error that every process knows
    (`SharedError`) is raised by rank 0 only; the others exit with code 2.
    """
    if not math.isfinite(wait_minutes) or not 0 < wait_minutes <= _LONGEST_WAIT:
        raise UserError(f"--wait-minutes must be above 0 and at most {_LONGEST_WAIT}, got {wait_minutes:g}.")
    if not launched() or device.type == "mps":  # a machine has one MPS device, so there are no other processes
        yield World()
        return
    world = _join(device, timedelta(minutes=wait_minutes))
    try:
        yield world
    except SharedError as error:
        # The traceback holds the training, and nccl waits until the graphs that it is captured in are gone.
        traceback.clear_frames(error.__traceback__)
        _leave(world)
        if world.leads:
            raise
        raise SystemExit(2) from None
    except RuntimeError as error:
        if not _lost(error):
            raise
        if world.leads:
            timed_out = "timed out" in str(error).lower()
            what = f"did not respond for {wait_minutes:g} minutes" if timed_out else "ended"
            longer = " (--wait-minutes waits longer)" if timed_out else ""
            raise UserError(
                f"Another process of this training {what}, so this one cannot continue{longer}; what was written is "
                "intact, and the same command with --resume continues from there."
            ) from error
        raise SystemExit(2) from None
    else:
        _leave(world)


def _join(device: torch.device, timeout: timedelta) -> World:
    try:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timeout)
        host = dist.new_group(backend="gloo", timeout=timeout)
    except (dist.DistError, RuntimeError, ValueError) as error:
        raise UserError(
            f"The processes of this training could not find each other ({first_line(error)}); "
            "check the addresses given to torchrun."
        ) from error
    assert isinstance(host, dist.ProcessGroup)
    return World(dist.get_rank(), dist.get_world_size(), host)


def _leave(world: World) -> None:
    gc.collect()
    # A process that left early would break the connections of those that are still communicating.
    dist.barrier(group=world.host)
    dist.destroy_process_group()


def _lost(error: RuntimeError) -> bool:
    """Whether an error means that another process is gone or stalled; gloo has messages for it and no class."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower() or "timed out" in str(error).lower()
