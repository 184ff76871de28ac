"""A moving average of the weights. It runs inside a captured step, so nothing here waits for the device."""

import copy

import torch

from codinet.checks import require_number
from codinet.model import RoutedNetwork, require_network


class Average:
    """A moving average of weights and BatchNorm statistics, kept in a second network.

    average ← d·average + (1 − d)·weights, with d = min(decay, (1 + t) / (10 + t)) after t updates, so that the initial
    weights soon have no influence. `torch.optim.swa_utils.AveragedModel` computes d on the host, which a captured step
    cannot do.

    Args:
        model: The network that is trained.
        decay: The limit of d.
    """

    def __init__(self, model: RoutedNetwork, decay: float) -> None:
        require_network(model)
        require_number("decay", decay, 0, 1, below=True)
        self.decay = decay
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self._live, self._mean = _float_tensors(model), _float_tensors(self.model)
        self.updates = torch.zeros((), device=self._mean[0].device)

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the current weights."""
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
        """The tensors that a checkpoint needs."""
        return {"updates": self.updates, **{f"model.{name}": each for name, each in self.model.state_dict().items()}}


def _float_tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    """Parameters and running statistics, each once, without BatchNorm's integer count of batches."""
    names = {id(tensor): name for name, tensor in model.state_dict(keep_vars=True).items()}  # one name if it is shared
    tensors = model.state_dict()
    return [tensors[name] for name in names.values() if tensors[name].is_floating_point()]
