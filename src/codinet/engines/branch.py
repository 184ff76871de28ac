"""One image at a time: a block that its router skips is not called.

A batch is processed image by image. Blocks run in place, so features stay in one tensor for a whole stage, and routers
read them through views made once. Decisions are read on the host, which is free on the CPU. For batches see `gather`.
"""

from typing import ClassVar

import torch

from codinet.engines.contract import Engine, Takes
from codinet.engines.folding import fold
from codinet.engines.single import FCScorer, ModuleScorer, Scorer, fast_weights
from codinet.model import RoutedNetwork
from codinet.records import RoutedOutput
from codinet.relaxation import margin_limit


class BranchEngine(Engine):
    """A Python branch per block."""

    name: ClassVar[str] = "branch"

    def __init__(self, model: RoutedNetwork, *, threshold: float = 0.5) -> None:
        super().__init__(Takes.of(model), threshold=threshold)
        self.net = fold(model)
        self.blocks = list(self.net.blocks)
        self.fast = None if self.net.routers is None else fast_weights(self.net.routers)

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
        scorer, runs, fresh = self._scorer(image_1CHW), True, True
        x_1CHW = self._seen(self.net.start(image_1CHW), scorer)
        for k, block in enumerate(self.blocks):
            scores_2 = [0.0, 0.0]
            if scorer is not None:
                scores_2 = scorer.score(k, fresh)
                runs = scores_2[1] - scores_2[0] >= limit
            if forced is not None:
                runs = forced[k] > 0.5
            if not block.keeps:
                shortcut_1CHW = block.skip(x_1CHW)
                x_1CHW = self._seen(block.run(x_1CHW, shortcut_1CHW) if runs else shortcut_1CHW, scorer)
            elif runs:
                block.run_onto(x_1CHW)
            fresh = runs or not block.keeps
            scores_N2.append(scores_2)
            path_N.append(runs)
        return self.net.head(x_1CHW), scores_N2, path_N

    @staticmethod
    def _seen(x_1CHW: torch.Tensor, scorer: Scorer | None) -> torch.Tensor:
        """Features in a tensor that routers look at from now on."""
        x_1CHW = x_1CHW.contiguous(memory_format=torch.channels_last)
        if scorer is not None:
            scorer.see(x_1CHW)
        return x_1CHW

    def _scorer(self, image_1CHW: torch.Tensor) -> Scorer | None:
        if self.fast is not None:
            return FCScorer(self.fast)
        return None if self.net.routers is None else ModuleScorer(self.net.routers, image_1CHW)
