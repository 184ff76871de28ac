"""Build the training step as fast as the device allows: compiled blocks or fused kernels, captured in a CUDA graph.

All of it is optional and changes only speed and rounding. Whatever fails is reported once and left out from then on.
`build_step` is the one place that builds the step of a training.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch.utils.checkpoint import checkpoint

from codinet import cuda_graphs
from codinet.data.batches import Loader, Resident, Stream
from codinet.engines.graph import GraphEngine, StaticGraphEngine, why_not
from codinet.errors import UserError, first_line
from codinet.kernels import available
from codinet.model import RoutedNetwork, routed_step, without_statistics
from codinet.train.checkpoint import random_state, set_random_state
from codinet.train.distributed import World
from codinet.train.stages import Stage
from codinet.train.step import LogitsFn, Speed, Step, Task, teacher_function
from codinet.train.teaching import answers

StepFn = Callable[[], None]

_WARM_UPS = 3
_WARM_UPS_DISTRIBUTED = 11  # DistributedDataParallel profiles its first ten steps
_MAX_ERROR = 0.1  # relative error of a teacher's logits in 16 bits; that of a wrong kernel is about 1


@dataclass(frozen=True)
class Execution:
    """How a training is executed, as opposed to what is trained.

    Args:
        compile: Compile the step and, on CUDA, capture it in a graph. Default: on CUDA.
        amp: Compute in bfloat16, losses in float32. Default: on CUDA.
        kernels: With both, use our own kernels for narrow blocks. Default: on CUDA.
        recompute: Recompute the features inside blocks in the backward pass instead of keeping them. Needs less memory
            and more time; the weights are the same. The step is not captured, and our own kernels are not used.
        sync_bn: In distributed training on GPUs, normalise by the batches of all processes.
        loader: Where training images are kept.
    """

    compile: bool | None = None
    amp: bool | None = None
    kernels: bool | None = None
    recompute: bool = False
    sync_bn: bool = False
    loader: Loader = "auto"

    def resolve(self, device: torch.device, world: World) -> "Execution":
        """Return the settings for a device: defaults filled in, and what is not available there left out."""
        on_gpu = device.type == "cuda"
        compile, amp, kernels = (on_gpu if flag is None else flag for flag in (self.compile, self.amp, self.kernels))
        return replace(
            self,
            compile=compile,
            amp=amp,
            kernels=kernels and amp and available(device) and not self.recompute,
            sync_bn=self.sync_bn and world.size > 1,
        )


class BuiltStep(NamedTuple):
    """A step, the function that runs it, and the execution that worked."""

    step: Step
    run: StepFn
    execution: Execution


def build_step(task: Task, stage: Stage, execution: Execution, warn: Callable[[str], None]) -> BuiltStep:
    """Build the step of a stage.

    In distributed training all processes build the same step: what fails in one is left out in all.

    Args:
        task: What is trained on what.
        stage: The stage.
        execution: Resolved settings. The result holds those that worked, for the next stage.
        warn: Called with a sentence about what failed.
    """
    while execution.compile:
        built, reason = _try_build(task, stage, execution)
        reasons = [each for each in task.world.gather(reason) if each is not None]
        if built and not reasons:
            return built
        del built  # two steps of one network must not both act on its gradients
        what = "The fused kernels" if execution.kernels else "Compiling or capturing the step"
        warn(f"{what} failed ({reasons[0]}); continuing without.")
        execution = replace(execution, kernels=False, compile=execution.kernels)
    step = Step(task, stage, _recomputing(Speed(), task.model) if execution.recompute else Speed())
    return BuiltStep(step, step, execution)


def _try_build(task: Task, stage: Stage, execution: Execution) -> tuple[BuiltStep | None, str | None]:
    """The step compiled and captured, or the reason why that failed."""
    try:
        # Compiled code cannot contain the exchange of BatchNorm's statistics.
        speed = Speed() if execution.sync_bn else _speed_of(execution)
        step = Step(task, stage, _recomputing(speed, task.model) if execution.recompute else speed)
        # The random numbers of a captured step cannot be set back to compute a block again.
        captured = step.device.type == "cuda" and not execution.recompute
        if not captured:
            with _unchanged(step):
                step()  # compiles it
        return BuiltStep(step, capture(step) if captured else step, execution), None
    except UserError:
        raise
    except Exception as error:  # a compiler may raise anything, and training does not depend on it
        return None, first_line(error)


def _speed_of(execution: Execution) -> Speed:
    return fused() if execution.kernels else compiled() if execution.compile else Speed()


def ask_teacher(task: Task, train: Resident | Stream, execution: Execution) -> torch.Tensor:
    """Return the teacher's answers to all fixed views of the training images; see `teaching.answers`.

    Args:
        task: What is trained on what.
        train: The training images.
        execution: Resolved settings. Several processes do not compile the teacher, because that may fail in one only.
    """
    teacher, schedule, augmentation, world = task.teacher, task.config.schedule, task.augmentation, task.world
    assert teacher is not None
    assert schedule.batch is not None
    rows = max(augmentation.fixed, schedule.batch // world.size // schedule.accumulate * augmentation.views)
    rows -= rows % augmentation.fixed
    device, shape = task.data.labels_N.device, (rows, task.data.images_NCHW.shape[1], *augmentation.size)

    def ask(speed: Speed) -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=bool(execution.amp), cache_enabled=False):
            logits_of = teacher_function(teacher, speed, shape, device)
            return answers(logits_of, train, augmentation, world, rows=rows)

    if execution.compile and world.alone:
        try:
            return ask(_speed_of(execution))
        except UserError:
            raise
        except Exception:  # a compiler may raise anything; building the step reports it
            pass
    return ask(Speed())


def _recomputing(speed: Speed, model: RoutedNetwork) -> Speed:
    """The same, but each block keeps its input only and is computed again in the backward pass."""
    step = speed.block or routed_step
    return speed._replace(
        block=partial(checkpoint, step, use_reentrant=False), backward=partial(without_statistics, model)
    )


def compiled() -> Speed:
    """Return the speed-ups by torch.compile. Blocks are compiled at their first use for each shape."""
    # One version for each shape of features and way of deciding; the default limit of 8 is too low.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    # Eager random numbers: the same seed gives the same numbers, compiled or not.
    compile = partial(torch.compile, dynamic=False, options={"fallback_random": True})
    return Speed(compile(routed_step), compile)


def fused() -> Speed:
    """Return the same with our own kernels for the blocks and teachers that they support."""
    from codinet.train.fused import FusedStep  # needs Triton

    speed = compiled()
    assert speed.block is not None
    return speed._replace(block=FusedStep(speed.block, compile=speed.compile), freeze=one_launch)


@contextmanager
def _unchanged(step: Step) -> Iterator[None]:
    """Restore everything that steps change."""
    changed = [*step.model.state_dict().values(), *step.optimizer_state().values(), *step.averaged().values()]
    changed += [step.sums, step.nonfinite]
    if step.controller:
        changed += step.controller.state().values()
    saved, random = [tensor.clone() for tensor in changed], random_state(step.device)
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(changed, saved, strict=True):
                tensor.copy_(value)
        set_random_state(random, step.device)


def capture(step: Step) -> StepFn:
    """Capture a step as one CUDA graph and restore everything that the warm-up and the capture changed.

    Returns:
        The function that replays the graph. It keeps the step, whose tensors the graph reads and writes.
    """
    with _unchanged(step):
        warm_ups = _WARM_UPS if step.world.alone else _WARM_UPS_DISTRIBUTED
        graph, _ = cuda_graphs.capture(step, step.device, warm_ups=warm_ups, benchmark=True)
    return partial(_replay, graph, step)


def _replay(graph: torch.cuda.CUDAGraph, _step: Step) -> None:
    graph.replay()


def one_launch(model: RoutedNetwork, images_BCHW: torch.Tensor) -> LogitsFn | None:
    """Return a frozen network as a function from images to logits that is one launch of the graph engine.

    Args:
        model: A network that is not trained, such as a teacher.
        images_BCHW: Images of the shape that the function will get.

    Returns:
        The function in 16 bits, or None if the engine does not support the network or is wrong on this device.
    """
    device, routed = images_BCHW.device, model.routers is not None
    if why_not(model, device, routers=routed) is not None:
        return None
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float16  # Triton's interpreter lacks bfloat16
    engine = (GraphEngine if routed else StaticGraphEngine)(model, dtype=dtype, device=device)
    try:
        logits_of = engine.launch_for(images_BCHW)
    except UserError:  # no kernel fits this device
        return None
    with torch.no_grad():
        expected_BK = model(images_BCHW).logits_BK
        close = (logits_of(images_BCHW) - expected_BK).norm() <= _MAX_ERROR * expected_BK.norm()
    return logits_of if close else None
