"""The contract of every engine: images in, `RoutedOutput` out, the same as the network with hard decisions.

`engine(images)` equals `model(images, decide=partial(hard, threshold=t))`; `force` sets the path as it does there.
Input that the network was not made for is a `UserError`, the same for all engines. So are weights and images that are
not finite: a fused activation turns NaN into 0, and the answer would look like any other. Values of images on a GPU are
not checked, because the host would have to wait. An engine is a snapshot: training the network further does not change
it. Knows nothing of files or of how an engine works.
"""

import itertools
import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch

from codinet.checks import require_tensor, shown
from codinet.errors import UserError
from codinet.model import RoutedNetwork, require_network, spread
from codinet.records import RoutedOutput
from codinet.relaxation import require_threshold


class Takes(NamedTuple):
    """What an engine accepts. None means anything, except for `blocks`: there it means that no path can be forced."""

    channels: int | None  # of an image
    dtype: torch.dtype | None  # of images; any float where the engine converts them itself
    blocks: int | None  # of a forced path
    device: torch.device | None = None  # of images

    @classmethod
    def of(cls, model: RoutedNetwork) -> "Takes":
        """What the network itself takes."""
        require_network(model)
        weight = next(model.parameters(), None)
        if weight is None:
            return cls(model.in_channels, None, len(model.blocks))
        return cls(model.in_channels, weight.dtype, len(model.blocks), weight.device)

    def check(self, images_BCHW: torch.Tensor) -> None:
        """`UserError` for anything that is not a batch of images for this engine."""
        if not isinstance(images_BCHW, torch.Tensor):
            raise UserError(f"An engine takes a batch of images, B×C×H×W, as a tensor; this is {shown(images_BCHW)}.")
        shape, dtype = images_BCHW.shape, images_BCHW.dtype
        if len(shape) != 4 or 0 in shape:
            raise UserError(f"An engine takes a batch of images, B×C×H×W; this is {tuple(shape)}.")
        if not dtype.is_floating_point:
            raise UserError(f"An engine takes normalised images, which are floats; these are {dtype}.")
        if self.dtype is not None and dtype != self.dtype:
            raise UserError(f"This engine takes images in {self.dtype}; these are in {dtype}.")
        if self.channels is not None and shape[1] != self.channels:
            raise UserError(f"This network takes images of {self.channels} channels; these have {shape[1]}.")
        if images_BCHW.is_meta or self.device not in (None, images_BCHW.device):
            place = self.device or "a device with values"
            raise UserError(f"This engine takes images on {place}; these are on {images_BCHW.device}.")
        # A sum takes half a percent of the shortest call; a check of every pixel three times that. It may overflow.
        if images_BCHW.is_cpu and not math.isfinite(images_BCHW.sum().item()):
            _require_finite_images(images_BCHW)


class Engine(ABC):
    """A network prepared for inference."""

    name: ClassVar[str]

    def __init__(self, takes: Takes, *, threshold: float = 0.5) -> None:
        require_threshold(threshold)
        self.takes, self.threshold = takes, threshold

    @torch.inference_mode()
    def __call__(
        self, images_BCHW: torch.Tensor, *, threshold: float | None = None, force: torch.Tensor | None = None
    ) -> RoutedOutput:
        """Classify a batch of normalised images.

        `threshold` (0 to 1) replaces the engine's own for this call: a lower one runs more blocks. `force` (N or B×N,
        0 or 1) sets the path, for engines that allow it.
        """
        self.takes.check(images_BCHW)
        threshold = self.threshold if threshold is None else threshold
        require_threshold(threshold)
        if force is not None:
            if self.takes.blocks is None:
                raise UserError(f"A path cannot be forced on the {self.name} engine; make a static one of that path.")
            force = spread(force, images_BCHW, self.takes.blocks)
            if force.is_cpu and not bool(((force == 0) | (force == 1)).all()):
                raise UserError("An engine runs a block or skips it: forced decisions must be 0 or 1, got others.")
        return self.classify(images_BCHW, threshold, force)

    @abstractmethod
    def classify(self, images_BCHW: torch.Tensor, threshold: float, force: torch.Tensor | None) -> RoutedOutput:
        """`__call__` after the checks, with a threshold and `force` as B×N, within inference mode."""

    def __reduce_ex__(self, _protocol: Any) -> Any:
        """Called by `copy` and `pickle`."""
        raise UserError(
            f"The {self.name} engine cannot be copied or pickled: it holds compiled parts of this process. Copy or "
            "save the network, and make an engine from it where it is needed; threads may share one engine."
        )


def _require_finite_images(images_BCHW: torch.Tensor) -> None:
    bad_B = ~images_BCHW.isfinite().flatten(1).all(dim=1)
    if bad_B.any():
        raise UserError(f"Image {int(bad_B.int().argmax())} of this batch holds NaN or infinity; leave it out.")


def require_finite(model: RoutedNetwork) -> None:
    """`UserError` for weights that hold NaN or infinity, or are on the meta device."""
    require_network(model)
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if tensor.is_meta:
            raise UserError(f"{name} of this network is on the meta device and has no values; load its weights first.")
        if not tensor.isfinite().all():
            raise UserError(f"{name} of this network holds NaN or infinity, so no engine can be made of it.")


def fixed_path(path: torch.Tensor | None, blocks: int) -> list[bool]:
    """The path of a static engine, block by block; None runs every block."""
    if path is None:
        return [True] * blocks
    require_tensor("path", path, (blocks,), floating=False)
    values = [math.nan] * blocks if path.is_meta else path.tolist()
    if any(value not in (0, 1) for value in values):
        raise UserError(f"A path holds 0 or 1 for each block, got {shown(values)}.")
    return [bool(value) for value in values]
