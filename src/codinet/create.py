"""Networks by name: `create_model`, with initial weights or with those of the zoo.

The zoo is imported only when it is used, so that creating a network stays cheap.
"""

from typing import TYPE_CHECKING, Any

from codinet.backbones import ARCHITECTURES, StrideOn
from codinet.checks import require_choice, require_kind
from codinet.config import ModelConfig
from codinet.errors import UserError
from codinet.model import CoDiNet

if TYPE_CHECKING:
    from codinet.zoo.card import Card


def list_models() -> list[str]:
    """The architectures that `create_model` accepts."""
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
    pretrained: str | None = None,
) -> CoDiNet:
    """Create a network by the name of its architecture.

    Args:
        name: The architecture, one of `list_models()`.
        num_classes: Number of classes; by default 10, or that of the pretrained network.
        routed: Whether blocks have routers. Without them this is the plain residual network.
        router: "fc" (two linear layers, as in the paper), "cnn" or "rnn".
        in_channels: Channels of an image; by default 3, or that of the pretrained network.
        stride_on: Which convolution of a bottleneck strides, "3x3" or "1x1".
        pretrained: A trained network of the zoo by name (see `list_pretrained()`), or a data set such as "cifar10" for
            the most accurate network of this kind on it. Arguments that differ from the network are a `UserError`.

    Returns:
        The network: in training mode with initial weights, or in evaluation mode with trained ones.
    """
    requested: dict[str, Any] = {"arch": name, "routed": routed, "router": router, "stride_on": stride_on}
    sizes = {"num_classes": num_classes, "in_channels": in_channels}
    requested |= {field: value for field, value in sizes.items() if value is not None}
    if pretrained is None:
        return CoDiNet(ModelConfig(**requested))
    require_choice("architecture", name, ARCHITECTURES)
    require_kind("pretrained", pretrained, str, "the name of a trained network or a data set")
    return _load_pretrained(pretrained, requested)


def _load_pretrained(pretrained: str, requested: dict[str, Any]) -> CoDiNet:
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
