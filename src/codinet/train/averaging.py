"""A moving average of a network's weights and BatchNorm statistics, kept in a second network on fixed buffers.

Nothing here waits for the device, so `update` can be part of a captured step. Knows nothing of stages, files or
processes: who averages statistics over processes, or shifts routers, does so to both networks.
"""

import copy

import torch

from codinet.model import RoutedNetwork


class Average:
    """mean ← d·mean + (1 − d)·weights, with d = min(decay, (1 + t) / (10 + t)) after t updates.

    Of few updates the mean is mostly of the newest weights, so that where it began soon does not matter.
    """

    def __init__(self, model: RoutedNetwork, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self._live, self._mean = _numbers(model), _numbers(self.model)
        self.updates = torch.zeros((), device=self._mean[0].device)

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights as they are now."""
        weight = 1 - ((1 + self.updates) / (10 + self.updates)).clamp(max=self.decay)
        # _foreach_lerp_ takes a weight that lies on the device for each tensor apart only, a kernel a tensor.
        change = torch._foreach_sub(self._live, self._mean)
        torch._foreach_mul_(change, weight)
        torch._foreach_add_(self._mean, change)
        self.updates.add_(1)

    @torch.no_grad()
    def adopt(self) -> None:
        """Give the network that is trained the averaged weights."""
        torch._foreach_copy_(self._live, self._mean)

    def state(self) -> dict[str, torch.Tensor]:
        return {"updates": self.updates, **{f"model.{name}": each for name, each in self.model.state_dict().items()}}


def _numbers(model: torch.nn.Module) -> list[torch.Tensor]:
    """Parameters and running statistics; BatchNorm's count of batches is none to average."""
    return [tensor for tensor in model.state_dict().values() if tensor.is_floating_point()]
