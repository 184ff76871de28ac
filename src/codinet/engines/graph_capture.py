"""A function of one tensor, replayed as a CUDA graph: one launch, whatever the function does.

The next replay overwrites what the function returned. Knows nothing of networks.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

Result = TypeVar("Result")

_WARM_UPS = 3  # things that are compiled, tuned or allocated on first use must exist before the capture


class Captured(Generic[Result]):
    """`function` for inputs of the shape of `inputs`; they are copied into its dtype and memory format."""

    def __init__(self, function: Callable[[torch.Tensor], Result], inputs: torch.Tensor) -> None:
        assert inputs.is_cuda
        self.inputs = inputs.clone()
        stream = torch.cuda.Stream(inputs.device)
        stream.wait_stream(torch.cuda.current_stream(inputs.device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                function(self.inputs)
        torch.cuda.current_stream(inputs.device).wait_stream(stream)
        torch.cuda.synchronize(inputs.device)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = function(self.inputs)

    def __call__(self, inputs: torch.Tensor) -> Result:
        self.inputs.copy_(inputs)
        self.graph.replay()
        return self.result
