"""How a run's settings differ from the paper's recipe, in a few words."""

from collections.abc import Mapping
from typing import Any

from codinet.config import RunConfig, to_dict
from codinet.presets import paper

GPU_BATCH = 512  # what the recipe means on the hardware that its figures are made on
# What a row's name or another column says, and what is no setting of its own.
_ELSEWHERE = {"arch", "routed", "router", "relaxation", "budget", "gamma", "epochs", "finetune", "image_size", "watch"}
_ELSEWHERE |= {"start_sha256", "teacher_sha256"}
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


def deviations(record: Mapping[str, Any], axis: tuple[str, str] | None = None) -> list[str]:
    """Every setting that is not the paper's, but for those that the table is about."""
    usual = _paper()
    parts = {part: settings for part, settings in record["config"].items() if isinstance(settings, dict)}
    silent = _ELSEWHERE | _UNUSED.get(record["method"], set())
    return [
        f"{field} {_written(value)}"
        for part, settings in parts.items()
        for field, value in settings.items()
        if field not in silent and (part, field) != axis and value != usual.get(part, {}).get(field)
    ]


def _paper() -> dict[str, Any]:
    config: RunConfig = paper("")
    usual = to_dict(config)
    usual["schedule"]["batch"] = GPU_BATCH
    # As files hold them.
    return {
        part: {field: list(value) if isinstance(value, tuple) else value for field, value in settings.items()}
        for part, settings in usual.items()
        if isinstance(settings, dict)
    }


def _written(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "/".join(map(_written, value)) if isinstance(value, list) else str(value)
