"""Completes and checks the settings of a training: `resolve`. Importing this module does not import torch."""

import dataclasses
import math
from typing import Any, get_type_hints

from codinet.config import (
    DEFAULT_BUDGET,
    DEFAULT_DISTILL,
    PADDED,
    PARTS,
    SMALLEST_CROP,
    LossConfig,
    RunConfig,
    ScheduleConfig,
    describe_hint,
    fits_hint,
    flag_of,
)
from codinet.errors import UserError
from codinet.methods import DEFAULT, NAMES


def resolve(config: RunConfig, *, gpu: bool = False) -> RunConfig:
    """Fill in the defaults that depend on other settings or on the device, and check every value.

    Args:
        config: Any config, for example one made by a preset.
        gpu: Whether the run trains on a GPU, which decides the default batch size.

    Returns:
        The complete config. A value that cannot work is a `UserError`.
    """
    from codinet.checks import require_flag
    from codinet.methods import method_named
    from codinet.specs import OWN, parse_spec

    _require_types(config)
    require_flag("gpu", gpu)
    config = method_named(config.method).configure(config)
    losses, schedule, extra = config.losses, config.schedule, config.extra
    own = parse_spec(config.network.arch).library == OWN
    if config.network.routed and (losses.budget, losses.gamma, losses.target_rate) == (None, None, None):
        losses = dataclasses.replace(losses, budget=DEFAULT_BUDGET)
    if schedule.batch is None:
        schedule = dataclasses.replace(schedule, batch=(512 if own else 256) if gpu else 64)
    if schedule.finetune is None:
        schedule = dataclasses.replace(schedule, finetune=max(1, round(schedule.epochs * 20 / 250)))
    if extra.distill is None and extra.teacher is not None:
        extra = dataclasses.replace(extra, distill=DEFAULT_DISTILL)
    config = dataclasses.replace(config, losses=losses, schedule=schedule, extra=extra)
    _check(config)
    return config


def unused_settings(config: RunConfig) -> frozenset[str]:
    """The names of the settings that have no effect on the training of this config."""
    from codinet.methods import method_named

    if not config.network.routed:
        return _ROUTING_SETTINGS
    idle = [("m_c", config.losses.alpha), ("m_d", config.losses.beta)]
    unused = frozenset(margin for margin, weight in idle if weight == 0)
    return unused | (_ROUTING_SETTINGS - method_named(config.method).settings)


# Settings of routers, of their losses and of stage 2, which fine-tunes under fixed routers.
_ROUTING_SETTINGS = frozenset(
    {"router", "relaxation", "tau", "finetune", "finetune_lr"}
    | {entry.name for entry in dataclasses.fields(LossConfig)}
)


def require_seed(seed: int) -> None:
    """`UserError` for a seed that torch or numpy does not accept."""
    from codinet.checks import shown

    if not 0 <= seed < 2**32:
        raise UserError(f"--seed must be a whole number from 0 to {2**32 - 1}, got {shown(seed)}.")


def _require_types(config: Any) -> None:
    """`UserError` for a value of the wrong type, an unknown name or a count that is too large."""
    from codinet.checks import LARGEST_COUNT, require_choice, require_kind, shown
    from codinet.methods.router_kinds import ROUTER_KINDS
    from codinet.relaxation import RELAXATIONS
    from codinet.specs import require_arch

    require_kind("config", config, RunConfig, "a RunConfig, for example of a preset")
    for part in PARTS:
        kind = get_type_hints(RunConfig)[part]
        if type(value := getattr(config, part)) is not kind:  # a subclass such as ModelConfig has more entries
            raise UserError(f"{part} must be a {kind.__name__}, got {shown(value)}.")
    network = config.network
    require_arch(network.arch)
    require_choice("router", network.router, ROUTER_KINDS)
    require_choice("method", config.method, NAMES)
    require_choice("relaxation", network.relaxation, RELAXATIONS)
    for part in (config, *(getattr(config, part) for part in PARTS)):
        for name, hint in get_type_hints(type(part)).items():
            value = getattr(part, name)
            if dataclasses.is_dataclass(hint):
                continue
            if not fits_hint(value, hint):
                raise UserError(f"{flag_of(name)} must be {describe_hint(hint)}, got {shown(value)}.")
            if isinstance(value, int) and name != "seed" and abs(value) > LARGEST_COUNT:
                raise UserError(f"{flag_of(name)} must be at most {LARGEST_COUNT}, got {shown(value)}.")


