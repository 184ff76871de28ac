"""How a run was trained: its settings compared with the presets and with other runs, and its static baseline."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from codinet.backbones import ARCHITECTURES
from codinet.config import DEFAULT_DISTILL, RunConfig, to_dict
from codinet.presets import best, imagenet, paper
from codinet.resolving import resolve, unused_settings
from codinet.sweep.plan import METHODS
from codinet.sweep.summary import Spread, spread_of
from tools.results.paper_tables import backbone_name

PRESETS = {"paper": paper, "best": best}
IMAGENET_PRESETS = {"imagenet": imagenet}  # for networks that were published for larger images
SIMILAR_COST = 1.25  # largest ratio, either way, between two costs that count as similar

# Settings that the row's name or another column shows, and entries that are not settings.
_SHOWN_ELSEWHERE = {"arch", "routed", "router", "relaxation", "budget", "gamma", "epochs", "finetune", "image_size"}
_SHOWN_ELSEWHERE |= {"method", "watch", "start_sha256", "teacher_sha256", "weights_sha256"}
# Settings that name other runs or files. The names differ between seeds, so they are not shown.
_OTHER_RUNS = {"start": "initialised from another run", "teacher": "distilled from another run"}
_OTHER_RUNS |= {"weights": "initialised from a file"}


def _unused_by(method: str) -> frozenset[str]:
    """The settings that a method does not use, or that define it."""
    config = METHODS[method](paper(""))
    return unused_settings(config) | {name for name in ("alpha", "beta") if getattr(config.losses, name) == 0}


def epochs_of(record: Mapping[str, Any]) -> str:
    """The epochs of stage 1 and, if the run has one, stage 2."""
    return f"{record['epochs']}" + (f" + {record['finetune']}" if record["finetune"] else "")


def paper_epochs(data: str) -> int:
    """The paper's epochs in stage 1: 250, and 100 on ImageNet."""
    return 100 if data == "imagenet" else paper("").schedule.epochs


def describe_recipe(record: Mapping[str, Any], axis: tuple[str, str] | None = None) -> str:
    """The closest preset and every setting that differs from it."""
    presets = PRESETS if ARCHITECTURES[record["arch"]].image_size < 64 else IMAGENET_PRESETS
    found = {name: deviations(record, axis, preset) for name, preset in presets.items()}
    nearest = min(found, key=lambda name: len(found[name]))
    return ", ".join([f"`{nearest}`", *found[nearest]])


def deviations(
    record: Mapping[str, Any],
    axis: tuple[str, str] | None = None,
    preset: Callable[[str], RunConfig] = paper,
) -> list[str]:
    """Lists the settings of a run that differ from a preset.

    Args:
        record: The run's record.
        axis: Part and field of the config that the table varies; it is left out.
        preset: The preset to compare with.

    Returns:
        One text per setting, such as "lr 0.1".
    """
    usual = to_dict(resolve(preset(""), gpu=True))
    parts = {part: settings for part, settings in record["config"].items() if isinstance(settings, dict)}
    ignored = _SHOWN_ELSEWHERE | _unused_by(record["method"])
    if record["config"]["extra"]["distill"] == DEFAULT_DISTILL:
        ignored |= {"distill"}  # "distilled from another run" implies it
    if record["config"]["schedule"]["schedule"] != "multistep":
        ignored |= {"milestones"}
    return [
        _OTHER_RUNS[field] if field in _OTHER_RUNS else _setting(field, value)
        for part, settings in parts.items()
        for field, value in settings.items()
        if field not in ignored and (part, field) != axis and value != usual[part].get(field)
    ]


def count_differences(static: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    """The number of settings that a static run uses, epochs included, whose value differs in another run."""
    ignored = (_SHOWN_ELSEWHERE | _unused_by("static")) - {"epochs"}
    return sum(
        value != other["config"].get(part, {}).get(field)
        for part, settings in static["config"].items()
        if isinstance(settings, dict)
        for field, value in settings.items()
        if field not in ignored
    )


def trained_alike(static: Mapping[str, Any], routed: Mapping[str, Any]) -> bool:
    """Whether a static run had the settings of a routed one, and as many epochs as both of its stages together."""
    schedule = {**routed["config"]["schedule"], "epochs": routed["epochs"] + routed["finetune"]}
    return count_differences(static, {**routed, "config": {**routed["config"], "schedule": schedule}}) == 0


def _setting(field: str, value: Any) -> str:
    return f"{sum(value)} inner channels" if field == "widths" else f"{field} {_format(value)}"


def _format(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "/".join(map(_format, value)) if isinstance(value, list) else str(value)


@dataclass(frozen=True)
class StaticBaseline:
    """Static runs that differ only in their seed, compared with a routed row."""

    runs: Sequence[Mapping[str, Any]]
    cost_ratio: float  # its MACs divided by the routed row's

    @property
    def name(self) -> str:
        return backbone_name(self.runs[0])

    @property
    def accuracy(self) -> Spread:
        return spread_of([run["accuracy"] for run in self.runs])

    @property
    def distance(self) -> float:
        """The larger of the two costs divided by the smaller one."""
        return max(self.cost_ratio, 1 / self.cost_ratio)


def find_baseline(row: Sequence[Mapping[str, Any]], records: Iterable[Mapping[str, Any]]) -> StaticBaseline | None:
    """Finds the static network closest in MACs to a routed row.

    Args:
        row: Runs that differ only in their seed.
        records: All records; the result does not depend on their order.

    Returns:
        Static runs on the same data whose cost is within `SIMILAR_COST` of the row's. If that network was trained with
        several recipes, the one with the fewest differences from the row's; among equals, the most accurate. None for
        a static row, or if there is no such network.
    """
    first = row[0]
    if first["method"] == "static":
        return None
    macs = _mean_macs(row)
    found = [StaticBaseline(runs, _mean_macs(runs) / macs) for runs in _static_runs(records, data_of(first))]
    similar = [baseline for baseline in found if baseline.distance <= SIMILAR_COST]
    if not similar:
        return None
    nearest = min(similar, key=lambda baseline: baseline.distance)
    recipes = [baseline for baseline in similar if baseline.name == nearest.name]
    return min(recipes, key=lambda baseline: (count_differences(baseline.runs[0], first), -baseline.accuracy.mean))


def _static_runs(
    records: Iterable[Mapping[str, Any]], data: tuple[str, str, int | None]
) -> list[list[Mapping[str, Any]]]:
    """The static runs on a data set, grouped so that each group differs only in the seed.

    Pruned networks are left out, because they were larger in the first part of their training.
    """
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for record in sorted(records, key=lambda record: (record["seed"], record["name"])):
        if record["method"] == "static" and not record["config"]["network"]["widths"] and data_of(record) == data:
            key = (record["arch"], *deviations(record), epochs_of(record))
            groups.setdefault(key, []).append(record)
    return list(groups.values())


def data_of(record: Mapping[str, Any]) -> tuple[str, str, int | None]:
    """What a run was trained on. Packed photographs have one digest for every size that they are read in."""
    return record["data"], record["data_sha256"], record["config"]["data"]["image_size"]


def _mean_macs(runs: Sequence[Mapping[str, Any]]) -> float:
    return spread_of([run["macs"] for run in runs]).mean
