"""The engines that others are compared with.

`MaskedEngine` is the reference for outputs: the network itself, not folded and not faster. `StaticEngine` is the
reference for speed: no routing, but folded just as the routed engines are.
"""

import copy
from functools import partial
from typing import ClassVar

import torch

from codinet.engines.batch_slices import run_in_slices
from codinet.engines.contract import Engine, InputSpec, fixed_path, require_finite
from codinet.engines.folded_network import fold
from codinet.model import RoutedNetwork
from codinet.records import RoutedOutput
from codinet.relaxation import hard


class MaskedEngine(Engine):
    """`model(images, decide=hard)`: every block is computed, decisions select its output or its shortcut.

    Args:
        model: The network; the engine keeps a copy.
        threshold: The run probability from which a block runs.
    """

    name: ClassVar[str] = "masked"

    def __init__(self, model: RoutedNetwork, *, threshold: float = 0.5) -> None:
        super().__init__(InputSpec.of(model), threshold=threshold)
        require_finite(model)
        self.model = copy.deepcopy(model).eval()

    def classify(self, images_BCHW: torch.Tensor, threshold: float, force: torch.Tensor | None) -> RoutedOutput:
        return self.model(images_BCHW, decide=partial(hard, threshold=threshold), force=force)


class StaticEngine(Engine):
    """One fixed path for all images. It evaluates no routers, so scores are zero and the threshold has no effect.

    Args:
        model: The network; the engine keeps a folded copy.
        path: The blocks to run (N, 0 or 1). Default: all.
    """

    name: ClassVar[str] = "static"

    def __init__(self, model: RoutedNetwork, *, path: torch.Tensor | None = None) -> None:
        super().__init__(InputSpec.of(model)._replace(blocks=None))
        self.net = fold(model)
        self.path = fixed_path(path, len(self.net.blocks))
        self.steps = list(zip(self.net.blocks, self.path, strict=True))

    def classify(self, images_BCHW: torch.Tensor, threshold: float, force: torch.Tensor | None) -> RoutedOutput:
        return run_in_slices(self._forward, images_BCHW, None, self.net.at_once(images_BCHW))

    def _forward(self, images_BCHW: torch.Tensor, _force: torch.Tensor | None) -> RoutedOutput:
        x_BCHW = self.net.start(images_BCHW)
        for block, runs in self.steps:
            if runs and block.keeps and block.writes_inplace:
                block.run_inplace(x_BCHW)
            elif runs or not block.keeps:
                x_BCHW = block.whole(x_BCHW) if runs else block.skip(x_BCHW)
                x_BCHW = x_BCHW.contiguous(memory_format=torch.channels_last)
        path_BN = torch.tensor(self.path, dtype=torch.float32).expand(len(images_BCHW), -1)
        scores_BN2 = torch.zeros(*path_BN.shape, 2)
        return RoutedOutput(
            self.net.head(x_BCHW).float(), scores_BN2.to(x_BCHW.device), path_BN.to(x_BCHW.device, copy=True)
        )
