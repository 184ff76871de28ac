"""Distributed training: the processes that train one network, how they communicate, and how they stop together.

`joined` returns the `World` of the processes that torchrun started. `World()` is a single process, for which every
method is a plain call. Tensors of the step are exchanged over the default group (nccl on GPUs, gloo elsewhere) without
waiting for the host. Python objects (messages, checkpoints, figures) are exchanged over a second group, always gloo.
"""

import gc
import hashlib
import math
import os
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from codinet.adopt import import_vision
from codinet.environment import pick_device
from codinet.errors import UserError, first_line

T = TypeVar("T")

_LONGEST_WAIT = 7 * 24 * 60  # minutes
WAIT_MINUTES = 10.0  # how long processes wait for the slowest, which may be reading its data
_ENVIRONMENT = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class CollectiveError(UserError):
    """An error that every process raises at the same place, so that rank 0 reports it for all."""


@dataclass(frozen=True)
class World:
    """The processes of a run, seen from one of them."""

    rank: int = 0
    size: int = 1
    host: dist.ProcessGroup | None = None  # None: a single process

    @property
    def alone(self) -> bool:
        return self.host is None

    @property
    def is_rank0(self) -> bool:
        """Whether this is the process that prints and writes files."""
        return self.rank == 0

    # Python objects; these wait for the other processes.

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank."""
        if self.host is None:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.host)
        return values

    def on_every_rank(self, call: Callable[[], T]) -> T:
        """Return what the call returns here. If it fails in one process, all raise the same error.

        The call must not wait for other processes: after a failure they would wait until the timeout.
        """
        if self.host is None:
            return call()
        result, failure = _attempt(call)
        for message in self.gather(failure):
            if message is not None:
                raise CollectiveError(message)
        return result  # type: ignore[return-value]  # it is a T unless there was a failure

    def on_rank0(self, call: Callable[[], T]) -> T:
        """Make the call on rank 0 only and return its result on every rank. If it fails, all raise the same error."""
        if self.host is None:
            return call()
        outcome: list[Any] = [None, None]
        if self.is_rank0:
            outcome = list(_attempt(call))
        dist.broadcast_object_list(outcome, src=0, group=self.host)
        result, failure = outcome
        if failure is not None:
            raise CollectiveError(failure)
        return result

    # Tensors of the step; these wait for the device only.

    def mean_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Replace a tensor by its mean over processes, without a gradient. All get the same bits."""
        if self.host is not None:
            dist.all_reduce(tensor)
            tensor.div_(self.size)
        return tensor

    def gather_rows(self, own: torch.Tensor) -> torch.Tensor:
        """Return the rows of all processes, by rank, for a loss that every process computes over all rows."""
        return own if self.host is None else _GatherRows.apply(own, self)

    def data_parallel(self, model: nn.Module) -> nn.Module:
        """Wrap a network so that a backward pass averages gradients over processes. Its weights become rank 0's.

        The wrapper handles the parameters that require gradients now; wrap the network again to train others.
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
            wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
        if stream is not None:
            torch.cuda.current_stream(device).wait_stream(stream)
        # BatchNorm's running statistics stay local until `average_statistics`. Set as an attribute, because the name of
        # the argument differs between versions of torch.
        wrapped.broadcast_buffers = False
        return wrapped

    def keep_gradients(self, model: nn.Module) -> AbstractContextManager[None]:
        """Within this context, backward passes of a network of `data_parallel` add up gradients in each process."""
        return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()

    def average_statistics(self, model: nn.Module) -> None:
        """Replace BatchNorm's running statistics by their mean over processes.

        They are linear in the statistics of the batches, so it does not matter how often this is done.
        """
        if self.host is not None:
            put_statistics(model, self.mean_(statistics(model)))


class _GatherRows(torch.autograd.Function):
    """Gathers rows. Its backward returns this rank's part of the gradient times the number of processes.

    Let F(x_1 … x_W) be the loss of all rows, where x_r = x_r(θ) are those of rank r. The gradient is
    Σ_r ∂F/∂x_r · dx_r/dθ. Only rank r has dx_r/dθ, and as every rank computes the same F it also has ∂F/∂x_r.
    DistributedDataParallel takes the mean over ranks: of W · ∂F/∂x_r · dx_r/dθ this is the gradient.
    """

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, world: World) -> torch.Tensor:
        ctx.rank, ctx.size, ctx.number = world.rank, world.size, len(own)
        rows = own.new_empty(world.size * len(own), *own.shape[1:])
        dist.all_gather(list(rows.chunk(world.size)), own.contiguous())
        return rows

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        own = slice(ctx.rank * ctx.number, (ctx.rank + 1) * ctx.number)
        return gradients[0][own] * ctx.size, None


def _attempt(call: Callable[[], T]) -> tuple[T | None, str | None]:
    """The call's result, or the message of its error."""
    try:
        return call(), None
    except UserError as error:
        return None, str(error)
    except BrokenPipeError:
        raise  # the reader of our output is gone, which is not an error
    except OSError as error:
        return None, f"{error.filename or 'a file'}: {error.strerror or error}; check the path."


