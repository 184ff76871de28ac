"""Routed networks: stem, routed blocks, head (Eq. 1, 2, 7).

`decide` is an argument of the forward pass, not hidden state: the same network makes relaxed decisions in training and
hard ones at inference. Here every block is computed and the decision mixes it in. Training needs that, and it is the
reference for the engines, which skip blocks for real.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from codinet.backbones import ARCHITECTURES, Block, ResNet
from codinet.checks import (
    is_autocast,
    require_callable,
    require_choice,
    require_flag,
    require_image_shape,
    require_kind,
    shown,
)
from codinet.config import ModelConfig
from codinet.errors import UserError, first_line
from codinet.hub import require_results, with_hub
from codinet.records import RoutedOutput
from codinet.relaxation import Decide, hard
from codinet.routers import ROUTERS, Router, Routers, State

RoutedStep = Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor, State]]


class RoutedNetwork(nn.Module):
    """Routing over any network that has a stem, residual blocks and a head.

    Attributes:
        routers: The routers; None in a static network, where every block runs.
        in_channels: Channels of an image; None if unknown.
        image_shape: Channels, height and width of the images it is trained on; None if unknown.
        paper_unit: See `backbones.Architecture`.
    """

    routers: Routers | None
    in_channels: int | None = None
    image_shape: tuple[int, int, int] | None = None
    paper_unit: int

    def stem(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """The layers before the first block."""
        raise NotImplementedError

    @property
    def blocks(self) -> Sequence[Block]:
        """The residual blocks in order. Each can be skipped."""
        raise NotImplementedError

    def head(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """The layers after the last block: features to logits."""
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
        """Classify a batch of images.

        Args:
            images_BCHW: Normalised images.
            decide: Turns scores_B2 into decisions; see `codinet.relaxation`.
            force: A path (N or B×N, from 0 to 1) that overrides the routers.
            step: Replaces `routed_step`, e.g. by a compiled version.
            stem: Replaces the network's own stem, e.g. by a compiled version.

        Returns:
            Logits, router scores and the path. NaN scores are a `UserError` on the CPU outside of training.
        """
        if torch.compiler.is_compiling():
            return self._route(images_BCHW, decide, force, step, stem)
        if isinstance(images_BCHW, torch.Tensor) and images_BCHW.numel() == 0:
            self._require_images(images_BCHW)  # torch accepts empty batches and spoils BatchNorm's statistics
        try:
            output = self._route(images_BCHW, decide, force, step, stem)
        except UserError:
            raise
        except Exception:  # if an argument is wrong, say which instead of raising torch's error
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
        """Require a batch of images with the network's channels, dtype and device."""
        if not isinstance(images_BCHW, torch.Tensor) or images_BCHW.ndim != 4 or 0 in images_BCHW.shape:
            raise UserError(f"Images must be a batch, B×C×H×W, got {shown(images_BCHW)}.")
        if not images_BCHW.dtype.is_floating_point:
            raise UserError(f"Images must be normalised floats, got {shown(images_BCHW)}.")
        if self.in_channels not in (None, images_BCHW.shape[1]):
            raise UserError(f"Images must have {self.in_channels} channels, got {shown(images_BCHW)}.")
        weight = next(self.parameters(), None)
        if weight is None:
            return
        if weight.device != images_BCHW.device:
            raise UserError(
                f"Images and network must be on the same device, got images on {images_BCHW.device} and a network on "
                f"{weight.device}; move one of them with .to(device)."
            )
        if weight.dtype != images_BCHW.dtype and not is_autocast(images_BCHW):
            raise UserError(
                f"Images and network must have the same dtype, got images in {images_BCHW.dtype} and a network in "
                f"{weight.dtype}; convert one of them with .to(dtype)."
            )


def _require_numbers(scores_BN2: torch.Tensor) -> None:
    """Refuse NaN scores: `hard` would skip the block."""
    if bool(scores_BN2.isnan().any()):
        raise UserError("Router scores must be finite numbers, got NaN; check the images and the weights.")


def require_network(model: Any) -> None:
    """Raise `UserError` unless it is a routed network."""
    require_kind("model", model, RoutedNetwork, "a network from create_model or make_dynamic")


def spread(force: torch.Tensor, images_BCHW: torch.Tensor, blocks: int) -> torch.Tensor:
    """Expand a forced path (N or B×N) to B×N floats on the device of the images. Values on the CPU are checked."""
    number = len(images_BCHW)
    require_kind("force", force, torch.Tensor, "a tensor of decisions from 0 to 1")
    if force.shape not in ((blocks,), (1, blocks), (number, blocks)):
        raise UserError(
            f"A forced path must have {blocks} decisions, or {number}×{blocks} with one row per image, got "
            f"{'×'.join(map(str, force.shape)) or 'a single number'}."
        )
    if force.is_complex() or not (force.is_cpu or force.device == images_BCHW.device):
        raise UserError(f"A forced path must be real numbers on the CPU or on the images' device, got {shown(force)}.")
    if force.is_cpu and not torch.compiler.is_compiling() and not bool(((force >= 0) & (force <= 1)).all()):
        raise UserError("The decisions of a forced path must be from 0 (skip) to 1 (run), got other values.")
    return force.to(images_BCHW.device, torch.float32).expand(number, blocks)


