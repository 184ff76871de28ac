"""Routed networks: stem, routed blocks, head (Eq. 1, 2, 7), and the registry of them.

`decide` is an argument of the forward pass, not hidden state: the same network is relaxed in training and
hard at inference. Here every block is computed and the decision mixes it in. Training needs that, and every engine
is compared with it. The engines skip blocks for real.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import nn

from codinet.backbones import ARCHITECTURES, Block, ResNet, StrideOn
from codinet.checks import is_autocast, require_callable, require_choice, require_flag, require_kind, shown
from codinet.errors import UserError, first_line
from codinet.records import RoutedOutput
from codinet.relaxation import Decide, hard
from codinet.routers import ROUTERS, Router, Routers, State

RoutedStep = Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor, State]]


class RoutedNetwork(nn.Module):
    """Routing over any network that has a stem, residual blocks and a head."""

    routers: Routers | None  # None: a static network, every block runs
    in_channels: int | None = None  # of an image; None: unknown
    image_shape: tuple[int, int, int] | None = None  # of the images it was trained on; None: unknown
    paper_unit: int  # see `backbones.Architecture`

    def stem(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """The layers before the first block."""
        raise NotImplementedError

    @property
    def blocks(self) -> Sequence[Block]:
        """The residual blocks, in order; each of them can be skipped."""
        raise NotImplementedError

    def head(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """From the last block's features to logits."""
        raise NotImplementedError

    def forward(
        self,
        images_BCHW: torch.Tensor,
        *,
        decide: Decide = hard,
        force: torch.Tensor | None = None,
        step: RoutedStep | None = None,
        stem: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> RoutedOutput:
        """Classify a batch of normalised images (B×C×H×W).

        `decide` turns scores_B2 into decisions. `force` (N or B×N, from 0 to 1) sets the path and overrules the
        routers. `step` and `stem` replace `routed_step` and the network's own stem, for example by compiled ones.
        Outside of training, scores on the CPU that are NaN are a `UserError`.
        """
        if torch.compiler.is_compiling():
            return self._route(images_BCHW, decide, force, step, stem)
        if isinstance(images_BCHW, torch.Tensor) and images_BCHW.numel() == 0:
            self._require_images(images_BCHW)  # which torch would take, and spoil BatchNorm's statistics in training
        try:
            output = self._route(images_BCHW, decide, force, step, stem)
        except UserError:
            raise
        except Exception:  # torch's own error is less clear than what is wrong with the arguments
            self._require_images(images_BCHW)
            require_callable("decide", decide)
            raise
        scores_BN2 = output.scores_BN2
        if scores_BN2.is_cpu and not scores_BN2.requires_grad and math.isnan(scores_BN2.sum().item()):
            _require_numbers(scores_BN2)
        return output

    def _route(
        self,
        images_BCHW: torch.Tensor,
        decide: Decide,
        force: torch.Tensor | None,
        step: RoutedStep | None,
        stem: Callable[[torch.Tensor], torch.Tensor] | None,
    ) -> RoutedOutput:
        step = step or routed_step
        x_BCHW = (stem or self.stem)(images_BCHW)
        state: State = () if self.routers is None else self.routers.start(images_BCHW)
        if force is not None:
            force = spread(force, x_BCHW, len(self.blocks))
        scores, path = [], []
        for k, block in enumerate(self.blocks):
            router = None if self.routers is None else self.routers.router(k)
            forced_B = None if force is None else force[:, k]
            x_BCHW, scores_B2, decision_B, state = step(block, router, x_BCHW, state, decide, forced_B)
            scores.append(scores_B2)
            path.append(decision_B)
        return RoutedOutput(self.head(x_BCHW).float(), torch.stack(scores, dim=1), torch.stack(path, dim=1))

    def _require_images(self, images_BCHW: Any) -> None:
        """A batch of images with the network's channels, dtype and device."""
        if not isinstance(images_BCHW, torch.Tensor) or images_BCHW.ndim != 4 or 0 in images_BCHW.shape:
            raise UserError(f"A network takes a batch of images, B×C×H×W, got {shown(images_BCHW)}.")
        if not images_BCHW.dtype.is_floating_point:
            raise UserError(f"A network takes normalised images, which are floats, got {shown(images_BCHW)}.")
        if self.in_channels not in (None, images_BCHW.shape[1]):
            raise UserError(f"This network takes images of {self.in_channels} channels, got {shown(images_BCHW)}.")
        weight = next(self.parameters(), None)
        if weight is None:
            return
        if weight.device != images_BCHW.device:
            raise UserError(
                f"Images and network must be on one device, got images on {images_BCHW.device} and a network on "
                f"{weight.device}; move one of them with .to(device)."
            )
        if weight.dtype != images_BCHW.dtype and not is_autocast(images_BCHW):
            raise UserError(
                f"Images and network must have one dtype, got images in {images_BCHW.dtype} and a network in "
                f"{weight.dtype}; convert one of them with .to(dtype)."
            )


def _require_numbers(scores_BN2: torch.Tensor) -> None:
    """Scores without NaN, which `hard` would take for a decision to skip."""
    if bool(scores_BN2.isnan().any()):
        raise UserError("Router scores must be finite numbers, got NaN; check the images and the weights.")


def require_network(model: Any) -> None:
    """A routed network, the argument of most functions here."""
    require_kind("model", model, RoutedNetwork, "a network from create_model or make_dynamic")


def spread(force: torch.Tensor, images_BCHW: torch.Tensor, blocks: int) -> torch.Tensor:
    """A forced path (N or B×N) as B×N floats on the device of the images. Values on the CPU are checked."""
    number = len(images_BCHW)
    require_kind("force", force, torch.Tensor, "a tensor of decisions from 0 to 1")
    if force.shape not in ((blocks,), (1, blocks), (number, blocks)):
        raise UserError(
            f"A forced path holds {blocks} decisions here, or {number}×{blocks} with one row an image; "
            f"this one is {'×'.join(map(str, force.shape)) or 'a single number'}."
        )
    if force.is_complex() or not (force.is_cpu or force.device == images_BCHW.device):
        raise UserError(f"A forced path must be real numbers on the CPU or with the images, got {shown(force)}.")
    if force.is_cpu and not torch.compiler.is_compiling() and not bool(((force >= 0) & (force <= 1)).all()):
        raise UserError("The decisions of a forced path must be from 0 to 1, got others; 1 runs a block, 0 skips it.")
    return force.to(images_BCHW.device, torch.float32).expand(number, blocks)


def routed_step(
    block: Block,
    router: Router | None,
    x_BCHW: torch.Tensor,
    state: State,
    decide: Decide,
    forced_B: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, State]:
    """Eq. 2 and 7: the block's output v·F(x) + (1 − v)·skip(x), its scores, its decision v, the next state.

    Knows one block and not its place in the network, so one compiled version serves every block of a shape.
    """
    shortcut_BCHW = block.shortcut(x_BCHW)
    y_BCHW = block.run(x_BCHW, shortcut_BCHW)
    if router is None:
        scores_B2 = x_BCHW.new_zeros(len(x_BCHW), 2, dtype=torch.float32)
        if forced_B is None:
            return y_BCHW, scores_B2, torch.ones_like(scores_B2[:, 0]), state
    else:
        scores_B2, state = router(x_BCHW, state)
        scores_B2 = scores_B2.float()
    decision_B = decide(scores_B2) if forced_B is None else forced_B
    if not isinstance(decision_B, torch.Tensor) or decision_B.shape != scores_B2.shape[:1]:
        raise UserError(f"decide must return a tensor with one decision per image, got {shown(decision_B)}.")
    # lerp is exact at both ends, so a hard decision passes F(x) or the shortcut through unchanged.
    weight = decision_B.to(y_BCHW.dtype)[:, None, None, None]
    return torch.lerp(shortcut_BCHW.to(y_BCHW.dtype), y_BCHW, weight), scores_B2, decision_B, state


def train_only(model: RoutedNetwork, *, routers: bool, backbone: bool) -> None:
    """Let gradients reach the routers, the rest, both or neither."""
    require_network(model)
    require_flag("routers", routers)
    require_flag("backbone", backbone)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(routers if name.startswith("routers.") else backbone)


@contextmanager
def in_evaluation(model: object) -> Iterator[None]:
    """Put a network into evaluation mode; on leaving, every part gets the mode back that it had."""
    modes = [(part, part.training) for part in model.modules()] if isinstance(model, nn.Module) else []
    for part, _ in modes:
        part.training = False
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@dataclass(frozen=True)
class ModelConfig:
    """Everything a `CoDiNet` is built from. `CoDiNet` checks it."""

    arch: str = "resnet32"
    num_classes: int = 10
    in_channels: int = 3
    routed: bool = True
    router: str = "fc"
    stride_on: StrideOn = "3x3"  # where a bottleneck strides; the paper's 3.86 G is the "1x1"


class CoDiNet(ResNet, RoutedNetwork, PyTorchModelHubMixin):
    """A ResNet of the registry with a router before every block."""

    def __init__(self, config: ModelConfig) -> None:
        require_kind("config", config, ModelConfig, "a ModelConfig; create_model makes a network by name")
        require_choice("architecture", config.arch, ARCHITECTURES)
        require_choice("router", config.router, ROUTERS)
        require_flag("routed", config.routed)
        shape = ARCHITECTURES[config.arch]
        super().__init__(
            shape, num_classes=config.num_classes, in_channels=config.in_channels, stride_on=config.stride_on
        )
        self.config = config
        self.in_channels = config.in_channels
        self.paper_unit = shape.paper_unit
        self.routers = ROUTERS[config.router]([block.in_channels for block in self.blocks]) if config.routed else None

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> "CoDiNet":
        """A network that `save_pretrained` wrote into a folder, or that is on the Hugging Face hub.

        `options` are those of `PyTorchModelHubMixin.from_pretrained`.
        """
        try:
            return super().from_pretrained(pretrained_model_name_or_path, **options)
        except UserError:
            raise
        except Exception as error:  # of JSON, safetensors, state dicts, files, networks, …
            raise UserError(
                f"{shown(pretrained_model_name_or_path)} cannot be loaded: {first_line(error)}; give a folder that "
                "save_pretrained wrote, or the name of a repository on the hub."
            ) from error


Trained = Callable[[str, dict[str, Any]], CoDiNet]
_trained: list[Trained] = []


def offer_trained(find: Trained) -> None:
    """Register the function that loads trained networks by name and fields of `ModelConfig`; see `codinet.zoo`."""
    _trained[:] = [find]


def create_model(
    name: str,
    *,
    num_classes: int | None = None,
    routed: bool = True,
    router: str = "fc",
    in_channels: int | None = None,
    stride_on: StrideOn = "3x3",
    pretrained: str | None = None,
) -> CoDiNet:
    """A network of the registry (see `list_models`) with initial weights, for 10 classes of colour images by default.

    `router` is "fc", "cnn" or "rnn"; `stride_on` ("3x3" or "1x1") is where a bottleneck strides. `pretrained` gives a
    trained network of the zoo in evaluation mode: the one of this name, or the most accurate one of this data set
    ("cifar10"). It has the classes of its data set; another number of classes is a `UserError`.
    """
    asked: dict[str, Any] = {"arch": name, "routed": routed, "router": router, "stride_on": stride_on}
    given = {"num_classes": num_classes, "in_channels": in_channels}
    asked |= {field: value for field, value in given.items() if value is not None}
    if pretrained is None:
        return CoDiNet(ModelConfig(**asked))
    require_choice("architecture", name, ARCHITECTURES)
    require_kind("pretrained", pretrained, str, "the name of a trained network or a data set")
    (find,) = _trained
    return find(pretrained, asked)


def list_models() -> list[str]:
    """Names that `create_model` takes."""
    return list(ARCHITECTURES)
