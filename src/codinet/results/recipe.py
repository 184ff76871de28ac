"""How a run's settings differ from the presets that results are made with, in a few words, and from another run's."""

from collections.abc import Callable, Mapping
from typing import Any

from codinet.config import DEFAULT_DISTILL, RunConfig, resolve, to_dict
from codinet.presets import best, paper

PRESETS = {"paper": paper, "best": best}

# What a row's name or another column says, and what is no setting of its own.
_ELSEWHERE = {"arch", "routed", "router", "relaxation", "budget", "gamma", "epochs", "finetune", "image_size", "watch"}
_ELSEWHERE |= {"start_sha256", "teacher_sha256"}
# Other runs, whose names say nothing; each seed may have its own.
_OTHERS = {"start": "started from another run", "teacher": "taught by another run"}
# What a method makes no use of, or is by its very name.
_CONSISTENCY, _DIVERSITY = {"alpha", "m_c"}, {"beta", "m_d"}
_UNUSED = {
    "static": {"tau", "finetune_lr", "score_decay", "paths"} | _CONSISTENCY | _DIVERSITY,
    "vanilla": _CONSISTENCY | _DIVERSITY,
    "con": _DIVERSITY,
    "div": _CONSISTENCY,
}


def epochs_of(record: Mapping[str, Any]) -> str:
    """Of stage 1 and, where there is one, of stage 2."""
    return f"{record['epochs']}" + (f" + {record['finetune']}" if record["finetune"] else "")


def paper_epochs(data: str) -> int:
    """Of stage 1, by our reading: 250, and 100 on ImageNet."""
    return 100 if data == "imagenet" else paper("").schedule.epochs


def told(record: Mapping[str, Any], axis: tuple[str, str] | None = None) -> str:
    """The preset that is nearest, and what differs from it."""
    found = {name: deviations(record, axis, preset) for name, preset in PRESETS.items()}
    nearest = min(found, key=lambda name: len(found[name]))
    return ", ".join([f"`{nearest}`", *found[nearest]])


def deviations(
    record: Mapping[str, Any],
    axis: tuple[str, str] | None = None,
    preset: Callable[[str], RunConfig] = paper,
) -> list[str]:
    """Every setting that is not the preset's, but for those that the table is about."""
    usual = to_dict(resolve(preset(""), gpu=True))
    parts = {part: settings for part, settings in record["config"].items() if isinstance(settings, dict)}
    silent = _ELSEWHERE | _UNUSED.get(record["method"], set())
    if record["config"]["extra"]["distill"] == DEFAULT_DISTILL:
        silent |= {"distill"}  # part of being taught
    return [
        _OTHERS[field] if field in _OTHERS else f"{field} {_written(value)}"
        for part, settings in parts.items()
        for field, value in settings.items()
        if field not in silent and (part, field) != axis and value != usual[part].get(field)
    ]


def differing(static: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    """How many of the settings that a static run uses are not those of another run; epochs are one of them."""
    silent = (_ELSEWHERE | _UNUSED["static"]) - {"epochs"}
    return sum(
        value != other["config"].get(part, {}).get(field)
        for part, settings in static["config"].items()
        if isinstance(settings, dict)
        for field, value in settings.items()
        if field not in silent
    )


def _written(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "/".join(map(_written, value)) if isinstance(value, list) else str(value)
