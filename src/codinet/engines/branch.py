"""One image at a time on the host: a block that its router skips is not called.

A batch is processed image by image; for batches `gather` is faster. Blocks run in place, so that features stay in one
tensor as long as their shape does, and routers read them through views that are created once per tensor.

On the CPU a router's arithmetic is negligible, but calling torch five times per router is not. `FCScorer` evaluates the
default router in four numpy calls on preallocated vectors: biases are an extra column, pooling is a product with a
constant row, a skipped block leaves the pooled vector as it was, and relu(h) is (h + |h|) / 2, because |h| takes half
the time of a maximum. Other routers are called as modules.
"""

from collections.abc import Sequence
from typing import ClassVar, Protocol

import numpy as np
import torch

from codinet.engines.contract import Engine, InputSpec
from codinet.engines.folded_network import fold
from codinet.model import RoutedNetwork
from codinet.records import RoutedOutput
from codinet.relaxation import margin_limit
from codinet.routers import FCRouter, Routers, State, fc_routers, of_image


class BranchEngine(Engine):
    """A Python branch per block.

    Args:
        model: The network; the engine keeps a folded copy.
        threshold: The run probability from which a block runs.
    """

    name: ClassVar[str] = "branch"

    def __init__(self, model: RoutedNetwork, *, threshold: float = 0.5) -> None:
        super().__init__(InputSpec.of(model), threshold=threshold)
        self.net = fold(model)
        self.blocks = list(self.net.blocks)
        self.fc_weights = None if self.net.routers is None else _fc_weights(self.net.routers)

    def classify(self, images_BCHW: torch.Tensor, threshold: float, force: torch.Tensor | None) -> RoutedOutput:
        limit = margin_limit(threshold)
        paths = [None] * len(images_BCHW) if force is None else force.tolist()
        rows = [self._one(images_BCHW[i : i + 1], limit, forced) for i, forced in enumerate(paths)]
        logits, scores, path = zip(*rows, strict=True)
        logits_BK = logits[0] if len(logits) == 1 else torch.cat(logits)
        device = logits_BK.device
        return RoutedOutput(
            logits_BK.float(),
            torch.tensor(scores, dtype=torch.float32, device=device),
            torch.tensor(path, dtype=torch.float32, device=device),
        )

    def _one(
        self, image_1CHW: torch.Tensor, limit: float, forced: list[float] | None
    ) -> tuple[torch.Tensor, list[list[float]], list[bool]]:
        """Logits, scores and path of one image."""
        scores_N2: list[list[float]] = []
        path_N: list[bool] = []
        scorer, runs, changed = self._scorer(image_1CHW), True, True
        x_1CHW = self._bind(self.net.start(image_1CHW), scorer)
        for k, block in enumerate(self.blocks):
            scores_2, active_11HW = [0.0, 0.0], None
            if scorer is not None:
                scores_2 = scorer.score(k, changed)
                runs = scores_2[1] - scores_2[0] >= limit
                active_11HW = scorer.active(limit)
            if forced is not None:
                runs, active_11HW = forced[k] > 0.5, None
            if runs and block.keeps and block.writes_inplace and active_11HW is None:
                block.run_inplace(x_1CHW)
            elif runs or not block.keeps:
                y_1CHW = block.whole(x_1CHW) if runs else block.skip(x_1CHW)
                if active_11HW is not None:
                    y_1CHW = torch.where(active_11HW, y_1CHW, block.skip(x_1CHW))
                x_1CHW = self._bind(y_1CHW, scorer)
            changed = runs or not block.keeps
            scores_N2.append(scores_2)
            path_N.append(runs)
        return self.net.head(x_1CHW), scores_N2, path_N

    @staticmethod
    def _bind(x_1CHW: torch.Tensor, scorer: "Scorer | None") -> torch.Tensor:
        """Make x the tensor that routers read from now on."""
        x_1CHW = x_1CHW.contiguous(memory_format=torch.channels_last)
        if scorer is not None:
            scorer.bind(x_1CHW)
        return x_1CHW

    def _scorer(self, image_1CHW: torch.Tensor) -> "Scorer | None":
        if self.fc_weights is not None:
            return FCScorer(self.fc_weights)
        return None if self.net.routers is None else ModuleScorer(self.net.routers, image_1CHW)


class Scorer(Protocol):
    """The routers of a network during the pass of one image."""

    def bind(self, x_1CHW: torch.Tensor) -> None:
        """Read features from this tensor, which is channels_last and may change in place."""

    def score(self, k: int, changed: bool) -> list[float]:
        """(skip, run) of block k's router; `changed` is False if features are those of the previous call."""

    def active(self, limit: float) -> torch.Tensor | None:
        """The positions (1×1×H×W) at which the block runs, if the router just called scores positions."""


