"""Making the step fast on a GPU: blocks compiled one by one or fused by hand, the step captured in a CUDA graph.

All of it is optional and changes only speed and rounding. `building` reports what fails and leaves it out.
"""

from collections.abc import Callable
from functools import partial

import torch

from codinet.model import routed_step
from codinet.train.asking import one_launch
from codinet.train.step import Speed, Step

_WARM_UP = 3
_WARM_UP_SHARED = 11  # DistributedDataParallel profiles its first ten steps


def compiled() -> Speed:
    """Everything compiled; blocks are compiled at their first use for each shape."""
    # One version for each shape of features and way of deciding; the default limit of 8 is too low.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    # Eager random numbers: the same seed gives the same numbers, compiled or not.
    compile = partial(torch.compile, dynamic=False, options={"fallback_random": True})
    return Speed(compile(routed_step), compile)


def fused() -> Speed:
    """The same with our own kernels for the blocks and teachers that they support."""
    from codinet.train.fused import FusedStep

    block, compile, _ = compiled()
    assert block is not None
    return Speed(FusedStep(block, compile=compile), compile, one_launch)


def capture(step: Step) -> Callable[[], None]:
    """The step as one CUDA graph. Everything that the warm-up and the capture change is restored."""
    model, device = step.model, step.device
    touched = [*model.state_dict().values(), *step.momentum().values(), *step.averaged().values(), step.sums, step.bad]
    if step.controller:
        touched += step.controller.state().values()
    kept = [tensor.clone() for tensor in touched]
    random = torch.cuda.get_rng_state(device)
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    benchmark = torch.backends.cudnn.benchmark
    try:
        torch.backends.cudnn.benchmark = True  # shapes never change, so searching for the fastest kernels pays
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP if step.world.alone else _WARM_UP_SHARED):
                step()
        torch.cuda.current_stream(device).wait_stream(stream)
        with torch.cuda.graph(graph):
            step()
    finally:
        torch.backends.cudnn.benchmark = benchmark
        with torch.no_grad():
            for tensor, value in zip(touched, kept, strict=True):
                tensor.copy_(value)
        torch.cuda.set_rng_state(random, device)
    return graph.replay
