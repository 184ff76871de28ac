"""The figures of a run's analysis that the table `routing` shows."""

from typing import Any

from codinet import files
from codinet.analysis.folders import kept_analysis
from codinet.analysis.result import JSON, RunAnalysis
from codinet.errors import UserError
from codinet.results.tables import Found
from codinet.runs import RunFolder

NAME = "routing"
_OWN, _STATIC = "the routed network's own last layer", "the last layer of the static run "  # texts of an analysis


def figures_of(run: RunFolder) -> dict[str, Any]:
    """The figures of the analysis in the run's folder; `UserError` where it is missing or of other weights."""
    if not run.config.network.routed:
        raise UserError(f"{run.path} is a static run, which has one path; the table {NAME} takes routed runs.")
    found = _load(run)
    parts = [found.figures.get(part, {}) for part in ("consistency", "correlation", "swapped")]
    consistency, correlation, swapped = (part if isinstance(part, dict) else {} for part in parts)
    kinds = consistency.get("same_path_kinds")
    figures = {
        "images": consistency.get("pairs"),
        "seed": found.made_from.get("seed"),
        "same_path": consistency.get("same_path"),
        "same_path_kinds": {
            kind: value.get("mean") if isinstance(value, dict) else None
            for kind, value in (kinds if isinstance(kinds, dict) else {"": None}).items()
        },
        "swapped_any": swapped.get("accuracy_any"),  # older analyses lack it
        "swapped_class": swapped.get("accuracy_class"),
        "pcc_relaxed": correlation.get("pcc_relaxed", "missing"),
        "pcc_hard": correlation.get("pcc_hard", "missing"),
        "features": correlation.get("features"),
    }
    if not is_whole(figures):
        raise files.DamagedError(
            f"{run.path / JSON} lacks figures that the table {NAME} needs; analyse the run again with codinet analyze "
            f"{run.path}."
        )
    return figures


def is_whole(figures: Any) -> bool:
    """Whether a record has all figures that the table needs."""
    if not isinstance(figures, dict) or not isinstance(figures.get("same_path_kinds"), dict):
        return False
    shares = [figures.get("same_path"), *figures["same_path_kinds"].values()]
    # None where all images take one path: nothing correlates with it. Older analyses lack the swapped accuracies.
    pccs = [figures.get(key, "missing") for key in ("pcc_relaxed", "pcc_hard")]
    swapped = [figures.get(key) for key in ("swapped_any", "swapped_class")]
    return (
        isinstance(figures.get("features"), str)
        and type(figures.get("images")) is int
        and figures["images"] > 0
        and all(_is_number(share, 0, 1) for share in shares)
        and all(pcc is None or _is_number(pcc, -1, 1) for pcc in pccs)
        and all(accuracy is None or _is_number(accuracy, 0, 100) for accuracy in swapped)
    )


def _is_number(value: Any, low: float, high: float) -> bool:
    return type(value) in (int, float) and low <= value <= high


def source_of(record: Found) -> str:
    """Where the features came from; all static runs count as one source, because each seed may have its own."""
    name: str = record["analysis"]["features"]
    if name == _OWN:
        return "own last layer"
    return "a static run's last layer" if name.startswith(_STATIC) else name


def _load(run: RunFolder) -> RunAnalysis:
    again = f"codinet analyze {run.path}"
    try:
        found = kept_analysis(run)
    except files.DamagedError as error:
        raise files.DamagedError(f"{str(error).rstrip('.')}; analyse the run again with {again}.") from error
    if found is None:
        raise UserError(
            f"{run.path} has no analysis of its weights and data, which the table {NAME} needs; make one with {again}."
        )
    return found
