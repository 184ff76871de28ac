"""Routed networks: stem, routed blocks, head (Eq. 1, 2, 7), and the registry of them.

`decide` is an argument of the forward pass, not hidden state: the same network is relaxed in training and
hard at inference. Here every block is computed and the decision mixes it in, which is what training needs
and what every engine is compared with; skipping for real is the engines' business.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import nn

from codinet.backbones import ARCHITECTURES, Block, ResNet, StrideOn
from codinet.errors import UserError, unknown
from codinet.records import RoutedOutput
from codinet.relaxation import Decide, hard
from codinet.routers import ROUTERS, Router, Routers, State

RoutedStep = Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor, State]]


class RoutedNetwork(nn.Module):
    """The routing itself, over any network that has a stem, residual blocks and a head."""

    routers: Routers | None  # None: a static network, every block runs
    in_channels: int | None = None  # of an image; None: not known
    image_shape: tuple[int, int, int] | None = None  # of the images it was trained on; None: not known
    paper_unit: int  # see `backbones.Architecture`

    def stem(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """What comes before the first block."""
        raise NotImplementedError

    @property
    def blocks(self) -> Sequence[Block]:
        """The residual blocks, in order; each may be skipped."""
        raise NotImplementedError

    def head(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Logits of the last block's features."""
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
        """Classify a batch.

        `force` (N or B×N) imposes a path, whatever the routers say; `step` and `stem` stand in for `routed_step`
        and the network's own stem, for instance compiled.
        """
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


def spread(force: torch.Tensor, images_BCHW: torch.Tensor, blocks: int) -> torch.Tensor:
    """A forced path (N or B×N) as B×N floats where the images are."""
    number = len(images_BCHW)
    if force.shape not in ((blocks,), (1, blocks), (number, blocks)):
        raise UserError(
            f"A forced path holds {blocks} decisions here, or {number}×{blocks} with one row an image; "
            f"this one is {'×'.join(map(str, force.shape)) or 'a single number'}."
        )
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

    Knows one block and not its place in the network, so that compiled it serves every block of a shape.
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
    # lerp is exact at both ends, so a hard decision passes F(x) or the shortcut through unchanged.
    weight = decision_B.to(y_BCHW.dtype)[:, None, None, None]
    return torch.lerp(shortcut_BCHW.to(y_BCHW.dtype), y_BCHW, weight), scores_B2, decision_B, state


def train_only(model: RoutedNetwork, *, routers: bool, backbone: bool) -> None:
    """Let gradients reach the routers, the rest, both or neither."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(routers if name.startswith("routers.") else backbone)


@contextmanager
def in_evaluation(model: object) -> Iterator[None]:
    """Within, a network is in evaluation mode; afterwards each of its parts is as it was, frozen ones too."""
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
    """Everything a `CoDiNet` is built from."""

    arch: str = "resnet32"
    num_classes: int = 10
    in_channels: int = 3
    routed: bool = True
    router: str = "fc"
    stride_on: StrideOn = "3x3"  # where a bottleneck strides; the paper's 3.86 G is the "1x1"


class CoDiNet(ResNet, RoutedNetwork, PyTorchModelHubMixin):
    """A ResNet of the registry with a router before every block."""

    def __init__(self, config: ModelConfig) -> None:
        if config.arch not in ARCHITECTURES:
            raise unknown("architecture", config.arch, ARCHITECTURES)
        if config.router not in ROUTERS:
            raise unknown("router", config.router, ROUTERS)
        if config.num_classes < 1 or config.in_channels < 1:
            raise UserError("A network needs at least one class and one input channel.")
        shape = ARCHITECTURES[config.arch]
        super().__init__(
            shape, num_classes=config.num_classes, in_channels=config.in_channels, stride_on=config.stride_on
        )
        self.config = config
        self.in_channels = config.in_channels
        self.paper_unit = shape.paper_unit
        self.routers = ROUTERS[config.router]([block.in_channels for block in self.blocks]) if config.routed else None


Trained = Callable[[str, dict[str, Any]], CoDiNet]
_trained: list[Trained] = []


def offer_trained(find: Trained) -> None:
    """Say who finds trained networks: a name and fields of `ModelConfig` in, a network out. See `codinet.zoo`."""
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
    """A network of the registry (see `list_models`), freshly initialised, for 10 classes of colour images by default.

    With `pretrained` a trained one of the zoo, for evaluation: that of this name, or the most accurate of this
    data set ("cifar10"). It has the classes of its data set; another number of them is a `UserError`.
    """
    asked: dict[str, Any] = {"arch": name, "routed": routed, "router": router, "stride_on": stride_on}
    given = {"num_classes": num_classes, "in_channels": in_channels}
    asked |= {field: value for field, value in given.items() if value is not None}
    if pretrained is None:
        return CoDiNet(ModelConfig(**asked))
    if name not in ARCHITECTURES:
        raise unknown("architecture", name, ARCHITECTURES)
    (find,) = _trained
    return find(pretrained, asked)


def list_models() -> list[str]:
    """Names that `create_model` takes."""
    return list(ARCHITECTURES)
