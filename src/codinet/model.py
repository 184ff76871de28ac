"""Routed networks: stem, routed blocks, head (Eq. 1, 2, 7).

`decide` is an argument of the forward pass, not hidden state: the same network makes relaxed decisions in training and
hard ones at inference. Here every block is computed and the decision mixes it in. Training needs that, and it is the
reference for the engines, which skip blocks for real.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from codinet.backbones import ARCHITECTURES, MOST_CLASSES, Block, ResNet
from codinet.checks import (
    LARGEST_SIDE,
    is_autocast,
    require_callable,
    require_choice,
    require_flag,
    require_image_shape,
    require_kind,
    require_number,
    require_weights,
    require_whole,
    shown,
)
from codinet.config import SMALLEST_CROP, ModelConfig
from codinet.errors import UserError
from codinet.hub import WEIGHTS, cannot_load, find, floating_dtype, read_folder, upload, write_folder
from codinet.methods.router_kinds import ROUTER_KINDS, build_routers
from codinet.records import RoutedOutput
from codinet.relaxation import Decide, hard
from codinet.routers import Router, Routers, State, of_image

RoutedStep = Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor, State]]


class RoutedNetwork(nn.Module):
    """Routing over any network that has a stem, residual blocks and a head.

    Attributes:
        routers: The routers; None in a static network, where every block runs.
        in_channels: Channels of an image; None if unknown.
        image_shape: Channels, height and width of the images it is trained on; None if unknown.
        paper_unit: See `backbones.Architecture`.
        config: What the network is built from; None for a network that `make_dynamic` was given.
        library_arch: The name that such a network states, e.g. "timm:resnet18"; None if it states none.
        block_names: The blocks that `make_dynamic` was given, as in `ModelConfig`.
        router_name: The kind of routers that it was given.
    """

    routers: Routers | None
    in_channels: int | None = None
    image_shape: tuple[int, int, int] | None = None
    paper_unit: int
    config: ModelConfig | None = None
    library_arch: str | None = None
    block_names: str | None = None
    router_name: str | None = None

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

    @property
    def groups(self) -> tuple[int, ...]:
        """The number of blocks in each group of blocks that follow one another in the same part of the network."""
        raise NotImplementedError

    @property
    def classifier(self) -> str:
        """The name of the last layer."""
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
        except Exception as error:  # if an argument is wrong, say which instead of raising torch's error
            self._require_images(images_BCHW)
            require_callable("decide", decide)
            if isinstance(error, AssertionError) and self.image_shape not in (None, tuple(images_BCHW.shape[1:])):
                wanted = "×".join(map(str, self.image_shape or ()))
                raise UserError(f"The network takes images of {wanted} only, got {shown(images_BCHW)}.") from error
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

    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        results: Mapping[str, Any] | None = None,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        **options: Any,
    ) -> str | None:
        """Write config.json, model.safetensors and a model card, README.md. A card that exists is kept.

        Args:
            save_directory: The folder to write; `codinet.load` loads it.
            results: What the card shows beside the config: data, accuracy, cost_share, … (`codinet.hub.RESULTS`).
            repo_id: The repository that the card names; by default the name of the folder.
            push_to_hub: Whether to upload the network too.
            options: Those of `push_to_hub`.

        Returns:
            The address of the commit if the network was pushed to the hub.
        """
        if not isinstance(save_directory, str | Path):
            raise UserError(f"save_directory must be a folder, got {shown(save_directory)}.")
        name = repo_id or Path(save_directory).name
        self._write(Path(save_directory), results, name)
        return self.push_to_hub(name, results=results, **options) if push_to_hub else None

    def push_to_hub(self, repo_id: str, *, results: Mapping[str, Any] | None = None, **options: Any) -> str:
        """Upload the network to the Hugging Face hub.

        Args:
            repo_id: The repository, such as "user/name". It is created if it does not exist.
            results: What the model card shows beside the config; see `save_pretrained`.
            options: commit_message, private, token, branch, create_pr, and allow_patterns, ignore_patterns and
                delete_patterns of `huggingface_hub.HfApi.upload_folder`.

        Returns:
            The address of the commit.
        """
        return upload(repo_id, lambda folder: self._write(folder, results, repo_id), options)

    def _write(self, folder: Path, results: Mapping[str, Any] | None, name: str) -> None:
        if self.config is None:
            raise UserError(
                "This network does not know how it was built; save it with codinet.save, which finds out or takes arch."
            )
        write_folder(folder, self.config, self.groups, self.state_dict(), results=results, name=name)

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

    A router may score positions. Then each position has a decision, and that of the image is the largest one.

    It does not depend on the block's depth, so one compiled version serves all blocks of the same shape.

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
    return routed_mix(router, x_BCHW, shortcut_BCHW, y_BCHW, state, decide, forced_B)


def routed_mix(
    router: Router | None,
    x_BCHW: torch.Tensor,
    shortcut_BCHW: torch.Tensor,
    y_BCHW: torch.Tensor,
    state: State,
    decide: Decide,
    forced_B: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, State]:
    """`routed_step` once the shortcut and F(x) are computed."""
    if router is None:
        scores_B2 = x_BCHW.new_zeros(len(x_BCHW), 2, dtype=torch.float32)
        if forced_B is None:
            return y_BCHW, scores_B2, torch.ones_like(scores_B2[:, 0]), state
    else:
        scores_B2, state = router(x_BCHW, state)
        scores_B2 = scores_B2.float()
    positions_BHW: torch.Tensor | None = None
    if scores_B2.ndim == 4:
        if forced_B is None:
            positions_BHW = decide(scores_B2)
            _require_decisions(positions_BHW, scores_B2)
            if positions_BHW.shape[1:] != y_BCHW.shape[2:]:
                raise UserError("A router can score positions only of a block that keeps the size of the features.")
            forced_B = positions_BHW.amax(dim=(1, 2))
        scores_B2 = of_image(scores_B2)
    decision_B = decide(scores_B2) if forced_B is None else forced_B
    _require_decisions(decision_B, scores_B2)
    # lerp is exact at both ends, so a hard decision passes F(x) or the shortcut through unchanged.
    weight = decision_B[:, None, None, None] if positions_BHW is None else positions_BHW[:, None]
    weight = weight.to(y_BCHW.dtype)
    return torch.lerp(shortcut_BCHW.to(y_BCHW.dtype), y_BCHW, weight), scores_B2, decision_B, state


def _require_decisions(decisions: Any, scores: torch.Tensor) -> None:
    if not isinstance(decisions, torch.Tensor) or decisions.shape != scores.shape[:-1]:
        raise UserError(f"decide must return a tensor with one decision per image, got {shown(decisions)}.")


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


@contextmanager
def without_statistics(model: nn.Module) -> Iterator[None]:
    """Keep forward passes in training mode from changing the running statistics of BatchNorms.

    They still normalise by the batch. Nothing here waits for the device.
    """
    norms = [part for part in model.modules() if isinstance(part, _NormBase) and part.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    counters = [norm.num_batches_tracked for norm in norms if norm.num_batches_tracked is not None]
    counted = [counter.clone() for counter in counters]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for counter, number in zip(counters, counted, strict=True):
            counter.copy_(number)


class CoDiNet(ResNet, RoutedNetwork):
    """A ResNet with a router before every block.

    Args:
        config: The architecture, the router, and what the data determines. Invalid values are a `UserError`.
    """

    config: ModelConfig

    def __init__(self, config: ModelConfig) -> None:
        require_kind("config", config, ModelConfig, "a ModelConfig; create_model creates a network by name")
        require_choice("architecture", config.arch, ARCHITECTURES)
        config = checked_config(config)
        shape = ARCHITECTURES[config.arch]
        super().__init__(
            shape,
            num_classes=config.num_classes,
            in_channels=config.in_channels,
            stride_on=config.stride_on,
            widths=config.widths,
        )
        self.config = config
        self.in_channels, self.image_shape = config.in_channels, config.image_shape
        self.paper_unit = shape.paper_unit
        widths = [block.in_channels for block in self.blocks]
        self.routers = None
        if config.routed:
            self.routers = build_routers(config.router, widths, config.in_channels, self.groups)

    @property
    def groups(self) -> tuple[int, ...]:
        return self.shape.counts

    @property
    def classifier(self) -> str:
        return "fc"

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> Self:
        """Load a network of codinet's own that `save_pretrained` wrote. `codinet.load` loads any network.

        Args:
            pretrained_model_name_or_path: The folder, or a repository on the Hugging Face hub.
            options: Those of `huggingface_hub.hf_hub_download`, such as `revision` and `token`.

        Returns:
            The network in evaluation mode.
        """
        source = pretrained_model_name_or_path
        folder = find(source, options)
        config, tensors, _ = read_folder(folder)
        try:
            model = cls(config).to(floating_dtype(tensors))
        except UserError as error:
            raise cannot_load(source, error) from error
        require_weights(tensors, model.state_dict(), config.arch, str(folder / WEIGHTS))
        model.load_state_dict(tensors)
        return model.eval()


def checked_config(config: ModelConfig) -> ModelConfig:
    """The config with tuples where a saved config has lists; `UserError` for an invalid value."""
    require_choice("router", config.router, ROUTER_KINDS)
    require_flag("routed", config.routed)
    require_whole("num_classes", config.num_classes, 1, MOST_CLASSES)
    require_whole("in_channels", config.in_channels, 1, LARGEST_SIDE)
    require_number("drop_path", config.drop_path, 0, 1, below=True)
    require_number("crop", config.crop, SMALLEST_CROP, 1)
    require_kind("blocks", "" if config.blocks is None else config.blocks, str, "names of blocks")
    shape = ARCHITECTURES.get(config.arch)
    if shape is None and not (isinstance(config.widths, tuple | list) and len(config.widths) == 0):
        raise UserError(f"widths must be left out for {config.arch}; they apply to codinet's own networks.")
    changed: dict[str, Any] = {"widths": () if shape is None else shape.checked_widths(config.widths)}
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
    config = replace(config, **changed)
    _require_fit(config)
    return config


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
