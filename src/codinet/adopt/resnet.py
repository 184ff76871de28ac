"""A routed network over an existing ResNet: torchvision's, timm's, or any with the same part names.

Neither library is imported. The routed network consists of the module's own parts, so weights are shared; only routers
are new.
"""

import itertools
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import NamedTuple, cast

import torch
from torch import nn

from codinet.adopt.blank import meta_copy
from codinet.adopt.parts import count_groups, first_convolution, make_routers, require_same_logits
from codinet.backbones import Block
from codinet.checks import require_image_shape, shown
from codinet.errors import UserError, first_line
from codinet.model import RoutedNetwork

# In order. "|" separates alternative names of a part; "?" marks a part that networks for small images lack.
STEM = ("conv1", "bn1", "relu|act1", "maxpool?")
HEAD = ("avgpool|global_pool", "fc")


class AdoptedBlock(Block):
    """A residual block of the module, run by its own forward, so that everything inside it (SE, drop-path) is kept.

    The forward of a block with a `downsample` projects its input itself, so the projection would run twice: for the
    shortcut and in the forward. In training, the forward therefore gets the projected shortcut; otherwise a BatchNorm
    in `downsample` would count the batch twice. This requires that the forward projects exactly its input. A block that
    changes its input in place gets a copy.
    """

    def __init__(self, name: str, block: nn.Module) -> None:
        super().__init__()
        self.name, self.block = name, block
        self.writes = False  # whether the forward changes its input in place
        self.projects = False  # whether the forward calls `downsample` with its unchanged input

    @property
    def keeps(self) -> bool:
        """Whether the shortcut is the input itself."""
        return getattr(self.block, "downsample", None) is None

    def shortcut(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        downsample = getattr(self.block, "downsample", None)
        return x_BCHW if downsample is None else downsample(x_BCHW)

    def run(self, x_BCHW: torch.Tensor, shortcut_BCHW: torch.Tensor) -> torch.Tensor:
        if not self.projects or not self.block.get_submodule("downsample").training:
            return self(x_BCHW)
        return _with_shortcut(self.block, self._safe(shortcut_BCHW))(self._safe(x_BCHW))

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return self.block(self._safe(x_BCHW))

    def _safe(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Features that the block may change: routers and shortcuts need the originals."""
        return x_BCHW.clone() if self.writes else x_BCHW


class _Constant(nn.Module):
    """Returns one tensor for any input."""

    def __init__(self, output_BCHW: torch.Tensor) -> None:
        super().__init__()
        self.output_BCHW = output_BCHW

    def forward(self, _x_BCHW: torch.Tensor) -> torch.Tensor:
        return self.output_BCHW


def _with_shortcut(block: nn.Module, shortcut_BCHW: torch.Tensor) -> nn.Module:
    """A twin that shares all parts with the block, but whose `downsample` returns this tensor."""
    twin = object.__new__(type(block))
    twin.__dict__.update(block.__dict__)
    twin.__dict__["_modules"] = {**block._modules, "downsample": _Constant(shortcut_BCHW)}
    return twin


class AdoptedResNet(RoutedNetwork):
    """The parts of a ResNet under their own names, and routers.

    Args:
        module: The ResNet.
        router: The kind of router; None adds no routers.
        image_shape: Channels, height and width of the images; None if unknown.
        check: Whether to compare its logits with those of the module.
    """

    paper_unit = 1

    def __init__(
        self,
        module: nn.Module,
        router: str | None,
        image_shape: tuple[int, int, int] | None = None,
        *,
        check: bool = True,
    ) -> None:
        super().__init__()
        if image_shape is not None:
            image_shape = require_image_shape(image_shape)
        self._stem, groups, (self._pool, self._fc) = _find_parts(module)
        for name in (*self._stem, *groups, self._pool, self._fc):
            self.add_module(name, module.get_submodule(name))
        self.dropout = nn.Dropout(getattr(module, "drop_rate", None) or 0.0)  # timm's, before the classifier
        # Wrappers in a tuple are not submodules, so the blocks keep their names under layer1, layer2, …
        self._blocks = tuple(
            AdoptedBlock(f"{group}.{index}", block)
            for group in groups
            for index, block in enumerate(cast(nn.Sequential, module.get_submodule(group)))
        )
        for block, info in zip(self._blocks, _inspect_blocks(self, module), strict=True):
            block.in_channels, block.writes, block.projects = info
        self.routers = make_routers(router, self._blocks, self.groups, module)
        self.in_channels = first_convolution(module).in_channels
        if image_shape is not None and image_shape[0] != self.in_channels:
            raise UserError(f"image_shape must have {self.in_channels} channels, got {shown(image_shape)}.")
        self.image_shape = image_shape
        self.training = self.dropout.training = module.training  # the module's own parts keep their modes
        if check:
            require_same_logits(self, module, image_shape or (self.in_channels, 224, 224))

    def stem(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        x_BCHW = images_BCHW
        for name in self._stem:
            x_BCHW = self.get_submodule(name)(x_BCHW)
        return x_BCHW

    @property
    def stem_parts(self) -> Sequence[str]:
        """The names of the modules before the first block, in order."""
        return self._stem

    @property
    def blocks(self) -> Sequence[AdoptedBlock]:
        return self._blocks

    def head(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        pooled_BC = self.get_submodule(self._pool)(x_BCHW).flatten(1)
        return self.get_submodule(self._fc)(self.dropout(pooled_BC))

    @property
    def groups(self) -> tuple[int, ...]:
        return count_groups([block.name for block in self._blocks])

    @property
    def classifier(self) -> str:
        return self._fc


def _find_parts(module: nn.Module) -> tuple[list[str], list[str], list[str]]:
    """The names of the parts of the stem, of the groups of blocks, and of the parts of the head."""
    parts = dict(module.named_children())
    stem, head = (
        [next((name for name in part.rstrip("?").split("|") if name in parts), part) for part in expected]
        for expected in (STEM, HEAD)
    )
    stem = [name for name in stem if not name.endswith("?")]
    groups = list(itertools.takewhile(parts.__contains__, (f"layer{number}" for number in itertools.count(1))))
    problems = [f"no {name}" for name in (*stem, *head) if name not in parts]
    problems += [
        f"no nn.Sequential {name}" for name in groups or ["layer1"] if not isinstance(parts.get(name), nn.Sequential)
    ]
    others = set(parts).difference(stem, groups, head)
    problems += [f"an unknown {name}" for name in sorted(others) if list(parts[name].parameters())]
    if problems:
        expected_stem = ", ".join(STEM).replace("?", " (optional)")
        raise UserError(
            f"A ResNet must consist of {expected_stem}, layer1, layer2, … (each an nn.Sequential of residual blocks), "
            f"{', '.join(HEAD)}; this {type(module).__name__} has {', '.join(problems)}. For other networks, name the "
            "residual blocks with blocks."
        )
    return stem, groups, head


class _BlockInfo(NamedTuple):
    """The channels of a block's input, and the two properties of `AdoptedBlock`."""

    in_channels: int
    writes: bool
    projects: bool


@torch.no_grad()
def _inspect_blocks(network: AdoptedResNet, module: nn.Module) -> list[_BlockInfo]:
    """Inspect each block in a pass on the meta device; `UserError` if its shortcut cannot replace its output."""
    meta = meta_copy(network)
    first = first_convolution(meta)
    images = torch.empty(1, first.in_channels, 224, 224, dtype=first.weight.dtype, device="meta")
    try:
        x = meta.stem(images)
    except Exception as error:  # any module may fail in any way
        raise UserError(
            f"The {', '.join(network.stem_parts)} of this {type(module).__name__} fail on images of "
            f"{first.in_channels}×224×224: {first_line(error)}"
        ) from error
    actual = _input_of_layer1(module, images)
    if actual is not None and actual != x.shape:
        raise UserError(
            f"The forward of this {type(module).__name__} passes {tuple(actual)} to layer1, but its "
            f"{', '.join(network.stem_parts)} return {tuple(x.shape)}; move the operations in between into a module."
        )
    infos = []
    for block in meta.blocks:
        try:
            skipped = tuple(block.shortcut(x).shape)
            x, info = _inspect_block(block, x)
        except Exception as error:  # as above
            raise UserError(f"{block.name} cannot be routed, it fails on its input: {first_line(error)}") from error
        if x.shape != skipped:
            raise UserError(
                f"{block.name} cannot be skipped: its output is {tuple(x.shape)}, its shortcut {skipped}; "
                "a block that changes the shape needs a `downsample`."
            )
        infos.append(info)
    return infos


def _input_of_layer1(module: nn.Module, images_BCHW: torch.Tensor) -> torch.Size | None:
    """The shape that a module's own forward passes to layer1; None if it fails on the meta device.

    If it differs from the stem's output, the forward does more than call the known parts.
    """
    shapes: list[torch.Size] = []
    original = meta_copy(module)
    original.get_submodule("layer1").register_forward_pre_hook(lambda _group, inputs: shapes.append(inputs[0].shape))
    with suppress(Exception):  # as above
        original(images_BCHW)
    return shapes[0] if shapes else None


def _inspect_block(block: AdoptedBlock, x_BCHW: torch.Tensor) -> tuple[torch.Tensor, _BlockInfo]:
    """A block's output, and what its forward does. Writing into a tensor increments its version."""
    version, projections = x_BCHW._version, []

    def record(_module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        unchanged = any(each is x_BCHW for each in inputs) and x_BCHW._version == version
        projections.append((output, output._version, unchanged))

    downsample = getattr(block.block, "downsample", None)
    with downsample.register_forward_hook(record) if isinstance(downsample, nn.Module) else nullcontext():
        y_BCHW = block(x_BCHW)
    writes = x_BCHW._version != version or any(output._version != before for output, before, _ in projections)
    projects = bool(projections) and all(unchanged for *_, unchanged in projections)
    return y_BCHW, _BlockInfo(x_BCHW.shape[1], writes, projects)
