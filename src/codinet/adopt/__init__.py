"""Adds routing to an existing network. The network's own modules and weights are used; only routers are new.

`resnet` recognises ResNets by the names that torchvision and timm give their parts. `chain` handles any network whose
residual blocks run one after another; the caller names the blocks, except for the networks in `families`.
"""

import re

from torch import nn

from codinet.adopt.chain import AdoptedChain
from codinet.adopt.families import family_pattern, likely_pattern
from codinet.adopt.parts import first_convolution
from codinet.adopt.resnet import AdoptedResNet
from codinet.adopt.tracing import Blocks
from codinet.adopt.vision import import_vision as import_vision
from codinet.checks import require_choice, require_kind
from codinet.errors import UserError
from codinet.methods.router_kinds import ROUTER_KINDS
from codinet.model import RoutedNetwork


def make_dynamic(
    module: nn.Module,
    *,
    blocks: Blocks | None = None,
    router: str | None = "fc",
    image_shape: tuple[int, int, int] | None = None,
    check: bool = True,
) -> RoutedNetwork:
    """Add a router before every residual block of an existing network. Weights are shared with `module`.

    Args:
        module: The network.
        blocks: Which modules are residual blocks: their class, or one or more names, in which `*` matches anything
            ("features.*"). Blocks that keep the shape of their input are routed; the others always run. By default
            those of a ResNet, ConvNeXt, ViT, Swin, EfficientNet, MobileNet or RegNet of timm or torchvision.
        router: "fc", "cnn", "rnn" or another of `codinet.methods.router_kinds`; None makes a static network, in which
            every block runs.
        image_shape: Channels, height and width of the images; by default the only size that the network accepts, or
            224×224.
        check: Whether to compare the logits with those of `module` on a random image. Not needed if the same network
            was checked before.

    Returns:
        The routed network. A network that cannot be routed is a `UserError`.
    """
    require_kind("module", module, nn.Module, "a torch module")
    if isinstance(module, RoutedNetwork):
        raise UserError(f"module must not have routers already, got {type(module).__name__}.")
    if router is not None:
        require_choice("router", router, ROUTER_KINDS)
    network = _route(module, blocks, router, image_shape, check)
    network.library_arch, network.router_name = _library_arch(module), router
    network.block_names = None if blocks is None else _as_text(blocks, network)
    return network


def _route(
    module: nn.Module,
    blocks: Blocks | None,
    router: str | None,
    image_shape: tuple[int, int, int] | None,
    check: bool,
) -> RoutedNetwork:
    if blocks is not None:
        return AdoptedChain(module, blocks, router, image_shape, check=check)
    pattern = family_pattern(module)
    if pattern is not None:
        try:
            return AdoptedChain(module, pattern, router, image_shape, check=check)
        except UserError as error:
            raise UserError(f"{error} (Its blocks were selected with blocks={pattern!r}.)") from error
    try:
        return AdoptedResNet(module, router, image_shape, check=check)
    except UserError as error:
        advice = _advice(module, image_shape)
        if any(re.fullmatch(r"layer\d+", name) for name, _ in module.named_children()):  # it looks like a ResNet
            raise UserError(f"{error}{advice}") from error
        first_convolution(module)  # raises for a network without one
        raise UserError(
            f"codinet does not know the residual blocks of {type(module).__name__}; name them with --blocks PATTERN, "
            f"or blocks= in Python.{advice}"
        ) from error


def _library_arch(module: nn.Module) -> str | None:
    """What a network of timm says about itself, as the name of a network; None for other networks."""
    stated = getattr(module, "pretrained_cfg", None)
    name = stated.get("architecture") if isinstance(stated, dict) else None
    return f"timm:{name}" if isinstance(name, str) and name else None


def _as_text(blocks: Blocks, network: RoutedNetwork) -> str:
    """The selected blocks as in `ModelConfig.blocks`: the patterns, or the blocks' names if it has no patterns."""
    patterns = [blocks] if isinstance(blocks, str) else blocks
    if isinstance(patterns, type) or any("," in pattern for pattern in patterns):
        patterns = [str(getattr(block, "name", "")) for block in network.blocks]
    return ",".join(patterns)


def _advice(module: nn.Module, image_shape: tuple[int, int, int] | None) -> str:
    """A pattern that may select the residual blocks; empty if it is not accepted."""
    likely = likely_pattern(module)
    if likely is None:
        return ""
    pattern, kind, number = likely
    try:
        AdoptedChain(module, pattern, None, image_shape, check=False)
    except UserError:
        return ""
    return f" Perhaps blocks={pattern!r}, which are {number} {kind}."
