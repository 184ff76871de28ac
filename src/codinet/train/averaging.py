"""A moving average of a network's weights and BatchNorm statistics, kept in a second network on fixed buffers.

Nothing here waits for the device, so `update` can be part of a captured step. Knows nothing of stages, files or
processes: callers that average statistics over processes, or shift routers, do so for both networks.
"""

import copy

import torch

from codinet.checks import require_number
from codinet.model import RoutedNetwork, require_network


class Average:
    """mean ← d·mean + (1 − d)·weights, with d = min(decay, (1 + t) / (10 + t)) after t updates.

    In the first updates the newest weights dominate, so the initial weights soon have no influence.
    """

    def __init__(self, model: RoutedNetwork, decay: float) -> None:
        require_network(model)
        require_number("decay", decay, 0, 1, below=True)
        self.decay = decay
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self._live, self._mean = _numbers(model), _numbers(self.model)
        self.updates = torch.zeros((), device=self._mean[0].device)

    @torch.no_grad()
    def update(self) -> None:
        """Take in the current weights."""
        weight = 1 - ((1 + self.updates) / (10 + self.updates)).clamp(max=self.decay)
        # _foreach_lerp_ with a weight on the device would launch a kernel per tensor.
        change = torch._foreach_sub(self._live, self._mean)
        torch._foreach_mul_(change, weight)
        torch._foreach_add_(self._mean, change)
        self.updates.add_(1)

    @torch.no_grad()
    def adopt(self) -> None:
        """Copy the averaged weights into the trained network."""
        torch._foreach_copy_(self._live, self._mean)

    def state(self) -> dict[str, torch.Tensor]:
        return {"updates": self.updates, **{f"model.{name}": each for name, each in self.model.state_dict().items()}}


def _numbers(model: torch.nn.Module) -> list[torch.Tensor]:
    """Parameters and running statistics, without BatchNorm's integer count of batches."""
    return [tensor for tensor in model.state_dict().values() if tensor.is_floating_point()]
