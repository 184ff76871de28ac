"""Router scores for a batch.

`FCBatch` keeps the pooled vectors of the default router between blocks, so that an image which skipped is not
pooled again; `ModuleBatch` asks routers of any kind. Knows nothing of blocks or decisions.
"""

from typing import Protocol

import numpy as np
import torch
from torch import nn

from codinet.routers import FCRouter, Routers, SeparateRouters, State


class BatchScorer(Protocol):
    """The routers of a network during one pass of a batch."""

    def score(self, k: int, x_BCHW: torch.Tensor) -> torch.Tensor:
        """scores_B2 of block k's router."""

    def all_changed(self) -> None:
        """The next features have nothing to do with the last ones."""

    def some_changed(self, index_R: torch.Tensor, y_RCHW: torch.Tensor) -> None:
        """The next features are the last ones but for y at these places."""


class ModuleBatch:
    """Routers of any kind, as torch modules."""

    def __init__(self, routers: Routers, images_BCHW: torch.Tensor) -> None:
        self.routers = routers
        self.state: State = routers.start(images_BCHW)

    def score(self, k: int, x_BCHW: torch.Tensor) -> torch.Tensor:
        scores_B2, self.state = self.routers.router(k)(x_BCHW, self.state)
        return scores_B2

    def all_changed(self) -> None:
        pass

    def some_changed(self, index_R: torch.Tensor, y_RCHW: torch.Tensor) -> None:
        pass


class FCBatch:
    """`FCRouter`s over pooled vectors that are kept up to date."""

    def __init__(self, routers: SeparateRouters) -> None:
        self.routers = routers
        self.pooled_BC: torch.Tensor | None = None

    def score(self, k: int, x_BCHW: torch.Tensor) -> torch.Tensor:
        if self.pooled_BC is None:
            self.pooled_BC = x_BCHW.mean(dim=(2, 3))
        router = self.routers.each[k]
        assert isinstance(router, FCRouter)
        hidden, out = router.hidden, router.out
        hidden_BC = torch.addmm(hidden.bias, self.pooled_BC, hidden.weight.t()).relu_()
        return torch.addmm(out.bias, hidden_BC, out.weight.t())

    def all_changed(self) -> None:
        self.pooled_BC = None

    def some_changed(self, index_R: torch.Tensor, y_RCHW: torch.Tensor) -> None:
        assert self.pooled_BC is not None
        self.pooled_BC.index_copy_(0, index_R, y_RCHW.mean(dim=(2, 3)))


class FCBatchOnHost(FCBatch):
    """The same in numpy, for float32 on the CPU: matrices this small are not worth waking threads for."""

    def score(self, k: int, x_BCHW: torch.Tensor) -> torch.Tensor:
        if self.pooled_BC is None:
            self.pooled_BC = torch.from_numpy(_pool(x_BCHW))
        router = self.routers.each[k]
        assert isinstance(router, FCRouter)
        hidden_BC = _linear(self.pooled_BC.numpy(), router.hidden)
        np.maximum(hidden_BC, 0.0, out=hidden_BC)
        return torch.from_numpy(_linear(hidden_BC, router.out))

    def some_changed(self, index_R: torch.Tensor, y_RCHW: torch.Tensor) -> None:
        assert self.pooled_BC is not None
        self.pooled_BC.numpy()[index_R.numpy()] = _pool(y_RCHW)


def _pool(x_BCHW: torch.Tensor) -> np.ndarray:
    number, channels, height, width = x_BCHW.shape
    # No copy where features are channels_last, as folded blocks leave them.
    places_BPC = x_BCHW.permute(0, 2, 3, 1).reshape(number, height * width, channels).numpy()
    return np.matmul(np.full(height * width, 1 / (height * width), np.float32), places_BPC)


def _linear(x_BC: np.ndarray, layer: nn.Linear) -> np.ndarray:
    y_BC = x_BC @ layer.weight.detach().numpy().T
    y_BC += layer.bias.detach().numpy()
    return y_BC


def make_scorer(routers: Routers, images_BCHW: torch.Tensor) -> BatchScorer:
    if not isinstance(routers, SeparateRouters) or any(type(router) is not FCRouter for router in routers.each):
        return ModuleBatch(routers, images_BCHW)
    on_host = all(p.device.type == "cpu" and p.dtype == torch.float32 for p in routers.parameters())
    return FCBatchOnHost(routers) if on_host else FCBatch(routers)
