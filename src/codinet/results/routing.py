"""What a run's analysis says of its paths, as the table `routing` shows it."""

from typing import Any

from codinet import files
from codinet.analysis.folders import kept_analysis
from codinet.analysis.result import RunAnalysis
from codinet.errors import UserError
from codinet.results.tables import Found
from codinet.runs import RunFolder

NAME = "routing"
_OWN, _STATIC = "the routed network's own last layer", "the last layer of the static run "  # as an analysis says it


def figures_of(run: RunFolder) -> dict[str, Any]:
    """Of the analysis that lies in the run's folder; `UserError` where it is missing or of other weights."""
    if not run.config.network.routed:
        raise UserError(f"{run.path} is a static run, which has one path; the table {NAME} takes routed runs.")
    found = _load(run)
    consistency, correlation = found.figures["consistency"], found.figures["correlation"]
    swapped = found.figures.get("swapped", {})  # which the first analyses did not measure
    return {
        "images": consistency["pairs"],
        "seed": found.made_from["seed"],
        "same_path": consistency["same_path"],
        "same_path_kinds": {kind: value["mean"] for kind, value in consistency["same_path_kinds"].items()},
        "swapped_any": swapped.get("accuracy_any"),
        "swapped_class": swapped.get("accuracy_class"),
        "pcc_relaxed": correlation["pcc_relaxed"],
        "pcc_hard": correlation["pcc_hard"],
        "features": correlation["features"],
    }


def is_whole(figures: Any) -> bool:
    """Whether a record's figures are all that the table needs."""
    if not isinstance(figures, dict) or not isinstance(figures.get("same_path_kinds"), dict):
        return False
    shares = [figures.get("images"), figures.get("same_path"), *figures["same_path_kinds"].values()]
    # Where all images take one path, nothing correlates with it.
    pccs = [figures.get(key, "missing") for key in ("pcc_relaxed", "pcc_hard")]
    swapped = [figures.get(key) for key in ("swapped_any", "swapped_class")]
    numbers = [*shares, *(number for number in (*pccs, *swapped) if number is not None)]
    return isinstance(figures.get("features"), str) and all(type(number) in (int, float) for number in numbers)


def source_of(record: Found) -> str:
    """Where the features came from; static runs are one source, for each seed may have its own."""
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
            f"{run.path} is not analysed with the weights and data that it has, which the table {NAME} needs; "
            f"analyse it with {again}."
        )
    return found
