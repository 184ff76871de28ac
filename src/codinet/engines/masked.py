"""The reference: every block is computed, and decisions choose between its output and its shortcut.

It is the network itself with the engines' contract: not folded and not faster. The other engines are compared with it.
"""

import copy
from functools import partial
from typing import ClassVar

import torch

from codinet.engines.contract import Engine, Takes, require_finite
from codinet.model import RoutedNetwork
from codinet.records import RoutedOutput
from codinet.relaxation import hard


class MaskedEngine(Engine):
    """`model(images, decide=hard)`."""

    name: ClassVar[str] = "masked"

    def __init__(self, model: RoutedNetwork, *, threshold: float = 0.5) -> None:
        super().__init__(Takes.of(model), threshold=threshold)
        require_finite(model)
        self.model = copy.deepcopy(model).eval()

    def classify(self, images_BCHW: torch.Tensor, threshold: float, force: torch.Tensor | None) -> RoutedOutput:
        return self.model(images_BCHW, decide=partial(hard, threshold=threshold), force=force)
