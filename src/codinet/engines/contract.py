"""What every engine is: images in, `RoutedOutput` out, the same as the network with hard decisions.

`engine(images)` equals `model(images, decide=partial(hard, threshold=t))`; `force` imposes a path as it does
there. An engine is a snapshot: training the network further does not reach it. Knows nothing of files or of
how an engine works.
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch

from codinet.errors import UserError
from codinet.records import RoutedOutput


class Engine(ABC):
    """A network made ready for inference."""

    name: ClassVar[str]

    def __init__(self, *, threshold: float = 0.5) -> None:
        self.threshold = threshold

    @torch.inference_mode()
    def __call__(
        self, images_BCHW: torch.Tensor, *, threshold: float | None = None, force: torch.Tensor | None = None
    ) -> RoutedOutput:
        """Classify a batch. `threshold` replaces the engine's own for this call: lower runs more blocks."""
        if images_BCHW.ndim != 4 or len(images_BCHW) == 0:
            raise UserError(f"An engine takes a batch of images, B×C×H×W; this is {tuple(images_BCHW.shape)}.")
        return self.classify(images_BCHW, self.threshold if threshold is None else threshold, force)

    @abstractmethod
    def classify(self, images_BCHW: torch.Tensor, threshold: float, force: torch.Tensor | None) -> RoutedOutput:
        """`__call__` with every argument settled, within inference mode."""


def margin_limit(threshold: float) -> float:
    """The least U[run] − U[skip] that runs a block; the same rule as `relaxation.hard`."""
    if 0 < threshold < 1:
        return math.log(threshold / (1 - threshold))
    return math.copysign(math.inf, threshold - 0.5)


def spread(force: torch.Tensor, images_BCHW: torch.Tensor, blocks: int) -> torch.Tensor:
    """A forced path (N or B×N) as B×N floats where the images are."""
    return force.to(images_BCHW.device, torch.float32).expand(len(images_BCHW), blocks)
