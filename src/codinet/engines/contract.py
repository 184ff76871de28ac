"""The contract of every engine: images in, `RoutedOutput` out, equal to the network with hard decisions.

`engine(images)` equals `model(images, decide=partial(hard, threshold=t))`, and `force` sets the path as it does there.
All engines reject unsuitable input with the same `UserError`. That includes weights and images with NaN or infinity: a
fused activation turns NaN into 0, and the output would look plausible. Images on a GPU are not checked for NaN, because
the host would have to wait. An engine is a snapshot: training the network further does not change it.
"""

import itertools
import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from codinet.checks import require_tensor, shown
from codinet.errors import UserError
from codinet.model import RoutedNetwork, require_network, spread
from codinet.records import RoutedOutput
from codinet.relaxation import require_threshold


class InputSpec(NamedTuple):
    """What an engine accepts. None means any, except that `blocks=None` means that no path can be forced."""

    channels: int | None
    dtype: torch.dtype | None  # None: any float dtype, which the engine converts
    blocks: int | None  # length of a forced path
    device: torch.device | None = None

    @classmethod
    def of(cls, model: RoutedNetwork) -> "InputSpec":
        """What the network itself accepts."""
        require_network(model)
        weight = next(model.parameters(), None)
        if weight is None:
            return cls(model.in_channels, None, len(model.blocks))
        return cls(model.in_channels, weight.dtype, len(model.blocks), weight.device)

    def check(self, images_BCHW: torch.Tensor) -> None:
        """Raise `UserError` unless this is a batch of images that the engine accepts."""
        if not isinstance(images_BCHW, torch.Tensor):
            raise UserError(f"An engine takes a batch of images, a tensor of B×C×H×W, got {shown(images_BCHW)}.")
        shape, dtype = images_BCHW.shape, images_BCHW.dtype
        if len(shape) != 4 or 0 in shape:
            raise UserError(f"An engine takes a batch of images, B×C×H×W, got {tuple(shape)}.")
        if not dtype.is_floating_point:
            raise UserError(f"An engine takes normalised images in a float dtype, got {dtype}.")
        if self.dtype is not None and dtype != self.dtype:
            raise UserError(f"This engine takes images in {self.dtype}, got {dtype}.")
        if self.channels is not None and shape[1] != self.channels:
            raise UserError(f"This network takes images with {self.channels} channels, got {shape[1]}.")
        if images_BCHW.is_meta or self.device not in (None, images_BCHW.device):
            device = self.device or "a real device"
            raise UserError(f"This engine takes images on {device}, got images on {images_BCHW.device}.")
        # A sum takes 0.5 % of the shortest call, a check of every pixel three times as long. The sum may overflow.
        if images_BCHW.is_cpu and not math.isfinite(_sum(images_BCHW)):
            _require_finite_images(images_BCHW)


class Engine(ABC):
    """A network prepared for inference.

    Args:
        spec: The input that the engine accepts.
        threshold: The run probability from which a block runs.
    """

    name: ClassVar[str]

    def __init__(self, spec: InputSpec, *, threshold: float = 0.5) -> None:
        require_threshold(threshold)
        self.spec, self.threshold = spec, threshold

    @torch.inference_mode()
    def __call__(
        self, images_BCHW: torch.Tensor, *, threshold: float | None = None, force: torch.Tensor | None = None
    ) -> RoutedOutput:
        """Classify a batch of normalised images.

        Args:
            images_BCHW: The images, as `spec` describes them.
            threshold: Replaces the engine's own threshold (0 to 1) for this call. A lower one runs more blocks.
            force: The path to take (N or B×N, 0 or 1), for engines that support it.

        Returns:
            Logits, router scores and the path of each image.
        """
        self.spec.check(images_BCHW)
        threshold = self.threshold if threshold is None else threshold
        require_threshold(threshold)
        if force is not None:
            if self.spec.blocks is None:
                raise UserError(
                    f"The {self.name} engine does not support force; make a static engine with that path instead."
                )
            force = spread(force, images_BCHW, self.spec.blocks)
            if force.is_cpu and not bool(((force == 0) | (force == 1)).all()):
                raise UserError("An engine runs a block or skips it: forced decisions must be 0 or 1, got others.")
        return self.classify(images_BCHW, threshold, force)

    @abstractmethod
    def classify(self, images_BCHW: torch.Tensor, threshold: float, force: torch.Tensor | None) -> RoutedOutput:
        """`__call__` after its checks, in inference mode; `force` is B×N or None."""

    def __reduce_ex__(self, _protocol: Any) -> Any:
        """Reject `copy` and `pickle`."""
        raise UserError(
            f"The {self.name} engine cannot be copied or pickled, because it holds compiled code of this process. Copy "
            "or save the network and make another engine from it; threads may use one engine together."
        )


def unpack(outputs: torch.Tensor, batch: int, blocks: int) -> RoutedOutput:
    """Views of a vector that has all logits, then all scores, then all paths, so that one copy takes them all."""
    logits, scores, path = outputs.split([len(outputs) - 3 * batch * blocks, 2 * batch * blocks, batch * blocks])
    return RoutedOutput(logits.view(batch, -1), scores.view(batch, blocks, 2), path.view(batch, blocks))


def _sum(images_BCHW: torch.Tensor) -> float:
    """The sum, in one thread: after an operation that torch divides, its other threads spin for milliseconds."""
    if torch.get_num_threads() == 1 or images_BCHW.dtype == torch.bfloat16:  # which numpy lacks
        return images_BCHW.sum().item()
    with np.errstate(all="ignore"):
        return float(images_BCHW.detach().numpy().sum())


def _require_finite_images(images_BCHW: torch.Tensor) -> None:
    bad_B = ~images_BCHW.isfinite().flatten(1).all(dim=1)
    if bad_B.any():
        raise UserError(f"Image {int(bad_B.int().argmax())} of this batch contains NaN or infinity; leave it out.")


def require_finite(model: RoutedNetwork) -> None:
    """Raise `UserError` if weights contain NaN or infinity, or are on the meta device."""
    require_network(model)
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if tensor.is_meta:
            raise UserError(f"{name} of this network is on the meta device and has no values; load its weights first.")
        if not tensor.isfinite().all():
            raise UserError(f"{name} of this network contains NaN or infinity; an engine needs finite weights.")


def fixed_path(path: torch.Tensor | None, blocks: int) -> list[bool]:
    """The path of a static engine as a list; None runs every block."""
    if path is None:
        return [True] * blocks
    require_tensor("path", path, (blocks,), floating=False)
    values = [math.nan] * blocks if path.is_meta else path.tolist()
    if any(value not in (0, 1) for value in values):
        raise UserError(f"path must have a 0 or 1 for each block, got {shown(values)}.")
    return [bool(value) for value in values]
