"""A batch in which each block computes only the images that run it.

Images that run a block are moved next to each other within the batch, so that the block runs on them in place. A block
that no image runs is not called. Where a block changes the shape of the features, images are copied out and back. The
pooled features of the default router are kept between blocks: only images that ran a block are pooled again. Decisions
are read on the host once per block. For single images `branch` is faster.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import torch

from codinet.engines.batch_slices import run_in_slices
from codinet.engines.branch import ONE_THREAD, active_positions
from codinet.engines.contract import Engine, InputSpec
from codinet.engines.folded_network import fold
from codinet.engines.folding import FoldedBlock
from codinet.model import RoutedNetwork
from codinet.records import RoutedOutput
from codinet.relaxation import margin_limit
from codinet.routers import FCRouter, Routers, State, fc_routers, of_image


class GatherEngine(Engine):
    """Gather the images that run a block, then run it on them.

    Args:
        model: The network; the engine keeps a folded copy.
        threshold: The run probability from which a block runs.
    """

    name: ClassVar[str] = "gather"

    def __init__(self, model: RoutedNetwork, *, threshold: float = 0.5) -> None:
        super().__init__(InputSpec.of(model), threshold=threshold)
        self.net = fold(model)
        self.make_scorer = None if self.net.routers is None else _scorer_factory(self.net.routers)

    def classify(self, images_BCHW: torch.Tensor, threshold: float, force: torch.Tensor | None) -> RoutedOutput:
        classify = partial(self._forward, np.float32(margin_limit(threshold)))
        return run_in_slices(classify, images_BCHW, force, self.net.at_once(images_BCHW))

    def _forward(self, limit: np.float32, images_BCHW: torch.Tensor, force: torch.Tensor | None) -> RoutedOutput:
        scorer = None if self.make_scorer is None else self.make_scorer(images_BCHW)
        forced_BN = None if force is None else force.cpu().numpy()
        batch = _Batch(self.net.start(images_BCHW), scorer)
        all_B = np.ones(len(images_BCHW), np.bool_)
        zeros_B2 = np.zeros((len(images_BCHW), 2), np.float32)
        steps: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for k, block in enumerate(self.net.blocks):
            scores_B2, runs_B = zeros_B2, all_B
            if scorer is not None:
                scores_B2 = scorer.score(k, batch.x_BCHW)
                runs_B = scores_B2[:, 1] - scores_B2[:, 0] >= limit
                batch.active_B1HW = scorer.active(float(limit))
            if forced_BN is not None:
                runs_B, batch.active_B1HW = forced_BN[batch.image_B, k] > 0.5, None
            steps.append((batch.image_B, scores_B2, runs_B))
            batch.step(block, runs_B)
        logits_BK = self.net.head(batch.in_order()).float()
        # Restore the order of the images for all blocks at once, which is cheaper than block by block.
        image_NB, scores_NB2, path_NB = (np.stack(column) for column in zip(*steps, strict=True))
        row_NB = image_NB.argsort(axis=1)
        path_BN = np.take_along_axis(path_NB, row_NB, axis=1).T.astype(np.float32)
        scores_BN2 = np.take_along_axis(scores_NB2, row_NB[:, :, None], axis=1).swapaxes(0, 1).copy()
        device = logits_BK.device
        return RoutedOutput(logits_BK, torch.from_numpy(scores_BN2).to(device), torch.from_numpy(path_BN).to(device))


class _Batch:
    """The features of a batch during one pass, and which image is in which row."""

    def __init__(self, x_BCHW: torch.Tensor, scorer: "BatchScorer | None") -> None:
        self.x_BCHW, self.scorer = x_BCHW.contiguous(memory_format=torch.channels_last), scorer
        self.image_B = np.arange(len(x_BCHW))
        self.active_B1HW: torch.Tensor | None = None  # positions at which the next block runs; None: all

    def step(self, block: FoldedBlock, runs_B: np.ndarray) -> None:
        """Apply one block to the rows that run it."""
        if not block.keeps:
            self._change_shape(block, runs_B)
        elif runs_B.any():
            window = self._gather(runs_B)
            x_RCHW = self.x_BCHW[window]
            if self.active_B1HW is None:
                block.run_inplace(x_RCHW)
            else:
                x_RCHW.copy_(torch.where(self.active_B1HW[window], block.run(x_RCHW, x_RCHW), x_RCHW))
            if self.scorer is not None:
                self.scorer.rows_changed(window, x_RCHW)

    def _gather(self, runs_B: np.ndarray) -> slice:
        """Move the rows that run next to each other; returns where they are."""
        window, source, target = plan_moves(runs_B)
        if len(source):
            self.image_B = self.image_B.copy()
            self.image_B[target] = self.image_B[source]
            move_rows(self.x_BCHW, source, target)
            if self.active_B1HW is not None:
                self.active_B1HW = _moved(self.active_B1HW, source, target)
            if self.scorer is not None:
                self.scorer.rows_moved(source, target)
        return window

    def _change_shape(self, block: FoldedBlock, runs_B: np.ndarray) -> None:
        """Apply a block whose shortcut is, or may be, a new tensor."""
        x_BCHW, active_B1HW = self.x_BCHW, self.active_B1HW
        runs_R, rest_S = (torch.from_numpy(rows.nonzero()[0]).to(x_BCHW.device) for rows in (runs_B, ~runs_B))
        if active_B1HW is None and not len(rest_S):
            y_BCHW = block.whole(x_BCHW)
        elif active_B1HW is None and block.projects_twice and len(runs_R):
            y_RCHW, y_SCHW = block.whole(take_rows(x_BCHW, runs_R)), block.skip(take_rows(x_BCHW, rest_S))
            y_BCHW = y_SCHW.new_empty(len(x_BCHW), *y_SCHW.shape[1:]).contiguous(memory_format=torch.channels_last)
            copy_rows(copy_rows(y_BCHW, runs_R, y_RCHW), rest_S, y_SCHW)
        else:
            y_BCHW = block.skip(x_BCHW)
            if len(runs_R):
                kept_RCHW = take_rows(y_BCHW, runs_R)
                y_RCHW = block.run(take_rows(x_BCHW, runs_R), kept_RCHW)
                if active_B1HW is not None:
                    y_RCHW = torch.where(active_B1HW[runs_R], y_RCHW, kept_RCHW)
                copy_rows(y_BCHW, runs_R, y_RCHW)
        self.x_BCHW = y_BCHW.contiguous(memory_format=torch.channels_last)
        if self.scorer is not None:
            self.scorer.all_changed()

    def in_order(self) -> torch.Tensor:
        """The features in the original order of the images."""
        row_B = torch.from_numpy(np.argsort(self.image_B)).to(self.x_BCHW.device)
        return take_rows(self.x_BCHW, row_B)


# Moving rows


class Moves(NamedTuple):
    """Move `source` rows to `target` rows, all at once; then `window` holds exactly the rows that run."""

    window: slice
    source_M: np.ndarray
    target_M: np.ndarray


def plan_moves(runs_B: np.ndarray) -> Moves:
    """The fewest moves that bring together the rows where `runs_B` is True; at least one must be.

    The window is the one that already holds most of these rows. Each other row in it trades places with one outside
    that runs. This copies less than taking rows out and putting them back, and nothing if consecutive blocks are run by
    the same images.
    """
    (row_R,) = runs_B.nonzero()
    number = len(row_R)
    assert number > 0
    # A best window begins at a row that runs, or would if the batch did not end.
    past_R = row_R.searchsorted(row_R + number)
    first = int((past_R - np.arange(number)).argmax())
    start = min(int(row_R[first]), len(runs_B) - number)
    window = slice(start, start + number)
    leaves_J = (~runs_B[window]).nonzero()[0]
    leaves_J += start
    inside = number - len(leaves_J)
    begin = int(row_R.searchsorted(start))
    joins_J = np.concatenate((row_R[:begin], row_R[begin + inside :]))
    return Moves(window, np.concatenate((joins_J, leaves_J)), np.concatenate((leaves_J, joins_J)))


# torch copies whole rows fast only if the tensor is contiguous. channels_last features are not, but seen as B×(H·W·C)
# they are. On the CPU numpy moves rows: index_copy_ and index_put_ take three times as long for the same bytes.


def _numpy_moves(rows: torch.Tensor) -> bool:
    return rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64, torch.float16)


def _as_rows(x_BCHW: torch.Tensor) -> torch.Tensor:
    """A view in which each row is contiguous, if there is one."""
    if x_BCHW.is_contiguous(memory_format=torch.channels_last):
        return x_BCHW.permute(0, 2, 3, 1).view(len(x_BCHW), -1)
    return x_BCHW


def take_rows(x_BCHW: torch.Tensor, index_R: torch.Tensor) -> torch.Tensor:
    """A copy of the given rows, in the same memory format."""
    rows = _as_rows(x_BCHW)
    taken = rows.index_select(0, index_R)
    if rows is x_BCHW:
        return taken
    _, channels, height, width = x_BCHW.shape
    return taken.view(-1, height, width, channels).permute(0, 3, 1, 2)


def copy_rows(x_BCHW: torch.Tensor, index_R: torch.Tensor, y_RCHW: torch.Tensor) -> torch.Tensor:
    """Write y into the given rows of x, in place; returns x."""
    rows = _as_rows(x_BCHW)
    # A block of an adopted network may return features in another format than its shortcut.
    new = y_RCHW if rows is x_BCHW else y_RCHW.permute(0, 2, 3, 1).reshape(len(y_RCHW), -1)
    if _numpy_moves(rows):
        rows.numpy()[index_R.numpy()] = new.numpy()
    else:
        rows.index_copy_(0, index_R, new.to(rows.dtype))
    return x_BCHW


def move_rows(x_BCHW: torch.Tensor, source_M: np.ndarray, target_M: np.ndarray) -> None:
    """Copy rows `source` to rows `target`, all at once."""
    rows = _as_rows(x_BCHW)
    if _numpy_moves(rows):
        array = rows.numpy()
        array[target_M] = array[source_M]
    else:
        source, target = (torch.from_numpy(index).to(rows.device) for index in (source_M, target_M))
        rows.index_copy_(0, target, rows.index_select(0, source))


# Router scores


class BatchScorer(Protocol):
    """The routers of a network during the pass of one batch."""

    def score(self, k: int, x_BCHW: torch.Tensor) -> np.ndarray:
        """scores_B2 of block k's router, float32 on the host."""

    def active(self, limit: float) -> torch.Tensor | None:
        """The positions (B×1×H×W) at which the block runs, if the router just called scores positions."""

    def all_changed(self) -> None:
        """The next features are unrelated to the previous ones."""

    def rows_changed(self, window: slice, y_RCHW: torch.Tensor) -> None:
        """The next features are the previous ones, except for y in these rows."""

    def rows_moved(self, source_M: np.ndarray, target_M: np.ndarray) -> None:
        """Rows moved from `source` to `target`."""


