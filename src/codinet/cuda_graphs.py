"""CUDA graphs: record the kernels that a function launches once, then replay them with a single launch.

A replay reads and writes the memory of the recording, so inputs must be copied into the tensors that the function read,
and results are overwritten by the next replay.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

Result = TypeVar("Result")

WARM_UPS = 3  # whatever is compiled, tuned or allocated on first use must exist before the capture


def capture(
    function: Callable[[], Result],
    device: torch.device,
    *,
    warm_ups: int = WARM_UPS,
    benchmark: bool = False,
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Warm a function up on a side stream, then capture one call of it.

    Args:
        function: Launches kernels on `device` and never waits for them.
        device: A CUDA device.
        warm_ups: Calls before the capture.
        benchmark: Let cuDNN search for its fastest convolutions meanwhile, which pays because shapes are fixed.

    Returns:
        The graph, whose `replay()` repeats the call, and what the captured call returned. If the function fails, its
        exception is raised.
    """
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    graph = torch.cuda.CUDAGraph()
    previous = torch.backends.cudnn.benchmark
    try:
        torch.backends.cudnn.benchmark = benchmark or previous
        with torch.cuda.stream(stream):
            for _ in range(warm_ups):
                function()
        torch.cuda.current_stream(device).wait_stream(stream)
        torch.cuda.synchronize(device)
        with torch.cuda.graph(graph):
            result = function()
    finally:
        torch.backends.cudnn.benchmark = previous
    return graph, result


class CapturedCall(Generic[Result]):
    """A function of one tensor as a CUDA graph, for inputs of one shape.

    Args:
        function: What to capture; see `capture`.
        inputs: An example on a CUDA device. Later inputs are copied into its dtype and memory format.
        benchmark: See `capture`.
    """

    def __init__(
        self, function: Callable[[torch.Tensor], Result], inputs: torch.Tensor, *, benchmark: bool = False
    ) -> None:
        assert inputs.is_cuda
        self.inputs = inputs.clone()
        self.graph, self.result = capture(lambda: function(self.inputs), inputs.device, benchmark=benchmark)

    def __call__(self, inputs: torch.Tensor) -> Result:
        self.inputs.copy_(inputs)
        self.graph.replay()
        return self.result