def _running(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    saved = model.state_dict().keys()  # without constants, such as the attention masks of a Swin transformer
    return [(name, buffer) for name, buffer in model.named_buffers() if buffer.is_floating_point() and name in saved]


def statistics(model: nn.Module) -> torch.Tensor:
    """Return BatchNorm's running means and variances as one vector."""
    running = [buffer.flatten() for _, buffer in _running(model)]
    return torch.cat(running) if running else next(model.parameters()).new_zeros(0)


def put_statistics(model: nn.Module, vector: torch.Tensor) -> None:
    """Write a vector of `statistics` back into the buffers, in place: a captured step knows their addresses."""
    for name, part in named_statistics(model, vector).items():
        model.get_buffer(name).copy_(part)


def named_statistics(model: nn.Module, vector: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """Return the parts of a vector of `statistics` by the names of their buffers."""
    running = _running(model)
    parts = vector.split([buffer.numel() for _, buffer in running])
    return {name: part.view_as(buffer) for (name, buffer), part in zip(running, parts, strict=True)}


def synchronised(model: nn.Module) -> Any:
    """Return a network whose BatchNorms normalise by the batches of all processes. Weights are shared."""
    if any(type(part).__module__.startswith("timm.") for part in model.modules()):
        # Some of timm's BatchNorms contain the activation, which torch's own function would drop.
        return import_vision("timm").layers.convert_sync_batchnorm(model)
    return nn.SyncBatchNorm.convert_sync_batchnorm(model)


def seed_apart(seed: int, rank: int, *place: int) -> None:
    """Seed torch with a hash of the run's seed, the rank and a position in the run."""
    words = " ".join(map(str, (seed, rank, *place)))
    torch.manual_seed(int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "little", signed=True))


def launched() -> bool:
    """Return whether torchrun, or a launcher like it, started this process."""
    return all(name in os.environ for name in _ENVIRONMENT)


def own_device(name: str | None) -> torch.device:
    """Return the device by this name, or the best one available. Each of several processes gets its own GPU."""
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
        # Before anything else uses CUDA; otherwise every process would allocate memory on the first GPU.
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    device = pick_device(name)
    if device.type != "cpu":
        raise UserError(f"--device {name} cannot be shared by several processes; use --device cuda or --device cpu.")
    return device


@contextmanager
def joined(device: torch.device, *, wait_minutes: float = WAIT_MINUTES) -> Iterator[World]:
    """Join the processes that torchrun started, and leave them together on exit.

    A process that does not respond for `wait_minutes` ends the others. An error that every process raises
    (`CollectiveError`) is raised by rank 0 only; the others exit with code 2.
    """
    if not math.isfinite(wait_minutes) or not 0 < wait_minutes <= _LONGEST_WAIT:
        raise UserError(f"--wait-minutes must be above 0 and at most {_LONGEST_WAIT}, got {wait_minutes:g}.")
    if not launched() or device.type == "mps":  # a machine has one MPS device, so there are no other processes
        yield World()
        return
    world = _join(device, timedelta(minutes=wait_minutes))
    try:
        with warnings.catch_warnings():
            # DistributedDataParallel warns about odd strides of dimensions of size one, which cost nothing.
            warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
            yield world
    except CollectiveError as error:
        # The traceback refers to the training, and nccl waits until the graphs that it was captured in are deleted.
        traceback.clear_frames(error.__traceback__)
        _leave(world)
        if world.is_rank0:
            raise
        raise SystemExit(2) from None
    except RuntimeError as error:
        if not _lost(error):
            raise
        if world.is_rank0:
            timed_out = "timed out" in str(error).lower()
            what = f"did not respond for {wait_minutes:g} minutes" if timed_out else "ended"
            longer = " (--wait-minutes waits longer)" if timed_out else ""
            raise UserError(
                f"Another process of this training {what}, so this one cannot continue{longer}; all written "
                "files are intact, and the same command with --resume continues the run."
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
    try:
        # A process that leaves early breaks the connections of those that still communicate.
        dist.barrier(group=world.host)
    except RuntimeError as error:
        if not _lost(error):  # a process that ended early does not matter any more: nothing is left to do
            raise
    dist.destroy_process_group()


def _lost(error: RuntimeError) -> bool:
    """Whether an error means that another process ended or stalled. gloo raises no class of its own for it."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower() or "timed out" in str(error).lower()