class ModuleScorer:
    """Routers of any kind, as torch modules."""

    def __init__(self, routers: Routers, images_BCHW: torch.Tensor) -> None:
        self.routers = routers
        self.state: State = routers.start(images_BCHW)
        self.scores: torch.Tensor | None = None

    def score(self, k: int, x_BCHW: torch.Tensor) -> np.ndarray:
        self.scores, self.state = self.routers.router(k)(x_BCHW, self.state)
        scores_B2 = of_image(self.scores) if self.scores.ndim == 4 else self.scores
        return scores_B2.float().cpu().numpy()

    def active(self, limit: float) -> torch.Tensor | None:
        return active_positions(self.scores, limit)

    def all_changed(self) -> None:
        pass

    def rows_changed(self, window: slice, y_RCHW: torch.Tensor) -> None:
        pass

    def rows_moved(self, source_M: np.ndarray, target_M: np.ndarray) -> None:
        self.state = tuple(_moved(part, source_M, target_M) for part in self.state)


class FCScorer:
    """`FCRouter`s on pooled vectors that are kept up to date."""

    def __init__(self, routers: Sequence[FCRouter]) -> None:
        self.routers = routers
        self.pooled_BC: torch.Tensor | None = None

    def score(self, k: int, x_BCHW: torch.Tensor) -> np.ndarray:
        if self.pooled_BC is None:
            self.pooled_BC = x_BCHW.mean(dim=(2, 3))
        return self.routers[k].scores(self.pooled_BC).float().cpu().numpy()

    def active(self, limit: float) -> torch.Tensor | None:
        return None

    def all_changed(self) -> None:
        self.pooled_BC = None

    def rows_changed(self, window: slice, y_RCHW: torch.Tensor) -> None:
        assert self.pooled_BC is not None
        torch.mean(y_RCHW, dim=(2, 3), out=self.pooled_BC[window])

    def rows_moved(self, source_M: np.ndarray, target_M: np.ndarray) -> None:
        assert self.pooled_BC is not None
        self.pooled_BC = _moved(self.pooled_BC, source_M, target_M)


