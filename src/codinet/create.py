"""Networks by name: `create_model`, with initial weights or with those of the zoo.

The zoo is imported only when it is used, so that creating a network stays cheap.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from codinet.backbones import ARCHITECTURES, StrideOn
from codinet.checks import require_flag, require_number
from codinet.config import ModelConfig
from codinet.errors import UserError
from codinet.model import RoutedNetwork
from codinet.networks import build, load_library_weights, pretrained_weights, published_classes
from codinet.specs import OWN, PYTHON, allow_code, require_arch

if TYPE_CHECKING:
    from codinet.zoo.card import Card


def list_models() -> list[str]:
    """Codinet's own architectures. `create_model` also accepts networks of timm, torchvision and your own."""
    return list(ARCHITECTURES)


def list_pretrained() -> list[str]:
    """The trained networks that `create_model(…, pretrained=…)` accepts."""
    from codinet.zoo.shelf import cards

    return [card.name for card in cards()]


def create_model(
    name: str,
    *,
    num_classes: int | None = None,
    routed: bool = True,
    router: str = "fc",
    in_channels: int | None = None,
    stride_on: StrideOn = "3x3",
    pretrained: str | bool | None = None,
    image_shape: tuple[int, int, int] | None = None,
    widths: Sequence[int] = (),
    blocks: str | None = None,
    drop_path: float = 0.0,
) -> RoutedNetwork:
    """Create a network by its name.

    Args:
        name: One of `list_models()`, `timm:NAME`, `torchvision:NAME`, or `package.module:function` for a function of
            your own, which gets `num_classes` and returns a torch module.
        num_classes: Number of classes; by default 10, or that of the pretrained network.
        routed: Whether blocks have routers. Without them this is the plain residual network.
        router: "fc" (two linear layers, as in the paper), "cnn" or "rnn".
        in_channels: Channels of an image; by default 3, or that of the pretrained network.
        stride_on: Which convolution of a bottleneck strides, "3x3" or "1x1"; for codinet's own networks.
        pretrained: For codinet's own networks, a trained network of the zoo by name (see `list_pretrained()`), or a
            data set such as "cifar10" for the most accurate network of this kind on it; arguments that differ from
            the network are a `UserError`. For networks of timm and torchvision, True loads their published weights;
            with another `num_classes`, the classifier keeps its initial ones.
        image_shape: Channels, height and width of the images; for networks that accept one size only.
        widths: Channels between the convolutions of each block of a pruned network of codinet's own.
        blocks: Names of the residual blocks, with wildcards and separated by commas; by default those of the family.
            For networks that are not codinet's own, as is `drop_path`.
        drop_path: Stochastic depth: the rate of the last block.

    Returns:
        The network: in training mode with initial or published weights, or in evaluation mode with those of the zoo.
    """
    spec = require_arch(name)
    if spec.library == PYTHON:
        allow_code(name)  # the caller names it
    if spec.library != OWN and pretrained is not None:
        require_flag("pretrained", pretrained)
    require_number("drop_path", drop_path, 0, 1, below=True)
    requested: dict[str, Any] = {"arch": name, "routed": routed, "router": router, "stride_on": stride_on}
    requested["widths"] = ARCHITECTURES[name].checked_widths(widths) if spec.library == OWN else widths
    optional = {"num_classes": num_classes, "in_channels": in_channels, "image_shape": image_shape, "blocks": blocks}
    requested |= {field: value for field, value in optional.items() if value is not None}
    if spec.library == OWN and isinstance(pretrained, str):
        return _load_pretrained(pretrained, requested)
    unset = pretrained is None or pretrained is False
    if spec.library == OWN and (not unset or blocks is not None or drop_path):
        raise UserError(
            f"{name} is one of codinet's own networks: pretrained must be a name of the zoo, and blocks and drop_path "
            "must be left out."
        )
    model = build(ModelConfig(**requested, drop_path=drop_path))
    if pretrained:
        assert model.config is not None
        tensors = pretrained_weights(model.config)
        if num_classes is None and (published := published_classes(model, tensors)) is not None:
            model = build(ModelConfig(**requested, drop_path=drop_path, num_classes=published))
        load_library_weights(model, tensors, name)
    return model


def _load_pretrained(pretrained: str, requested: dict[str, Any]) -> RoutedNetwork:
    from codinet.zoo.shelf import best, cards, missing
    from codinet.zoo.zoo_run import open_card

    by_name = {card.name: card for card in cards()}
    card = by_name.get(pretrained)
    if card is None:
        # Classes and channels do not choose among the networks of a data set; they are checked below.
        kind = {field: value for field, value in requested.items() if field not in ("num_classes", "in_channels")}
        card = best(by_name.values(), requested["arch"], pretrained, lambda card: _difference(card, kind) is None)
    if card is None:
        data = dict.fromkeys(card["data"] for card in by_name.values())
        if pretrained in data:
            routing = f"router {requested['router']}" if requested["routed"] else "no routers"
            raise UserError(
                f"The zoo has no {requested['arch']} with {routing} for {pretrained}; it has {', '.join(by_name)}."
            )
        raise missing("data set or network of the zoo", pretrained, [*data, *by_name])
    difference = _difference(card, requested)
    if difference is not None:
        field, has, wanted = difference
        raise UserError(f"{card.name} of the zoo has {field}={has!r}, got {wanted!r}; pass {has!r}, or leave it out.")
    return open_card(card).load_model()


def _difference(card: "Card", requested: dict[str, Any]) -> tuple[str, Any, Any] | None:
    """The first requested field that differs: its name, the network's value, the requested value."""
    has = vars(card.data_info().model_config(card.config().network))
    for field, wanted in requested.items():
        if has[field] != wanted and (field != "router" or has["routed"]):
            return field, has[field], wanted
    return None