class ModuleScorer:
    """Routers of any kind, as torch modules."""

    def __init__(self, routers: Routers, images_1CHW: torch.Tensor) -> None:
        self.routers = routers
        self.state: State = routers.start(images_1CHW)
        self.scores: torch.Tensor | None = None

    def bind(self, x_1CHW: torch.Tensor) -> None:
        self.x_1CHW = x_1CHW

    def score(self, k: int, changed: bool) -> list[float]:
        self.scores, self.state = self.routers.router(k)(self.x_1CHW, self.state)
        return (of_image(self.scores) if self.scores.ndim == 4 else self.scores)[0].tolist()

    def active(self, limit: float) -> torch.Tensor | None:
        return active_positions(self.scores, limit)


def active_positions(scores: torch.Tensor | None, limit: float) -> torch.Tensor | None:
    """The positions (B×1×H×W) at which a block runs; None if the scores are not of positions."""
    if scores is None or scores.ndim != 4:
        return None
    return (scores[..., 1] - scores[..., 0] >= limit)[:, None]


# numpy divides larger products among threads of its own, however few torch may use (OpenBLAS 0.3.31, matrices times
# vectors and products of matrices). Where other processes use the cores, these threads wait for each other for
# milliseconds.
ONE_THREAD = 2**18  # multiply-adds


def parts_for_one_thread(matrix: np.ndarray) -> list[tuple[slice, np.ndarray]]:
    """Groups of rows that are small enough for a product with a vector in one thread, and where they are."""
    rows = max(1, ONE_THREAD // matrix.shape[1])
    return [(slice(start, start + rows), matrix[start : start + rows]) for start in range(0, len(matrix), rows)]


class FCWeights:
    """The weights of a network's `FCRouter`s, laid out for products with one vector."""

    def __init__(self, routers: Sequence[FCRouter]) -> None:
        self.layers = [self._augmented(router) for router in routers]
        self.means: dict[int, np.ndarray] = {}  # number of positions → the row that averages over them

    @staticmethod
    def _augmented(router: FCRouter) -> tuple[list[tuple[slice, np.ndarray]], np.ndarray]:
        """[W₁ b₁] in parts and [W₂/2 W₂/2 b₂], for the vectors (z, 1) and (h, |h|, 1)."""
        hidden, out = router.hidden, router.out
        half = out.weight.detach() / 2
        first = torch.cat([hidden.weight.detach(), hidden.bias.detach()[:, None]], dim=1)
        second = torch.cat([half, half, out.bias.detach()[:, None]], dim=1)
        return parts_for_one_thread(first.contiguous().numpy()), second.contiguous().numpy()

    def mean_row(self, positions: int) -> np.ndarray:
        row = self.means.get(positions)
        if row is None:
            row = self.means[positions] = np.full(positions, 1 / positions, np.float32)
        return row


class FCScorer:
    """The default routers in numpy. Scratch vectors belong to one pass, so that threads may call an engine at once."""

    def __init__(self, weights: FCWeights) -> None:
        self.layers, self.mean_row = weights.layers, weights.mean_row
        self.scores_2 = np.empty(2, np.float32)

    def bind(self, x_1CHW: torch.Tensor) -> None:
        width = x_1CHW.shape[1]
        # In memory, channels_last features are positions × channels, so this is a view.
        x_PC = x_1CHW.numpy().transpose(0, 2, 3, 1).reshape(-1, width)
        mean_P = self.mean_row(len(x_PC))
        self.positions = [(mean_P[rows], part_PC) for rows, part_PC in parts_for_one_thread(x_PC)]
        self.pooled, self.hidden = np.ones(width + 1, np.float32), np.ones(2 * width + 1, np.float32)
        self.pooled_C, self.hidden_C, self.absolute_C = self.pooled[:-1], self.hidden[:width], self.hidden[width:-1]

    def score(self, k: int, changed: bool) -> list[float]:
        if changed:
            (mean_P, x_PC), *others = self.positions
            np.dot(mean_P, x_PC, out=self.pooled_C)
            for mean_P, x_PC in others:
                self.pooled_C += mean_P.dot(x_PC)
        parts_hidden, weight_out = self.layers[k]
        for rows, weight_hidden in parts_hidden:
            weight_hidden.dot(self.pooled, self.hidden_C[rows])
        np.absolute(self.hidden_C, self.absolute_C)
        weight_out.dot(self.hidden, self.scores_2)
        return self.scores_2.tolist()

    def active(self, limit: float) -> torch.Tensor | None:
        return None


def _fc_weights(routers: Routers) -> FCWeights | None:
    """The weights for `FCScorer`; None where it cannot replace the modules."""
    each = fc_routers(routers)
    if each is None or any(p.device.type != "cpu" or p.dtype != torch.float32 for p in routers.parameters()):
        return None
    return FCWeights(each)
