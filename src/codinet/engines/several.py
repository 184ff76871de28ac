"""Router scores for a batch.

`FCBatch` keeps the pooled vectors of the default router between blocks, so that an image which skipped is not
pooled again; `ModuleBatch` asks routers of any kind. Knows nothing of blocks or decisions.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol

import numpy as np
import torch

from codinet.routers import FCRouter, Routers, State, fc_routers

HostLayers = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Weight (in × out) and bias of a router's hidden layer, then of its output layer."""


class BatchScorer(Protocol):
    """The routers of a network during one pass of a batch."""

    def score(self, k: int, x_BCHW: torch.Tensor) -> np.ndarray:
        """scores_B2 of block k's router, float32 on the host."""

    def all_changed(self) -> None:
        """The next features have nothing to do with the last ones."""

    def some_changed(self, window: slice, y_RCHW: torch.Tensor) -> None:
        """The next features are the last ones but for y at these places."""

    def moved(self, source_M: np.ndarray, target_M: np.ndarray) -> None:
        """Images changed places: those at `source` are at `target`."""


class ModuleBatch:
    """Routers of any kind, as torch modules."""

    def __init__(self, routers: Routers, images_BCHW: torch.Tensor) -> None:
        self.routers = routers
        self.state: State = routers.start(images_BCHW)

    def score(self, k: int, x_BCHW: torch.Tensor) -> np.ndarray:
        scores_B2, self.state = self.routers.router(k)(x_BCHW, self.state)
        return scores_B2.float().cpu().numpy()

    def all_changed(self) -> None:
        pass

    def some_changed(self, window: slice, y_RCHW: torch.Tensor) -> None:
        pass

    def moved(self, source_M: np.ndarray, target_M: np.ndarray) -> None:
        self.state = tuple(_moved(part, source_M, target_M) for part in self.state)


class FCBatch:
    """`FCRouter`s over pooled vectors that are kept up to date."""

    def __init__(self, routers: Sequence[FCRouter]) -> None:
        self.routers = routers
        self.pooled_BC: torch.Tensor | None = None

    def score(self, k: int, x_BCHW: torch.Tensor) -> np.ndarray:
        if self.pooled_BC is None:
            self.pooled_BC = x_BCHW.mean(dim=(2, 3))
        hidden, out = self.routers[k].hidden, self.routers[k].out
        hidden_BC = torch.addmm(hidden.bias, self.pooled_BC, hidden.weight.t()).relu_()
        return torch.addmm(out.bias, hidden_BC, out.weight.t()).float().cpu().numpy()

    def all_changed(self) -> None:
        self.pooled_BC = None

    def some_changed(self, window: slice, y_RCHW: torch.Tensor) -> None:
        assert self.pooled_BC is not None
        torch.mean(y_RCHW, dim=(2, 3), out=self.pooled_BC[window])

    def moved(self, source_M: np.ndarray, target_M: np.ndarray) -> None:
        assert self.pooled_BC is not None
        self.pooled_BC = _moved(self.pooled_BC, source_M, target_M)


class FCBatchOnHost(FCBatch):
    """The same in numpy, for float32 on the CPU: matrices this small are not worth calling torch for."""

    def __init__(self, routers: Sequence[FCRouter], layers: Sequence[HostLayers]) -> None:
        super().__init__(routers)
        self.layers = layers

    def score(self, k: int, x_BCHW: torch.Tensor) -> np.ndarray:
        if self.pooled_BC is None:
            self.pooled_BC = x_BCHW.mean(dim=(2, 3))
        weight_hidden, bias_hidden, weight_out, bias_out = self.layers[k]
        hidden_BC = self.pooled_BC.numpy().dot(weight_hidden)
        hidden_BC += bias_hidden
        np.maximum(hidden_BC, 0.0, out=hidden_BC)
        scores_B2 = hidden_BC.dot(weight_out)
        scores_B2 += bias_out
        return scores_B2

    def some_changed(self, window: slice, y_RCHW: torch.Tensor) -> None:
        assert self.pooled_BC is not None
        number, channels, height, width = y_RCHW.shape
        # No copy where features are channels_last, as folded blocks leave them.
        places_RPC = y_RCHW.permute(0, 2, 3, 1).reshape(number, height * width, channels).numpy()
        np.matmul(_mean_row(height * width), places_RPC, out=self.pooled_BC.numpy()[window])

    def moved(self, source_M: np.ndarray, target_M: np.ndarray) -> None:
        assert self.pooled_BC is not None
        pooled_BC = self.pooled_BC.numpy()
        pooled_BC[target_M] = pooled_BC[source_M]


def _moved(x_BC: torch.Tensor, source_M: np.ndarray, target_M: np.ndarray) -> torch.Tensor:
    source, target = (torch.from_numpy(places).to(x_BC.device) for places in (source_M, target_M))
    return x_BC.index_copy(0, target, x_BC[source])


@cache
def _mean_row(places: int) -> np.ndarray:
    return np.full(places, 1 / places, np.float32)


def _host_layers(router: FCRouter) -> HostLayers:
    both = [
        (layer.weight.detach().t().contiguous().numpy(), layer.bias.detach().numpy())
        for layer in (router.hidden, router.out)
    ]
    (weight_hidden, bias_hidden), (weight_out, bias_out) = both
    return weight_hidden, bias_hidden, weight_out, bias_out


def scorers_of(routers: Routers) -> Callable[[torch.Tensor], BatchScorer]:
    """From the images of a pass to its scorer. What depends on the routers alone is done here, once."""
    each = fc_routers(routers)
    if each is None:
        return lambda images_BCHW: ModuleBatch(routers, images_BCHW)
    if any(p.device.type != "cpu" or p.dtype != torch.float32 for p in routers.parameters()):
        return lambda _images: FCBatch(each)
    layers = [_host_layers(router) for router in each]
    return lambda _images: FCBatchOnHost(each, layers)