HostLayers = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Weight (in × out) and bias of a router's hidden layer, then of its output layer."""


class FCHostScorer(FCScorer):
    """The same in numpy, for float32 on the CPU: calling torch takes longer than the products of narrow networks.

    Those that numpy would divide among threads of its own are left to torch.
    """

    def __init__(self, routers: Sequence[FCRouter], layers: Sequence[HostLayers]) -> None:
        super().__init__(routers)
        self.layers = layers

    def score(self, k: int, x_BCHW: torch.Tensor) -> np.ndarray:
        if len(x_BCHW) * x_BCHW.shape[1] ** 2 > ONE_THREAD:
            return super().score(k, x_BCHW)
        if self.pooled_BC is None:
            self.pooled_BC = x_BCHW.mean(dim=(2, 3))
        weight_hidden, bias_hidden, weight_out, bias_out = self.layers[k]
        hidden_BC = self.pooled_BC.numpy().dot(weight_hidden)
        hidden_BC += bias_hidden
        np.maximum(hidden_BC, 0.0, out=hidden_BC)
        scores_B2 = hidden_BC.dot(weight_out)
        scores_B2 += bias_out
        return scores_B2

    def rows_changed(self, window: slice, y_RCHW: torch.Tensor) -> None:
        assert self.pooled_BC is not None
        number, channels, height, width = y_RCHW.shape
        if channels * height * width > ONE_THREAD:
            super().rows_changed(window, y_RCHW)
            return
        # A view where features are channels_last, as folded blocks leave them.
        y_RPC = y_RCHW.permute(0, 2, 3, 1).reshape(number, height * width, channels).numpy()
        np.matmul(_mean_row(height * width), y_RPC, out=self.pooled_BC.numpy()[window])

    def rows_moved(self, source_M: np.ndarray, target_M: np.ndarray) -> None:
        assert self.pooled_BC is not None
        pooled_BC = self.pooled_BC.numpy()
        pooled_BC[target_M] = pooled_BC[source_M]


