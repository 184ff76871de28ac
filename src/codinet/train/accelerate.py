"""Making the step fast on a GPU: blocks compiled one by one or fused by hand, the step captured in a CUDA graph.

All are optional and change nothing but speed and rounding; what fails is reported once and left out.
"""

from collections.abc import Callable
from functools import partial

import torch

from codinet.model import routed_step
from codinet.train.asking import one_launch
from codinet.train.step import Speed, Step

_WARM_UP = 3
_WARM_UP_SHARED = 11  # DistributedDataParallel looks at its first ten steps before it settles


def compiled() -> Speed:
    """Everything compiled, blocks at their first use for each shape."""
    # A network has a handful of shapes, times the ways of deciding; the default of 8 versions is too few.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    # Eager noise: compiled or not, the same seed draws the same.
    compile = partial(torch.compile, dynamic=False, options={"fallback_random": True})
    return Speed(compile(routed_step), compile)


def fused() -> Speed:
    """The same with kernels of our own for the blocks and teachers they were made for."""
    from codinet.train.fused import FusedStep

    block, compile, _ = compiled()
    assert block is not None
    return Speed(FusedStep(block, compile=compile), compile, one_launch)


def capture(step: Step) -> Callable[[], None]:
    """The step as one CUDA graph. State that the warm-up and the capture touch is put back."""
    model, device = step.model, step.device
    torch.backends.cudnn.benchmark = True  # shapes never change, so the fastest kernels are worth looking for
    touched = [*model.state_dict().values(), *step.momentum().values(), *step.averaged().values(), step.sums, step.bad]
    if step.controller:
        touched += step.controller.state().values()
    kept = [tensor.clone() for tensor in touched]
    random = torch.cuda.get_rng_state(device)
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP if step.world.alone else _WARM_UP_SHARED):
                step()
        torch.cuda.current_stream(device).wait_stream(stream)
        with torch.cuda.graph(graph):
            step()
    finally:
        with torch.no_grad():
            for tensor, value in zip(touched, kept, strict=True):
                tensor.copy_(value)
        torch.cuda.set_rng_state(random, device)
    return graph.replay
