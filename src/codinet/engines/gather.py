"""A batch, of which each block computes only the images that run it.

They are gathered, run and written back over their old features. A block that no image runs is not called, one
that all run needs no gathering. What the default router pools is kept between blocks: only images that ran
are pooled anew. Decisions are read on the host once a block. For single images `branch` is faster.
"""

from typing import ClassVar

import torch

from codinet.engines.contract import Engine, margin_limit, spread
from codinet.engines.folding import FoldedBlock, fold
from codinet.engines.rows import copy_rows, take_rows
from codinet.engines.several import BatchScorer, make_scorer
from codinet.model import RoutedNetwork
from codinet.records import RoutedOutput


class GatherEngine(Engine):
    """Gather, run, scatter."""

    name: ClassVar[str] = "gather"

    def __init__(self, model: RoutedNetwork, *, threshold: float = 0.5) -> None:
        super().__init__(threshold=threshold)
        self.net = fold(model)

    def classify(self, images_BCHW: torch.Tensor, threshold: float, force: torch.Tensor | None) -> RoutedOutput:
        x_BCHW = self.net.start(images_BCHW)
        shape_BN = len(images_BCHW), len(self.net.blocks)
        scorer = None if self.net.routers is None else make_scorer(self.net.routers, images_BCHW)
        forced_BN = None if force is None else spread(force, images_BCHW, shape_BN[1])
        scores_BN2 = torch.zeros(*shape_BN, 2, device=x_BCHW.device)
        path_BN = torch.ones(shape_BN, device=x_BCHW.device)
        limit = margin_limit(threshold)
        for k, block in enumerate(self.net.blocks):
            if scorer is not None:
                scores_B2 = scorer.score(k, x_BCHW).float()
                scores_BN2[:, k] = scores_B2
                path_BN[:, k] = scores_B2[:, 1] - scores_B2[:, 0] >= limit
            if forced_BN is not None:
                path_BN[:, k] = forced_BN[:, k]
            x_BCHW = _step(block, x_BCHW, path_BN[:, k].nonzero().squeeze(1), scorer)
        return RoutedOutput(self.net.head(x_BCHW).float(), scores_BN2, path_BN)


def _step(block: FoldedBlock, x_BCHW: torch.Tensor, runs_R: torch.Tensor, scorer: BatchScorer | None) -> torch.Tensor:
    """The next features; `runs_R` are the places of the images that run the block. x may be written into."""
    shortcut_BCHW = block.skip(x_BCHW)
    changed = shortcut_BCHW is not x_BCHW
    if len(runs_R) == len(x_BCHW):
        y_BCHW = block.run(x_BCHW, shortcut_BCHW)
        if scorer is not None:
            scorer.all_changed()
        return y_BCHW
    if changed and scorer is not None:
        scorer.all_changed()
    if len(runs_R) == 0:
        return shortcut_BCHW
    x_RCHW = take_rows(x_BCHW, runs_R)
    y_RCHW = block.run(x_RCHW, take_rows(shortcut_BCHW, runs_R) if changed else x_RCHW)
    if scorer is not None and not changed:
        scorer.some_changed(runs_R, y_RCHW)
    return copy_rows(shortcut_BCHW, runs_R, y_RCHW)
