"""The settings of a training run: one frozen value, written to `config.json` and read back unchanged.

Device and folders are not part of it, so a run may move between machines. `resolve` fills in defaults and checks every
value.
"""

import dataclasses
import json
import math
import sys
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

from codinet.backbones import ARCHITECTURES, StrideOn
from codinet.checks import LARGEST_COUNT, require_choice, require_flag, require_kind, shown
from codinet.errors import UserError
from codinet.losses import LARGEST_WEIGHT
from codinet.relaxation import RELAXATIONS, SMALLEST_TAU
from codinet.routers import ROUTERS

DEFAULT_BUDGET = 0.6
DEFAULT_DISTILL = 0.5
# Entries that older configs lack; they get their defaults.
_LATER = frozenset({"cutout", "extra", "milestones", "watch"})


@dataclass(frozen=True)
class DataConfig:
    """Where the images come from."""

    image_size: int | None = None
    """Side in pixels to which images of a folder are resized. Default: the size they have."""
    holdout: int = 0
    """Training images held out and watched instead of the test set, to choose recipes on."""
    watch: Literal["test", "train"] = "test"
    """What every epoch is evaluated on if nothing is held out; with "train" the test set is read at the end only."""


@dataclass(frozen=True)
class NetworkConfig:
    """The network and how it routes."""

    arch: str = "resnet32"
    """One of `codinet models`."""
    routed: bool = True
    """Whether blocks have routers; without them this is the plain residual network."""
    router: Literal["fc", "cnn", "rnn"] = "fc"
    """Two linear layers (the paper's), a convolution, or an LSTM along the depth."""
    relaxation: Literal["gumbel", "straight-through"] = "gumbel"
    """How decisions are relaxed in stage 1."""
    tau: float = 1.0
    """Temperature of the relaxation."""
    stride_on: StrideOn = "3x3"
    """Which convolution of a bottleneck strides (the paper's ResNet-50 figures use 1x1)."""


@dataclass(frozen=True)
class LossConfig:
    """The weights and margins of Eq. 8, 9, 11, 12."""

    budget: float | None = None
    """Share of the static network's MACs to meet, e.g. 0.57. Default: 0.6 if no gamma is given."""
    gamma: float | None = None
    """Fixed weight of the cost loss, as in the paper, instead of a budget."""
    alpha: float = 0.2
    """Weight of the consistency loss."""
    beta: float = 0.2
    """Weight of the diversity loss."""
    m_c: float = 0.2
    """Margin of the consistency loss."""
    m_d: float = 0.5
    """Margin of the diversity loss."""
    score_decay: float = 1e-4
    """Decay of the routers' margins, which keeps them movable until the last epochs; 0 as in the paper."""
    paths: Literal["noise-free", "noised"] = "noise-free"
    """Which relaxed paths the losses get; "noised" as in the paper."""


@dataclass(frozen=True)
class ScheduleConfig:
    """Optimisation."""

    epochs: int = 250
    """Epochs of stage 1: network and routers together."""
    finetune: int | None = None
    """Epochs of stage 2: routers fixed, hard decisions. Default: 20 for every 250 of stage 1, at least 1."""
    batch: int | None = None
    """Images of a step (L), each in --views views. Default: 512 on a GPU, 64 elsewhere."""
    views: int = 2
    """Augmentations of each image in a step (M)."""
    lr: float = 0.1
    """Initial learning rate of stage 1."""
    finetune_lr: float = 0.01
    """Initial learning rate of stage 2."""
    schedule: Literal["multistep", "cosine"] = "multistep"
    """Tenfold drops at --milestones, or a cosine."""
    milestones: tuple[float, ...] = (0.6, 0.8)
    """Shares of stage 1 after which a multi-step rate drops tenfold (the paper's 150 and 200 of 250 epochs)."""
    warmup: float = 1.0
    """Epochs over which the learning rate rises from zero."""
    momentum: float = 0.9
    """Momentum of SGD."""
    weight_decay: float = 1e-4
    """Weight decay, on every parameter."""


