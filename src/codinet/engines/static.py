"""The network without routing: every block, or those of one fixed path, for every image.

Routed engines are compared with it; it is folded just as they are. It evaluates no routers, so its scores are zero, and
its path is fixed when it is made.
"""

from typing import ClassVar

import torch

from codinet.engines.contract import Engine, Takes, fixed_path
from codinet.engines.folding import fold
from codinet.engines.shares import in_shares
from codinet.model import RoutedNetwork
from codinet.records import RoutedOutput


class StaticEngine(Engine):
    """Eager and folded. `path` (N, 0 or 1) says which blocks run; by default all do."""

    name: ClassVar[str] = "static"

    def __init__(self, model: RoutedNetwork, *, path: torch.Tensor | None = None) -> None:
        super().__init__(Takes.of(model)._replace(blocks=None))
        self.net = fold(model)
        self.path = fixed_path(path, len(self.net.blocks))
        self.steps = list(zip(self.net.blocks, self.path, strict=True))

    def classify(self, images_BCHW: torch.Tensor, threshold: float, force: torch.Tensor | None) -> RoutedOutput:
        """There is no routing, so the threshold has no effect."""
        return in_shares(self._pass, images_BCHW, None)

    def _pass(self, images_BCHW: torch.Tensor, _force: torch.Tensor | None) -> RoutedOutput:
        x_BCHW = self.net.start(images_BCHW)
        for block, runs in self.steps:
            if not block.keeps:
                shortcut_BCHW = block.skip(x_BCHW)
                x_BCHW = block.run(x_BCHW, shortcut_BCHW) if runs else shortcut_BCHW
                x_BCHW = x_BCHW.contiguous(memory_format=torch.channels_last)
            elif runs:
                block.run_onto(x_BCHW)
        path_BN = torch.tensor(self.path, dtype=torch.float32).expand(len(images_BCHW), -1)
        scores_BN2 = torch.zeros(*path_BN.shape, 2)
        return RoutedOutput(
            self.net.head(x_BCHW).float(), scores_BN2.to(x_BCHW.device), path_BN.to(x_BCHW.device, copy=True)
        )
