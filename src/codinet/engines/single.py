"""Router scores for one image on the CPU, at a few microseconds each.

A router's arithmetic is nothing beside its block's; what costs is calling torch five times for it. Here the
default router is four calls of numpy on views made beforehand: biases ride along as one more column, pooling is a
product with a constant row, a block that was skipped leaves the pooled vector as it was, and relu(h) is (h + |h|) / 2,
because taking the greater of a vector and a number costs twice what |h| does. Other routers are asked through their
modules. Knows nothing of blocks or decisions.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from codinet.routers import FCRouter, Routers, State, fc_routers


class Scorer(Protocol):
    """The routers of a network during one pass of one image."""

    def see(self, x_1CHW: torch.Tensor) -> None:
        """From now on features are in this tensor, which is channels_last; they may change in place."""

    def score(self, k: int, fresh: bool) -> list[float]:
        """(skip, run) of block k's router; `fresh` is False where features are what the router before saw."""


class ModuleScorer:
    """Routers of any kind, as torch modules."""

    def __init__(self, routers: Routers, images_1CHW: torch.Tensor) -> None:
        self.routers = routers
        self.state: State = routers.start(images_1CHW)

    def see(self, x_1CHW: torch.Tensor) -> None:
        self.x_1CHW = x_1CHW

    def score(self, k: int, fresh: bool) -> list[float]:
        scores_12, self.state = self.routers.router(k)(self.x_1CHW, self.state)
        return scores_12[0].tolist()


class FCScores:
    """The weights of a network's `FCRouter`s, laid out for products with one vector."""

    def __init__(self, routers: Sequence[FCRouter]) -> None:
        self.layers = [self._augmented(router) for router in routers]
        self.means: dict[int, np.ndarray] = {}  # number of places → the row that averages over them

    @staticmethod
    def _augmented(router: FCRouter) -> tuple[np.ndarray, np.ndarray]:
        """[W₁ b₁] and [W₂/2 W₂/2 b₂], for vectors z, 1 and h, |h|, 1."""
        hidden, out = router.hidden, router.out
        half = out.weight.detach() / 2
        first = torch.cat([hidden.weight.detach(), hidden.bias.detach()[:, None]], dim=1)
        second = torch.cat([half, half, out.bias.detach()[:, None]], dim=1)
        return first.contiguous().numpy(), second.contiguous().numpy()

    def mean_row(self, places: int) -> np.ndarray:
        row = self.means.get(places)
        if row is None:
            row = self.means[places] = np.full(places, 1 / places, np.float32)
        return row


class FCScorer:
    """One pass over `FCScores`. Scratch vectors are the pass's own, so engines may be called by many threads."""

    def __init__(self, weights: FCScores) -> None:
        self.layers, self.mean_row = weights.layers, weights.mean_row
        self.scores_2 = np.empty(2, np.float32)

    def see(self, x_1CHW: torch.Tensor) -> None:
        width = x_1CHW.shape[1]
        # Views made once a stage: places × channels is how channels_last features lie in memory.
        self.places_PC = x_1CHW.numpy().transpose(0, 2, 3, 1).reshape(-1, width)
        self.mean_P = self.mean_row(len(self.places_PC))
        self.pooled, self.hidden = np.ones(width + 1, np.float32), np.ones(2 * width + 1, np.float32)
        self.pooled_C, self.hidden_C, self.absolute_C = self.pooled[:-1], self.hidden[:width], self.hidden[width:-1]

    def score(self, k: int, fresh: bool) -> list[float]:
        if fresh:
            np.dot(self.mean_P, self.places_PC, out=self.pooled_C)
        weight_hidden, weight_out = self.layers[k]
        weight_hidden.dot(self.pooled, self.hidden_C)
        np.absolute(self.hidden_C, self.absolute_C)
        weight_out.dot(self.hidden, self.scores_2)
        return self.scores_2.tolist()


def fast_weights(routers: Routers) -> FCScores | None:
    """The weights for `FCScorer`, or None where it cannot stand in for the modules."""
    each = fc_routers(routers)
    if each is None or any(p.device.type != "cpu" or p.dtype != torch.float32 for p in routers.parameters()):
        return None
    return FCScores(each)
