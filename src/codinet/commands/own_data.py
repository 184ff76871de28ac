"""How `codinet train` treats a small data set of the user's own: it starts from a network of the zoo.

A few hundred images do not suffice to train a network from new weights. The start becomes a setting of the run, as if
--start had been given. Where no network of the zoo fits, the training from new weights is short, on small images.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from codinet.config import DEFAULT_BUDGET, NetworkConfig, RunConfig, flat, to_dict
from codinet.specs import OWN, PYTHON, TIMM, TORCHVISION, parse_spec

if TYPE_CHECKING:
    from codinet.commands.train import Args
    from codinet.zoo.card import Card

SMALL = 20_000  # training images from which on a data set is not small
_MAX_BATCH = 32  # of the preset `small`
_FROM_START, _FROM_NEW_WEIGHTS = "small", "quick"  # presets
_SIDE = 32  # pixels, of images that networks for small images learn from new weights
NONE = "none"  # the value of --start for new weights


class Adapted(NamedTuple):
    """Flags with the defaults for a small data set, and a sentence about them."""

    args: "Args"
    note: str | None = None


def start_given(args: "Args") -> bool:
    """Whether the flags decide where the weights come from."""
    return "start" in args.extra or any(args.extra.get(name) for name in ("teacher", "pretrained", "weights"))


def adapt_new(args: "Args", images: int, channels: int, *, resizable: bool) -> Adapted:
    """Add the start from the zoo to the flags of a new run, or the defaults for new weights if no network fits.

    Args:
        args: The flags; none of them decides about the start.
        images: Number of training images.
        channels: Channels of the images.
        resizable: Whether images can be resized, as those of a folder.

    Returns:
        The flags, unchanged if the data set is not small or the network is not codinet's own.
    """
    if images >= SMALL:
        return Adapted(args)
    arch = args.network.get("arch", NetworkConfig.arch)
    card = matching_card(arch, channels, args.network.get("router", "fc"), args.losses.get("budget") or DEFAULT_BUDGET)
    library = parse_spec(arch).library
    if card is None and library in (TIMM, TORCHVISION):
        return Adapted(
            args,
            f"{images:,} training images are few; use --pretrained to start from weights that {library} publishes.",
        )
    if card is None:
        return Adapted(args) if library == PYTHON else _from_new_weights(args, arch, images, channels, resizable)
    side = min(card["image_shape"][1:])
    start = f"zoo:{card.name}"
    sized = f" at {side}×{side}" if resizable and "image_size" not in args.data else ""
    preset = "" if args.preset else f" with --preset {_FROM_START}"
    adapted = _with_start(args, start, arch, side if resizable else None, images)
    return Adapted(
        adapted,
        f"{images:,} training images are few: starting from {start}{sized}{preset}; --start none starts from new "
        "weights.",
    )


def _from_new_weights(args: "Args", arch: str, images: int, channels: int, resizable: bool) -> Adapted:
    from codinet.backbones import ARCHITECTURES

    trained = matching_card(NetworkConfig.arch, channels, "fc", DEFAULT_BUDGET) is not None
    advice = f"; --arch {NetworkConfig.arch} starts from a trained network" if trained else ""
    sized = how = ""
    if args.preset is None:
        small = resizable and ARCHITECTURES[arch].image_size <= _SIDE
        sized = f" at {_SIDE}×{_SIDE}" if small and "image_size" not in args.data else ""
        how = f" with --preset {_FROM_NEW_WEIGHTS}"
        args = _with_defaults(args, _FROM_NEW_WEIGHTS, _SIDE if small else None, images)
    return Adapted(
        args,
        f"{images:,} training images are few, and the zoo has no {arch} for {'grey' if channels == 1 else 'colour'} "
        f"images: training from new weights{sized}{how}{advice}.",
    )


def adapt_resumed(args: "Args", recorded: RunConfig, images: int) -> Adapted:
    """Repeat the defaults of a run that was started before; a run with another start than the zoo keeps its flags."""
    start = recorded.extra.start
    if start is not None and start.startswith("zoo:"):
        return Adapted(_with_start(args, start, recorded.network.arch, recorded.data.image_size, images))
    if start is not None or args.preset is not None or parse_spec(recorded.network.arch).library != OWN:
        return Adapted(args)
    # An older version, or --start none, did not use these defaults.
    repeated = _with_defaults(args, _FROM_NEW_WEIGHTS, recorded.data.image_size, images)
    return Adapted(min(args, repeated, key=lambda flags: _differences(flags, recorded)))


def _differences(args: "Args", recorded: RunConfig) -> int:
    from codinet.commands.train import config_from

    ours, theirs = flat(to_dict(config_from(args))), flat(to_dict(recorded))
    return sum(ours[name] != theirs[name] for name in ours)


def _with_start(args: "Args", start: str, arch: str, image_size: int | None, images: int) -> "Args":
    args = _with_defaults(args, _FROM_START, image_size, images)
    return replace(args, network={"arch": arch, **args.network}, extra={"start": start, **args.extra})


def _with_defaults(args: "Args", preset: str, image_size: int | None, images: int) -> "Args":
    schedule: dict[str, Any] = {}
    if args.preset is None:
        schedule = {"batch": max(2, min(_MAX_BATCH, images // 4))}  # some steps per epoch, however few images
    return replace(
        args,
        preset=args.preset or preset,
        data={"image_size": image_size, **args.data},
        schedule=schedule | args.schedule,
    )


def matching_card(arch: str, channels: int, router: str, budget: float) -> "Card | None":
    """The network of the zoo to start from.

    Args:
        arch: Its architecture.
        channels: Channels of its images.
        router: Kind of routers; networks with routers of this kind come first.
        budget: Cost share; then those with about this cost.

    Returns:
        The most accurate of the best matching ones; None if the zoo has no such architecture.
    """
    from codinet.zoo.shelf import cards

    fitting = [card for card in cards() if card["arch"] == arch and card["image_shape"][0] == channels]

    def misfit(card: "Card") -> tuple[Any, ...]:
        routed = card["routed"] and card["router"] == router
        return not routed, int(10 * abs(card["cost_share"] - budget)), -card["accuracy"], card.name

    return min(fitting, key=misfit, default=None)


def is_new(out: Path, *, resume: bool) -> bool:
    """Whether this is a new run: nothing in `out` is continued."""
    return not (resume and (out / "config.json").exists())
