"""A routed network over a ResNet that already exists: torchvision's, timm's, or any built like theirs.

It uses the names of a module's parts and imports neither library. The network is made of the module's own parts, so
weights are shared, and adds nothing but routers.
"""

import copy
import itertools
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import NamedTuple, cast

import torch
from torch import nn

from codinet.adopt.tracing import first_convolution
from codinet.backbones import Block
from codinet.errors import UserError, first_line
from codinet.model import RoutedNetwork
from codinet.routers import ROUTERS

# In this order. "|" separates two names of a part; "?" marks a part that networks for small images do not have.
STEM = ("conv1", "bn1", "relu|act1", "maxpool?")
HEAD = ("avgpool|global_pool", "fc")


class AdoptedBlock(Block):
    """A foreign residual block, run by its own forward, so that everything inside it (SE, drop-path) stays.

    That forward projects its input itself, so a block with a `downsample` would project twice: once for the shortcut
    and once in its forward. In training the forward is given the shortcut that exists already; otherwise a BatchNorm in
    it would count the batch twice. This is not possible for a block that projects something other than its input. A
    block that writes into its input gets a copy.
    """

    def __init__(self, name: str, block: nn.Module) -> None:
        super().__init__()
        self.name, self.block = name, block
        self.writes = False  # whether the forward writes into its input
        self.projects = False  # whether the forward calls a module `downsample` with its input, unchanged

    def shortcut(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        downsample = getattr(self.block, "downsample", None)
        return x_BCHW if downsample is None else downsample(x_BCHW)

    def run(self, x_BCHW: torch.Tensor, shortcut_BCHW: torch.Tensor) -> torch.Tensor:
        if not self.projects or not self.block.get_submodule("downsample").training:
            return self(x_BCHW)
        return _with_shortcut(self.block, self._own(shortcut_BCHW))(self._own(x_BCHW))

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return self.block(self._own(x_BCHW))

    def _own(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Features that the block may write into: routers and shortcuts need them unchanged."""
        return x_BCHW.clone() if self.writes else x_BCHW


class _Answer(nn.Module):
    """Returns one tensor, whatever its input."""

    def __init__(self, answer_BCHW: torch.Tensor) -> None:
        super().__init__()
        self.answer_BCHW = answer_BCHW

    def forward(self, _x_BCHW: torch.Tensor) -> torch.Tensor:
        return self.answer_BCHW


def _with_shortcut(block: nn.Module, shortcut_BCHW: torch.Tensor) -> nn.Module:
    """A block that shares all parts with this one, but whose `downsample` is this tensor. The block does not change."""
    twin = object.__new__(type(block))
    twin.__dict__.update(block.__dict__)
    twin.__dict__["_modules"] = {**block._modules, "downsample": _Answer(shortcut_BCHW)}
    return twin


class AdoptedResNet(RoutedNetwork):
    """The parts of a foreign ResNet under their own names, and routers."""

    paper_unit = 1

    def __init__(self, module: nn.Module, router: str) -> None:
        super().__init__()
        self._stem, stages, (self._pool, self._fc) = _find_parts(module)
        for name in (*self._stem, *stages, self._pool, self._fc):
            self.add_module(name, module.get_submodule(name))
        self.dropout = nn.Dropout(getattr(module, "drop_rate", None) or 0.0)  # timm's, before the classifier
        # Wrappers in a tuple are not submodules, so the blocks keep their names under layer1 … layerS.
        self._blocks = tuple(
            AdoptedBlock(f"{stage}.{position}", block)
            for stage in stages
            for position, block in enumerate(cast(nn.Sequential, module.get_submodule(stage)))
        )
        for adopted, found in zip(self._blocks, _look(self, module), strict=True):
            adopted.in_channels, adopted.writes, adopted.projects = found
        self.routers = ROUTERS[router]([adopted.in_channels for adopted in self._blocks])
        self.in_channels, weight = first_convolution(module).in_channels, first_convolution(module).weight
        self.routers.to(weight.device, weight.dtype).train(module.training)
        self.training = self.dropout.training = module.training  # the module's own parts keep their modes

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


def _find_parts(module: nn.Module) -> tuple[list[str], list[str], list[str]]:
    """The names of the stem's parts, of the stages and of the head's parts."""
    parts = dict(module.named_children())
    stem, head = (
        [next((name for name in part.rstrip("?").split("|") if name in parts), part) for part in group]
        for group in (STEM, HEAD)
    )
    stem = [name for name in stem if not name.endswith("?")]
    stages = list(itertools.takewhile(parts.__contains__, (f"layer{s}" for s in itertools.count(1))))
    flaws = [f"no {name}" for name in (*stem, *head) if name not in parts]
    flaws += [f"no {name}" for name in stages or ["layer1"] if not isinstance(parts.get(name), nn.Sequential)]
    unplaced = set(parts).difference(stem, stages, head)
    flaws += [f"also {name}" for name in sorted(unplaced) if list(parts[name].parameters())]
    if flaws:
        wanted = ", ".join(STEM).replace("?", " (or none)")
        raise UserError(
            f"make_dynamic looks for a ResNet made of {wanted}, layer1 … layerS (nn.Sequentials of residual blocks), "
            f"{', '.join(HEAD)}; this {type(module).__name__} has {', '.join(flaws)}. Say which of its modules are "
            "residual blocks, with blocks=."
        )
    return stem, stages, head


class _Look(NamedTuple):
    """The channels that a block takes, and the two properties of `AdoptedBlock`."""

    in_channels: int
    writes: bool
    projects: bool


@torch.no_grad()
def _look(network: AdoptedResNet, module: nn.Module) -> list[_Look]:
    """Look at each block in a pass on shapes; refuses a block whose shortcut cannot replace its output."""
    shapes = copy.deepcopy(network).to("meta").eval()
    first = first_convolution(shapes)
    images = torch.empty(1, first.in_channels, 224, 224, dtype=first.weight.dtype, device="meta")
    try:
        x = shapes.stem(images)
    except Exception as error:  # a foreign module may fail in any way
        raise UserError(
            f"The {', '.join(network.stem_parts)} of this {type(module).__name__} fail on images of "
            f"{first.in_channels}×224×224: {first_line(error)}"
        ) from error
    given = _given_to_blocks(module, images)
    if given is not None and given != x.shape:
        raise UserError(
            f"The forward of this {type(module).__name__} hands layer1 {tuple(given)} where its "
            f"{', '.join(network.stem_parts)} give {tuple(x.shape)}; move what it does in between into a module."
        )
    looks = []
    for block in shapes.blocks:
        try:
            skipped = tuple(block.shortcut(x).shape)
            x, look = _watch(block, x)
        except Exception as error:  # as above
            raise UserError(f"{block.name} cannot be routed, it fails on its own input: {first_line(error)}") from error
        if x.shape != skipped:
            raise UserError(
                f"{block.name} cannot be skipped: its output is {tuple(x.shape)}, its shortcut {skipped}; "
                "a block that changes the shape needs a `downsample`."
            )
        looks.append(look)
    return looks


def _given_to_blocks(module: nn.Module, images_BCHW: torch.Tensor) -> torch.Size | None:
    """The shape that a module's own forward gives its first stage; None if it does not run on shapes.

    Another shape than that of the stem shows that the forward does more than call the parts that were found.
    """
    given: list[torch.Size] = []
    original = copy.deepcopy(module).to("meta").eval()
    original.get_submodule("layer1").register_forward_pre_hook(lambda _stage, inputs: given.append(inputs[0].shape))
    with suppress(Exception):  # as above
        original(images_BCHW)
    return given[0] if given else None


def _watch(block: AdoptedBlock, x_BCHW: torch.Tensor) -> tuple[torch.Tensor, _Look]:
    """A block's output, and what its forward did. Writing into a tensor raises its version."""
    version, projected = x_BCHW._version, []

    def note(_module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        as_it_came = any(given is x_BCHW for given in inputs) and x_BCHW._version == version
        projected.append((output, output._version, as_it_came))

    downsample = getattr(block.block, "downsample", None)
    with downsample.register_forward_hook(note) if isinstance(downsample, nn.Module) else nullcontext():
        y_BCHW = block(x_BCHW)
    writes = x_BCHW._version != version or any(output._version != before for output, before, _ in projected)
    projects = bool(projected) and all(as_it_came for *_, as_it_came in projected)
    return y_BCHW, _Look(x_BCHW.shape[1], writes, projects)