def routed_step(
    block: Block,
    router: Router | None,
    x_BCHW: torch.Tensor,
    state: State,
    decide: Decide,
    forced_B: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, State]:
    """Run one block and its router: Eq. 2 and 7, v·F(x) + (1 − v)·skip(x).

    It does not depend on the block's position, so one compiled version serves all blocks of the same shape.

    Args:
        block: The residual block.
        router: Its router; None in a static network.
        x_BCHW: The block's input.
        state: The state of recurrent routers.
        decide: Turns scores_B2 into decisions.
        forced_B: Decisions that override the router.

    Returns:
        The block's output, the scores, the decisions v, the next state.
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
    """Choose which parameters get gradients.

    Args:
        model: The network, changed in place.
        routers: Whether the routers are trained.
        backbone: Whether everything else is trained.
    """
    require_network(model)
    require_flag("routers", routers)
    require_flag("backbone", backbone)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(routers if name.startswith("routers.") else backbone)


@contextmanager
def in_evaluation(model: object) -> Iterator[None]:
    """Put a network into evaluation mode. On exit every module gets its previous mode back."""
    modes = [(module, module.training) for module in model.modules()] if isinstance(model, nn.Module) else []
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


class CoDiNet(ResNet, RoutedNetwork):
    """A ResNet with a router before every block.

    Args:
        config: The architecture, the router, and what the data determines. Invalid values are a `UserError`.
    """

    def __init__(self, config: ModelConfig) -> None:
        require_kind("config", config, ModelConfig, "a ModelConfig; create_model creates a network by name")
        require_choice("architecture", config.arch, ARCHITECTURES)
        require_choice("router", config.router, ROUTERS)
        require_flag("routed", config.routed)
        config = _checked(config)
        shape = ARCHITECTURES[config.arch]
        super().__init__(
            shape, num_classes=config.num_classes, in_channels=config.in_channels, stride_on=config.stride_on
        )
        _require_fit(config)
        self.config = config
        self.in_channels, self.image_shape = config.in_channels, config.image_shape
        self.paper_unit = shape.paper_unit
        self.routers = ROUTERS[config.router]([block.in_channels for block in self.blocks]) if config.routed else None

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> Self:
        """Load a network that `save_pretrained` wrote.

        Args:
            pretrained_model_name_or_path: The folder, or a repository on the Hugging Face hub.
            options: Those of `huggingface_hub.PyTorchModelHubMixin.from_pretrained`, such as `revision`.

        Returns:
            The network in evaluation mode.
        """
        options.setdefault("strict", True)  # missing weights would stay random
        try:
            model = with_hub(cls).from_pretrained(pretrained_model_name_or_path, **options)
        except UserError:
            raise
        except Exception as error:  # from JSON, safetensors, state dicts, files, the internet, …
            raise UserError(
                f"{shown(pretrained_model_name_or_path)} cannot be loaded: {first_line(error)}; pass a folder that "
                "save_pretrained wrote, or the name of a repository on the hub."
            ) from error
        model.__class__ = cls
        return model

    def save_pretrained(
        self, save_directory: str | Path, *, results: Mapping[str, Any] | None = None, **options: Any
    ) -> str | None:
        """Write config.json, model.safetensors and a model card, README.md. A card that exists is kept.

        Args:
            save_directory: The folder to write.
            results: What the card shows beside the config: data, accuracy, cost_share, … (`codinet.hub.RESULTS`).
                `RunReader.save_pretrained` passes those of a run.
            options: Those of `huggingface_hub.PyTorchModelHubMixin.save_pretrained`, such as `push_to_hub`.

        Returns:
            The address of the commit if the network was pushed to the hub.
        """
        name = options.get("repo_id") or Path(save_directory).name
        return self._hub_twin(name, results).save_pretrained(save_directory, **options)

    def push_to_hub(self, repo_id: str, *, results: Mapping[str, Any] | None = None, **options: Any) -> str:
        """Upload the network to the Hugging Face hub.

        Args:
            repo_id: The repository, such as "user/name".
            results: What the model card shows beside the config; see `save_pretrained`.
            options: Those of `huggingface_hub.PyTorchModelHubMixin.push_to_hub`.

        Returns:
            The address of the commit.
        """
        return self._hub_twin(repo_id, results).push_to_hub(repo_id, **options)

    def _hub_twin(self, name: str, results: Mapping[str, Any] | None) -> Any:
        twin: Any = copy.copy(self)  # shares parameters and buffers
        twin.card_name, twin.card_results = str(name), require_results(results)
        twin.__class__ = with_hub(type(self))
        twin._hub_mixin_config = self.config
        return twin


def _checked(config: ModelConfig) -> ModelConfig:
    """The config with tuples where a saved config has lists."""
    changed: dict[str, Any] = {}
    if config.image_shape is not None:
        changed["image_shape"] = require_image_shape(config.image_shape)
    for name, kinds, what in (
        ("classes", (str,), "names"),
        ("mean", (int, float), "finite numbers"),
        ("std", (int, float), "positive numbers"),
    ):
        values = getattr(config, name)
        if values is None:
            continue
        valid = isinstance(values, tuple | list) and all(type(value) in kinds for value in values)
        if valid and name != "classes":
            valid = all(math.isfinite(value) and (name == "mean" or value > 0) for value in values)
        if not valid:
            raise UserError(f"{name} must be {what}, got {shown(values)}.")
        changed[name] = tuple(values)
    return replace(config, **changed)


def _require_fit(config: ModelConfig) -> None:
    """Require as many class names, means and standard deviations as the network has classes and channels."""
    if config.image_shape is not None and config.image_shape[0] != config.in_channels:
        raise UserError(f"image_shape must have {config.in_channels} channels, got {shown(config.image_shape)}.")
    for name, number in (
        ("classes", config.num_classes),
        ("mean", config.in_channels),
        ("std", config.in_channels),
    ):
        values = getattr(config, name)
        if values is not None and len(values) != number:
            raise UserError(f"{name} must have {number} entries, got {len(values)}.")
