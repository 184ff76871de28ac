"""What every engine is: images in, `RoutedOutput` out, the same as the network with hard decisions.

`engine(images)` equals `model(images, decide=partial(hard, threshold=t))`; `force` imposes a path as it does
there. Input that the network was not made for is a `UserError`, the same of all engines. So are weights and images that
are not finite: a fused activation makes 0 of NaN, and the answer would look like any other. Images on a GPU are not
looked at for that, because the host would have to wait. An engine is a snapshot: training the network further does not
reach it. Knows nothing of files or of how an engine works.
"""

import itertools
import math
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch

from codinet.errors import UserError
from codinet.model import RoutedNetwork, spread
from codinet.records import RoutedOutput


class Takes(NamedTuple):
    """What an engine can be asked. None stands for anything, but for a path: there it stands for nothing."""

    channels: int | None  # of an image
    dtype: torch.dtype | None  # of images; any of floats where the engine converts them itself
    blocks: int | None  # of a forced path

    @classmethod
    def of(cls, model: RoutedNetwork) -> "Takes":
        """What the network itself takes."""
        dtype = next((parameter.dtype for parameter in model.parameters()), None)
        return cls(model.in_channels, dtype, len(model.blocks))

    def check(self, images_BCHW: torch.Tensor) -> None:
        """`UserError` for what is no batch of images to this engine."""
        shape, dtype = images_BCHW.shape, images_BCHW.dtype
        if len(shape) != 4 or shape[0] == 0:
            raise UserError(f"An engine takes a batch of images, B×C×H×W; this is {tuple(shape)}.")
        if not dtype.is_floating_point:
            raise UserError(f"An engine takes normalised images, which are floats; these are {dtype}.")
        if self.dtype is not None and dtype != self.dtype:
            raise UserError(f"This engine takes images in {self.dtype}; these are in {dtype}.")
        if self.channels is not None and shape[1] != self.channels:
            raise UserError(f"This network takes images of {self.channels} channels; these have {shape[1]}.")
        # A sum takes half a percent of the shortest call, asking every pixel thrice that. But it may overflow.
        if images_BCHW.is_cpu and not math.isfinite(images_BCHW.sum().item()):
            _require_finite_images(images_BCHW)


class Engine(ABC):
    """A network made ready for inference."""

    name: ClassVar[str]

    def __init__(self, takes: Takes, *, threshold: float = 0.5) -> None:
        self.takes, self.threshold = takes, threshold

    @torch.inference_mode()
    def __call__(
        self, images_BCHW: torch.Tensor, *, threshold: float | None = None, force: torch.Tensor | None = None
    ) -> RoutedOutput:
        """Classify a batch. `threshold` replaces the engine's own for this call: lower runs more blocks.

        `force` (N or B×N) imposes a path, where the engine can be told one.
        """
        self.takes.check(images_BCHW)
        if force is not None:
            if self.takes.blocks is None:
                raise UserError(f"A path cannot be forced on the {self.name} engine; make a static one of that path.")
            force = spread(force, images_BCHW, self.takes.blocks)
        return self.classify(images_BCHW, self.threshold if threshold is None else threshold, force)

    @abstractmethod
    def classify(self, images_BCHW: torch.Tensor, threshold: float, force: torch.Tensor | None) -> RoutedOutput:
        """`__call__` with every argument settled and checked, `force` as B×N, within inference mode."""


def _require_finite_images(images_BCHW: torch.Tensor) -> None:
    bad_B = ~images_BCHW.isfinite().flatten(1).all(dim=1)
    if bad_B.any():
        raise UserError(f"Image {int(bad_B.int().argmax())} of this batch holds NaN or infinity; leave it out.")


def require_finite(model: RoutedNetwork) -> None:
    """`UserError` for weights that hold NaN or infinity."""
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if not tensor.isfinite().all():
            raise UserError(f"{name} of this network holds NaN or infinity, so no engine can be made of it.")
