"""`create_model(…, pretrained=…)`: a network of the zoo by its name, or by its data set.

Imported with the package, so the rest of the zoo is imported only when it is used.
"""

from typing import TYPE_CHECKING, Any

from codinet.errors import UserError
from codinet.model import CoDiNet, offer_trained

if TYPE_CHECKING:
    from codinet.zoo.card import Card


def list_pretrained() -> list[str]:
    """The names that `create_model(…, pretrained=…)` accepts."""
    from codinet.zoo.shelf import cards

    return [card.name for card in cards()]


def trained(pretrained: str, asked: dict[str, Any]) -> CoDiNet:
    """The network of that name; or, for a data set, the most accurate one of the requested kind.

    `asked` holds fields of `ModelConfig`; a network of the zoo that differs in one of them is a `UserError`.
    """
    from codinet.zoo.open_run import open_entry
    from codinet.zoo.shelf import best, cards, missing

    there = {card.name: card for card in cards()}
    card = there.get(pretrained)
    if card is None:
        card = best(there.values(), asked["arch"], pretrained, lambda card: _difference(card, _kind(asked)) is None)
    if card is None:
        data = dict.fromkeys(card["data"] for card in there.values())
        if pretrained in data:
            routed = "a routed" if asked["routed"] else "a static"
            raise UserError(
                f"The zoo has no {asked['arch']} of {pretrained} as {routed} network"
                f"{' with the router ' + asked['router'] if asked['routed'] else ''}; it has {', '.join(there)}."
            )
        raise missing("data set or network of the zoo", pretrained, [*data, *there])
    difference = _difference(card, asked)
    if difference is not None:
        field, has, wanted = difference
        raise UserError(f"{card.name} of the zoo has {field}={has!r}, got {wanted!r}; pass {has!r}, or leave it out.")
    return open_entry(card).load_model()


def _kind(asked: dict[str, Any]) -> dict[str, Any]:
    """The fields that choose among the networks of a data set; classes and channels are checked afterwards."""
    return {field: value for field, value in asked.items() if field not in ("num_classes", "in_channels")}


def _difference(card: "Card", asked: dict[str, Any]) -> tuple[str, Any, Any] | None:
    """The first field that differs from the request: its name, the network's value, the requested value."""
    network = card.config().network
    has = {
        "arch": network.arch,
        "routed": network.routed,
        "router": network.router if network.routed else asked.get("router"),
        "stride_on": network.stride_on,
        "num_classes": len(card["classes"]),
        "in_channels": card["image_shape"][0],
    }
    for field, wanted in asked.items():
        if has[field] != wanted:
            return field, has[field], wanted
    return None


offer_trained(trained)