def _moved(x_BC: torch.Tensor, source_M: np.ndarray, target_M: np.ndarray) -> torch.Tensor:
    source, target = (torch.from_numpy(index).to(x_BC.device) for index in (source_M, target_M))
    return x_BC.index_copy(0, target, x_BC[source])


@cache
def _mean_row(positions: int) -> np.ndarray:
    return np.full(positions, 1 / positions, np.float32)


def _host_layers(router: FCRouter) -> HostLayers:
    both = [
        (layer.weight.detach().t().contiguous().numpy(), layer.bias.detach().numpy())
        for layer in (router.hidden, router.out)
    ]
    (weight_hidden, bias_hidden), (weight_out, bias_out) = both
    return weight_hidden, bias_hidden, weight_out, bias_out


def _scorer_factory(routers: Routers) -> Callable[[torch.Tensor], BatchScorer]:
    """A function from the images of a pass to its scorer. What depends on the routers alone is computed here, once."""
    each = fc_routers(routers)
    if each is None:
        return lambda images_BCHW: ModuleScorer(routers, images_BCHW)
    if any(p.device.type != "cpu" or p.dtype != torch.float32 for p in routers.parameters()):
        return lambda _images: FCScorer(each)
    layers = [_host_layers(router) for router in each]
    return lambda _images: FCHostScorer(each, layers)