@dataclass(frozen=True)
class ExtraConfig:
    """Training techniques that the paper does not use; all are off by default."""

    label_smoothing: float = 0.0
    """Share of a label's weight that is spread evenly over all classes, e.g. 0.1."""
    ema: float = 0.0
    """Decay of a moving average of the weights, e.g. 0.999; the average is evaluated and saved. 0 is off."""
    start: str | None = None
    """Run folder or zoo:NAME whose weights this run starts from, e.g. a static run of the same network."""
    start_sha256: str | None = None
    """Digest that the weights of --start must have. Default: the one they have when the run starts."""
    teacher: str | None = None
    """Run folder or zoo:NAME whose network teaches this one, beside the labels; any network for the same classes."""
    teacher_sha256: str | None = None
    """Digest that the weights of --teacher must have. Default: the one they have when the run starts."""
    distill: float | None = None
    """Share of the teacher's answers in the classification loss; the labels get the rest. Default: 0.5."""
    distill_temperature: float = 4.0
    """Temperature at which the logits of teacher and network are compared."""
    cutout: int = 0
    """Side in pixels of a square blanked at a random place of every view, e.g. 8; 0 is off."""


@dataclass(frozen=True)
class RunConfig:
    """A whole training run."""

    # Not compared: data may be moved. Their digest identifies them.
    source: str = field(compare=False)
    """A data set by name, an image folder, or an .npz file."""
    data: DataConfig = field(default_factory=DataConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    losses: LossConfig = field(default_factory=LossConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    seed: int = 0
    """Seed of initial weights, order, views and noise."""
    extra: ExtraConfig = field(default_factory=ExtraConfig)


def resolve(config: RunConfig, *, gpu: bool = False) -> RunConfig:
    """The config, checked, with the defaults filled in that depend on other fields or the device."""
    _require_types(config)
    require_flag("gpu", gpu)
    losses, schedule, extra = config.losses, config.schedule, config.extra
    if config.network.routed and losses.budget is None and losses.gamma is None:
        losses = dataclasses.replace(losses, budget=DEFAULT_BUDGET)
    if schedule.batch is None:
        schedule = dataclasses.replace(schedule, batch=512 if gpu else 64)
    if schedule.finetune is None:
        schedule = dataclasses.replace(schedule, finetune=max(1, round(schedule.epochs * 20 / 250)))
    if extra.distill is None and extra.teacher is not None:
        extra = dataclasses.replace(extra, distill=DEFAULT_DISTILL)
    config = dataclasses.replace(config, losses=losses, schedule=schedule, extra=extra)
    _check(config)
    return config


def seed_rule(seed: int) -> tuple[bool, str]:
    """Whether torch and numpy both accept the seed, and the sentence for the case that they do not."""
    return 0 <= seed < 2**32, f"--seed {shown(seed)} is out of range; use a whole number from 0 to {2**32 - 1}."


def _require_types(config: Any) -> None:
    """`UserError` for an entry of another type, an unknown name or a count that no machine can hold."""
    require_kind("config", config, RunConfig, "a RunConfig; presets make one")
    for part in ("data", "network", "losses", "schedule", "extra"):
        kind = get_type_hints(RunConfig)[part]
        require_kind(part, getattr(config, part), kind, f"a {kind.__name__}")
    network = config.network
    for what, name, known in (
        ("architecture", network.arch, ARCHITECTURES),
        ("router", network.router, ROUTERS),
        ("relaxation", network.relaxation, RELAXATIONS),
    ):
        require_choice(what, name, known)
    for part in (config, config.data, config.network, config.losses, config.schedule, config.extra):
        for name, hint in get_type_hints(type(part)).items():
            value = getattr(part, name)
            if dataclasses.is_dataclass(hint):
                continue
            flag = f"--{name.replace('_', '-')}"
            if not _fits(value, hint):
                raise UserError(f"{flag} must be {_described(hint)}, got {shown(value)}.")
            if isinstance(value, int) and name != "seed" and abs(value) > LARGEST_COUNT:
                raise UserError(f"{flag} must be at most {LARGEST_COUNT}, got {shown(value)}.")


def _check(config: RunConfig) -> None:
    network, losses, schedule, extra = config.network, config.losses, config.schedule, config.extra
    batch = schedule.batch or 0
    weights = losses.alpha, losses.beta, losses.m_c, losses.m_d, losses.gamma or 0.0, losses.score_decay
    for part in (network, losses, schedule, extra):
        for name, value in vars(part).items():
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, float) and not math.isfinite(number):
                    raise UserError(f"--{name.replace('_', '-')} {number} is not a finite number; give one.")
    if losses.budget is not None and losses.gamma is not None:
        raise UserError("--budget and --gamma exclude each other: state the share to meet, or the weight, not both.")
    if not network.routed and (losses.budget is not None or losses.gamma is not None):
        flag = "--gamma" if losses.budget is None else "--budget"
        raise UserError(f"{flag} needs routers, and --no-routed removes them; leave out one of them.")
    if losses.budget is not None and not 0 < losses.budget <= 1:
        raise UserError(
            f"A budget of {losses.budget:g} is not a share of the static network's cost; "
            "give --budget a number above 0 and up to 1, such as 0.6."
        )
    rules = [
        (batch >= 2, f"--batch {batch} is too small: diversity compares images; use 2 or more."),
        (schedule.views >= 1, f"--views {schedule.views} leaves nothing to train on; use 1 or more."),
        (
            not (network.routed and losses.alpha > 0 and schedule.views < 2),
            "Consistency compares views of an image, and --views 1 makes only one; use --views 2 or --alpha 0.",
        ),
        (schedule.epochs >= 1, f"--epochs {schedule.epochs} trains nothing; use 1 or more."),
        ((schedule.finetune or 0) >= 0, f"--finetune {schedule.finetune} is negative; use 0 to leave stage 2 out."),
        (schedule.lr > 0 and schedule.finetune_lr > 0, "Learning rates must be above 0."),
        (0 <= schedule.momentum < 1, f"--momentum {schedule.momentum:g} must lie in [0, 1)."),
        (network.tau >= SMALLEST_TAU, f"--tau {network.tau:g} must be above 0, at least {SMALLEST_TAU:g}."),
        (min(weights) >= 0, f"Loss weights and margins must not be negative, got {min(weights):g}."),
        (max(weights) <= LARGEST_WEIGHT, f"Loss weights and margins must be at most 1e6, got {max(weights):g}."),
        (min(schedule.weight_decay, schedule.warmup) >= 0, "--weight-decay and --warmup must not be negative."),
        seed_rule(config.seed),
        (config.data.holdout >= 0, "--holdout must not be negative."),
        *_schedule_rules(schedule),
        *_extra_rules(extra),
        (
            config.data.image_size is None or config.data.image_size >= 8,
            "--image-size must be at least 8 pixels.",
        ),
    ]
    for fine, sentence in rules:
        if not fine:
            raise UserError(sentence)


def _schedule_rules(schedule: ScheduleConfig) -> list[tuple[bool, str]]:
    marks = schedule.milestones
    rising = all(low < high for low, high in zip((0.0, *marks), (*marks, 1.0), strict=True))
    return [
        (
            rising,
            f"--milestones {' '.join(f'{mark:g}' for mark in marks)} are not rising shares of the epochs; "
            "give numbers between 0 and 1, such as 0.6 0.8.",
        ),
        (
            schedule.schedule == "multistep" or marks == ScheduleConfig.milestones,
            f"--milestones need --schedule multistep, and it is {schedule.schedule}; leave out one of them.",
        ),
    ]


def _extra_rules(extra: ExtraConfig) -> list[tuple[bool, str]]:
    distill = extra.distill or 0.0
    return [
        (
            0 <= extra.label_smoothing < 1,
            f"--label-smoothing {extra.label_smoothing:g} must lie in [0, 1); 0.1 is usual.",
        ),
        (extra.cutout >= 0, f"--cutout {extra.cutout} is negative; give the side of a square in pixels, or 0."),
        (0 <= extra.ema < 1, f"--ema {extra.ema:g} must lie in [0, 1); 0.999 is usual and 0 is off."),
        (0 <= distill <= 1, f"--distill must be a number from 0 to 1, such as 0.5, got {distill:g}."),
        (
            extra.distill_temperature >= SMALLEST_TAU,
            f"--distill-temperature {extra.distill_temperature:g} must be above 0, at least {SMALLEST_TAU:g}.",
        ),
        (
            distill == 0 or extra.teacher is not None,
            f"--distill {distill:g} requires --teacher; give --teacher a run folder.",
        ),
        (
            extra.teacher is None or distill > 0,
            "--teacher has no effect with --distill 0; give --distill a number, such as 0.5.",
        ),
        (
            extra.start is not None or extra.start_sha256 is None,
            "--start-sha256 is the digest of --start; give --start too.",
        ),
        (
            extra.teacher is not None or extra.teacher_sha256 is None,
            "--teacher-sha256 is the digest of --teacher; give --teacher too.",
        ),
    ]


def to_dict(config: RunConfig) -> dict[str, Any]:
    """The config as JSON holds it, with lists for tuples."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def flat(values: Any) -> dict[str, Any]:
    """The innermost entries of the result of `to_dict`; no two have the same name."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value) if isinstance(value, dict) else {key: value}
    return found


def first_difference(old: dict[str, Any], new: dict[str, Any]) -> str | None:
    """The first difference between two flat configs, in words."""
    changed = (f"{key} was {old.get(key)}, now {value}" for key, value in new.items() if old.get(key) != value)
    return next(changed, None)


def from_dict(values: dict[str, Any]) -> RunConfig:
    """The config that `to_dict` wrote; unknown, missing or mistyped entries are a `UserError`."""
    return _build(RunConfig, values, "config")


def _build(kind: type, values: Any, where: str) -> Any:
    if not isinstance(values, dict):
        raise UserError(f"{where} must hold named values, got {shown(values)}.")
    hints = get_type_hints(kind)
    names = {entry.name for entry in dataclasses.fields(kind)}
    if not names - _LATER <= set(values) <= names:
        odd = ", ".join(sorted(map(str, (set(values) - names) | (names - _LATER - set(values)))))
        raise UserError(f"{where} does not fit this version of codinet: unknown or missing entries {odd}.")
    built = {}
    for name, value in values.items():
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            built[name] = _build(hint, value, f"{where}.{name}")  # type: ignore[arg-type]
            continue
        value = tuple(value) if get_origin(hint) is tuple and isinstance(value, list) else value
        if not _fits(value, hint):
            raise UserError(f"{where}.{name} must be {_described(hint)}, got {shown(value)}.")
        built[name] = value
    return kind(**built)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value has the type of a hint. A whole number fits a float; True and False fit only a bool."""
    options = get_args(hint)
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(each, options[0]) for each in value)
    if options and all(isinstance(option, str) for option in options):  # a Literal
        return isinstance(value, str) and value in options
    kinds = options or (hint,)
    if isinstance(value, bool):
        return bool in kinds
    if float in kinds and isinstance(value, int):
        return abs(value) <= sys.float_info.max
    return isinstance(value, kinds)


def _described(hint: Any) -> str:
    """A type in words."""
    options = get_args(hint)
    if get_origin(hint) is tuple:
        return f"a list of which each is {_described(options[0])}"
    if options and all(isinstance(option, str) for option in options):
        return f"one of {', '.join(options)}"
    names = {bool: "True or False", int: "a whole number", float: "a number", str: "text", type(None): "None"}
    return " or ".join(names[kind] for kind in options or (hint,))