def _check(config: RunConfig) -> None:
    """`UserError` for the first value that is out of range or contradicts another one."""
    from codinet.checks import MOST_VIEWS
    from codinet.losses import LARGEST_WEIGHT
    from codinet.methods import method_named
    from codinet.relaxation import SMALLEST_TAU
    from codinet.specs import OWN, parse_spec

    data, network, losses, schedule, extra = (getattr(config, part) for part in PARTS)
    require_seed(config.seed)
    for part in (data, network, losses, schedule, extra):
        for name, value in vars(part).items():
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, float) and not math.isfinite(number):
                    raise UserError(f"{flag_of(name)} must be a finite number, got {number}.")
    batch, finetune, distill = schedule.batch or 0, schedule.finetune or 0, extra.distill or 0.0
    weights = [losses.alpha, losses.beta, losses.m_c, losses.m_d, losses.gamma or 0.0, losses.score_decay]
    weights += [losses.rate_weight, losses.policy_weight or 0.0, losses.penalty]
    method, rate = method_named(config.method), losses.target_rate
    milestones = " ".join(f"{mark:g}" for mark in schedule.milestones)
    ends = (0.0, *schedule.milestones), (*schedule.milestones, 1.0)
    rising = all(low < high for low, high in zip(*ends, strict=True))
    cost_flag = "--gamma" if losses.budget is None else "--budget"
    own = parse_spec(network.arch).library == OWN
    rules: list[tuple[bool, str]] = [
        *(
            (not (own and given), f"{flag} requires a network of timm or torchvision, got {network.arch}.")
            for flag, given in (
                ("--blocks", network.blocks is not None),
                ("--drop-path", network.drop_path > 0),
                ("--pretrained", extra.pretrained),
            )
        ),
        (own or not network.widths, f"--widths requires one of codinet's own networks, got {network.arch}."),
        (losses.budget is None or losses.gamma is None, "--budget and --gamma exclude each other; leave one out."),
        (
            network.routed or (losses.budget is None and losses.gamma is None),
            f"{cost_flag} requires routers, and "
            + (f"--method {method.name} has none" if config.method != DEFAULT else "--no-routed removes them")
            + "; leave one of the two out.",
        ),
        (
            not network.routed or network.router in method.routers,
            f"--method {method.name} requires --router {' or '.join(method.routers)}, got {network.router}.",
        ),
        *(
            (
                getattr(losses, name) is None or name in method.settings or not network.routed,
                f"--method {method.name} has no {flag_of(name)}; use --budget.",
            )
            for name in ("gamma", "target_rate")
        ),
        (rate is None or losses.budget is None, "--budget and --target-rate exclude each other; leave one out."),
        (rate is None or 0 <= rate <= 1, f"--target-rate must be between 0 and 1, got {rate or 0:g}."),
        (
            losses.budget is None or 0 < losses.budget <= 1,
            f"--budget must be above 0 and at most 1 (the cost of the static network), got {losses.budget or 0:g}.",
        ),
        (batch >= 2, f"--batch must be 2 or more, got {batch}; the diversity loss compares images."),
        (1 <= schedule.views <= MOST_VIEWS, f"--views must be from 1 to {MOST_VIEWS}, got {schedule.views}."),
        (
            not (network.routed and losses.alpha > 0 and schedule.views < 2),
            "The consistency loss compares views of an image; use --views 2 or more, or --alpha 0.",
        ),
        (schedule.epochs >= 1, f"--epochs must be 1 or more, got {schedule.epochs}."),
        (finetune >= 0, f"--finetune must be 0 or more, got {finetune}; 0 leaves stage 2 out."),
        (schedule.lr > 0, f"--lr must be above 0, got {schedule.lr:g}."),
        (schedule.finetune_lr > 0, f"--finetune-lr must be above 0, got {schedule.finetune_lr:g}."),
        (0 <= schedule.momentum < 1, f"--momentum must be at least 0 and below 1, got {schedule.momentum:g}."),
        (network.tau >= SMALLEST_TAU, f"--tau must be at least {SMALLEST_TAU:g}, got {network.tau:g}."),
        (min(weights) >= 0, f"Loss weights and margins must not be negative, got {min(weights):g}."),
        (max(weights) <= LARGEST_WEIGHT, f"Loss weights and margins must be at most 1e6, got {max(weights):g}."),
        (schedule.weight_decay >= 0, f"--weight-decay must not be negative, got {schedule.weight_decay:g}."),
        (schedule.warmup >= 0, f"--warmup must not be negative, got {schedule.warmup:g}."),
        (data.holdout >= 0, f"--holdout must not be negative, got {data.holdout}."),
        (rising, f"--milestones must be rising numbers between 0 and 1, such as 0.6 0.8, got {milestones}."),
        (
            schedule.schedule == "multistep" or schedule.milestones == ScheduleConfig.milestones,
            f"--milestones requires --schedule multistep, got {schedule.schedule}.",
        ),
        (
            0 <= extra.label_smoothing < 1,
            f"--label-smoothing must be at least 0 and below 1, got {extra.label_smoothing:g}.",
        ),
        (extra.cutout >= 0, f"--cutout must not be negative, got {extra.cutout}."),
        (0 <= extra.ema < 1, f"--ema must be at least 0 and below 1, got {extra.ema:g}."),
        (0 <= distill <= 1, f"--distill must be between 0 and 1, got {distill:g}."),
        (
            SMALLEST_TAU <= extra.distill_temperature <= LARGEST_WEIGHT,
            f"--distill-temperature must be from {SMALLEST_TAU:g} to 1e6, got {extra.distill_temperature:g}.",
        ),
        (distill == 0 or extra.teacher is not None, "--distill requires --teacher, a run folder or zoo:NAME."),
        (extra.teacher is None or distill > 0, "--teacher requires --distill above 0, got 0."),
        (extra.teacher_views == 0 or extra.teacher is not None, "--teacher-views requires --teacher."),
        (
            extra.teacher_views == 0 or schedule.views <= extra.teacher_views <= MOST_VIEWS,
            f"--teacher-views must be from {schedule.views}, the --views of a step, to {MOST_VIEWS}, or 0, "
            f"got {extra.teacher_views}.",
        ),
        (extra.start is not None or extra.start_sha256 is None, "--start-sha256 requires --start."),
        (extra.teacher is not None or extra.teacher_sha256 is None, "--teacher-sha256 requires --teacher."),
        (extra.weights is not None or extra.weights_sha256 is None, "--weights-sha256 requires --weights."),
        (
            sum([extra.start is not None, extra.weights is not None, extra.pretrained]) <= 1,
            "--start, --weights and --pretrained exclude each other; leave all but one out.",
        ),
        (0 <= network.drop_path < 1, f"--drop-path must be at least 0 and below 1, got {network.drop_path:g}."),
        (schedule.clip >= 0, f"--clip must not be negative, got {schedule.clip:g}."),
        (
            data.crop is None or SMALLEST_CROP <= data.crop <= 1,
            f"--crop must be from {SMALLEST_CROP:g} to 1, got {data.crop or 0:g}.",
        ),
        (0 < data.min_area <= 1, f"--min-area must be above 0 and at most 1, got {data.min_area:g}."),
        (data.image_size is None or data.image_size >= 8, f"--image-size must be 8 or more, got {data.image_size}."),
        (data.grow_from is None or data.grow_from >= 8, f"--grow-from must be 8 or more, got {data.grow_from}."),
        (data.grow_from is None or data.view != PADDED, "--grow-from requires --view resized."),
        (
            schedule.accumulate >= 1 and (schedule.batch or 0) % schedule.accumulate == 0,
            f"--accumulate must divide --batch {schedule.batch}, got {schedule.accumulate}.",
        ),
    ]
    for valid, sentence in rules:
        if not valid:
            raise UserError(sentence)
    if network.widths:
        from codinet.backbones import ARCHITECTURES

        ARCHITECTURES[network.arch].checked_widths(network.widths)
