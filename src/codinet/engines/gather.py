"""A batch of which each block computes only the images that run it.

These images are moved next to each other within the batch (see `lineup`), so that a block runs on them in place. A
block that no image runs is not called. Where a block changes the shape of the features, images are copied out and back.
The pooled features of the default router are kept between blocks: only images that ran are pooled again. Decisions are
read on the host once per block. For single images `branch` is faster.
"""

from functools import partial
from typing import ClassVar

import numpy as np
import torch

from codinet.engines.contract import Engine, Takes
from codinet.engines.folding import FoldedBlock, fold
from codinet.engines.lineup import trade
from codinet.engines.rows import copy_rows, move_rows, take_rows
from codinet.engines.several import BatchScorer, scorers_of
from codinet.engines.shares import in_shares
from codinet.model import RoutedNetwork
from codinet.records import RoutedOutput
from codinet.relaxation import margin_limit


class GatherEngine(Engine):
    """Bring together, run."""

    name: ClassVar[str] = "gather"

    def __init__(self, model: RoutedNetwork, *, threshold: float = 0.5) -> None:
        super().__init__(Takes.of(model), threshold=threshold)
        self.net = fold(model)
        self.scorers = None if self.net.routers is None else scorers_of(self.net.routers)

    def classify(self, images_BCHW: torch.Tensor, threshold: float, force: torch.Tensor | None) -> RoutedOutput:
        return in_shares(partial(self._pass, np.float32(margin_limit(threshold))), images_BCHW, force)

    def _pass(self, limit: np.float32, images_BCHW: torch.Tensor, force: torch.Tensor | None) -> RoutedOutput:
        scorer = None if self.scorers is None else self.scorers(images_BCHW)
        forced_BN = None if force is None else force.cpu().numpy()
        places = _Places(self.net.start(images_BCHW), scorer)
        everyone_B = np.ones(len(images_BCHW), np.bool_)
        seen: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        nothing_B2 = np.zeros((len(images_BCHW), 2), np.float32)
        for k, block in enumerate(self.net.blocks):
            scores_B2, runs_B = nothing_B2, everyone_B
            if scorer is not None:
                scores_B2 = scorer.score(k, places.x_BCHW)
                runs_B = scores_B2[:, 1] - scores_B2[:, 0] >= limit
            if forced_BN is not None:
                runs_B = forced_BN[places.image_B, k] > 0.5
            seen.append((places.image_B, scores_B2, runs_B))
            places.step(block, runs_B)
        logits_BK = self.net.head(places.in_order()).float()
        # In the order of the images from here on, for all blocks at once: it is cheaper than block by block.
        image_NB, scores_NB2, path_NB = (np.stack(column) for column in zip(*seen, strict=True))
        place_NB = image_NB.argsort(axis=1)
        path_BN = np.take_along_axis(path_NB, place_NB, axis=1).T.astype(np.float32)
        scores_BN2 = np.take_along_axis(scores_NB2, place_NB[:, :, None], axis=1).swapaxes(0, 1).copy()
        device = logits_BK.device
        return RoutedOutput(logits_BK, torch.from_numpy(scores_BN2).to(device), torch.from_numpy(path_BN).to(device))


class _Places:
    """The features of a batch during one pass, and which image lies where."""

    def __init__(self, x_BCHW: torch.Tensor, scorer: BatchScorer | None) -> None:
        self.x_BCHW, self.scorer = x_BCHW.contiguous(memory_format=torch.channels_last), scorer
        self.image_B = np.arange(len(x_BCHW))

    def step(self, block: FoldedBlock, runs_B: np.ndarray) -> None:
        """One block, for the images at the places that run it."""
        if not block.keeps:
            self._change(block, runs_B)
        elif runs_B.any():
            window = self._together(runs_B)
            x_RCHW = self.x_BCHW[window]
            block.run_onto(x_RCHW)
            if self.scorer is not None:
                self.scorer.some_changed(window, x_RCHW)

    def _together(self, runs_B: np.ndarray) -> slice:
        """The places of the images that run, which are next to each other from now on."""
        window, source, target = trade(runs_B)
        if len(source):
            self.image_B = self.image_B.copy()
            self.image_B[target] = self.image_B[source]
            move_rows(self.x_BCHW, source, target)
            if self.scorer is not None:
                self.scorer.moved(source, target)
        return window

    def _change(self, block: FoldedBlock, runs_B: np.ndarray) -> None:
        """A block whose shortcut is new features, or may be."""
        x_BCHW, shortcut_BCHW = self.x_BCHW, block.skip(self.x_BCHW)
        if runs_B.all():
            shortcut_BCHW = block.run(x_BCHW, shortcut_BCHW)
        elif runs_B.any():
            runs_R = torch.from_numpy(runs_B.nonzero()[0]).to(x_BCHW.device)
            y_RCHW = block.run(take_rows(x_BCHW, runs_R), take_rows(shortcut_BCHW, runs_R))
            copy_rows(shortcut_BCHW, runs_R, y_RCHW)
        self.x_BCHW = shortcut_BCHW.contiguous(memory_format=torch.channels_last)
        if self.scorer is not None:
            self.scorer.all_changed()

    def in_order(self) -> torch.Tensor:
        """The features in the order in which the images came."""
        place_B = torch.from_numpy(np.argsort(self.image_B)).to(self.x_BCHW.device)
        return take_rows(self.x_BCHW, place_B)
