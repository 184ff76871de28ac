"""Making the step fast on a GPU: blocks compiled one by one, the whole step captured in a CUDA graph.

Both are optional and change nothing but speed; what fails is reported once and left out.
"""

from collections.abc import Callable

import torch

from codinet.model import RoutedStep, routed_step
from codinet.train.step import Step

_WARM_UP = 3


def compile_step() -> RoutedStep:
    """`routed_step`, compiled at its first use for each shape of block."""
    # A network has a handful of shapes, times the ways of deciding; the default of 8 versions is too few.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    return torch.compile(routed_step, dynamic=False)


def capture(step: Step) -> Callable[[], None]:
    """The step as one CUDA graph. State that the warm-up and the capture touch is put back."""
    model, device = step.model, step.device
    torch.backends.cudnn.benchmark = True  # shapes never change, so the fastest kernels are worth looking for
    touched = [*model.state_dict().values(), *step.momentum().values(), step.sums, step.bad]
    if step.controller:
        touched += step.controller.state().values()
    kept = [tensor.clone() for tensor in touched]
    random = torch.cuda.get_rng_state(device)
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
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
