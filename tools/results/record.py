"""A record: the results of one run and how it was trained, stored as results/NAME.json."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from codinet import files
from codinet.analysis.run_analysis import JSON, saved_analysis
from codinet.backbones import ARCHITECTURES
from codinet.config import from_dict, to_dict
from codinet.data.catalogue import KNOWN
from codinet.errors import UserError, unknown
from codinet.evaluate import COMPARED_FIGURES, impossible_figure
from codinet.resolving import resolve
from codinet.run_reader import RunReader
from codinet.runs import open_run
from codinet.sweep.plan import method_of
from codinet.sweep.workers import train_arguments
from tools.results.paper_tables import METHODS, TABLES, analysed_table, label_of

FORMAT = 1
Record = dict[str, Any]
METRICS = (*COMPARED_FIGURES, "n")
_NUMBER, _TEXT = (int, float), (str,)
_FIELDS: dict[str, tuple[type, ...]] = {
    "tables": (dict,),
    **dict.fromkeys(("data", "data_sha256", "arch", "method", "command"), _TEXT),
    **dict.fromkeys(("seed", "epochs", "finetune"), (int,)),
    **dict.fromkeys(METRICS, _NUMBER),
    **dict.fromkeys(("budget", "gamma", "wall_s"), (*_NUMBER, NoneType)),
    **dict.fromkeys(("commit", "device"), (*_TEXT, NoneType)),
    **dict.fromkeys(("config", "versions"), (dict,)),
}


def find_runs(paths: Sequence[Path]) -> list[RunReader]:
    """Opens the run folders among the paths and inside them.

    Args:
        paths: Run folders, or folders that contain run folders.

    Returns:
        The runs, in order.
    """
    found: list[RunReader] = []
    for path in paths:
        inner = [] if (path / "config.json").exists() else _runs_in(path)
        if path.is_dir() and not inner and not (path / "config.json").exists():
            raise UserError(f"{path} contains no runs; name run folders, or the folder of a sweep.")
        found += [open_run(folder) for folder in inner or [path]]
    if not found:
        raise UserError("No runs given; name run folders, or the folder of a sweep.")
    return found


def _runs_in(folder: Path) -> list[Path]:
    """The run folders in a folder. An unreadable folder is an error, because it may contain a run."""
    try:
        return sorted(inner for inner in folder.iterdir() if inner.is_dir() and "config.json" in os.listdir(inner))
    except (FileNotFoundError, NotADirectoryError):  # `RunReader.open` reports it
        return []
    except OSError as error:
        raise UserError(f"Cannot read {error.filename}: {error.strerror}; name the runs to add.") from error


def make_record(run: RunReader, tables: Sequence[str]) -> Record:
    """Makes the record of a run.

    Args:
        run: A finished run, trained without --holdout.
        tables: Names of the tables that list it.

    Returns:
        The record. It contains file names but no paths of this machine.
    """
    for table in tables:
        if table not in TABLES:
            raise unknown("table", table, TABLES)
    _check_run(run)
    evaluation, config, made = run.load_evaluation(), run.config, run.environment
    record: Record = {
        "data": config.source if config.source in KNOWN else Path(run.data.name).name,
        "data_sha256": run.data.sha256,
        "arch": config.network.arch,
        "method": method_of(config),
        "budget": config.losses.budget if config.network.routed else None,
        "gamma": config.losses.gamma if config.network.routed else None,
        "seed": config.seed,
        "epochs": config.schedule.epochs,
        "finetune": config.schedule.finetune if config.network.routed else 0,
        **{key: evaluation[key] for key in METRICS},
        "config": run.recipe(),
        "command": _command(run),
        "commit": made.get("commit"),
        "device": made.get("device"),
        "versions": {key: made.get(key) for key in ("codinet", "python", "torch")},
        "wall_s": run.wall_seconds(),
    }
    needing = analysed_table(tables, record["method"])
    if needing is not None:
        record["analysis"] = _analysis_metrics(run, needing)
    labels = {table: label_of(table, record) for table in sorted(tables)}
    return {"format": FORMAT, "name": _name(record), "tables": labels, **record}


def _check_run(run: RunReader) -> None:
    run.require_finished()
    if run.config.data.holdout:
        raise UserError(
            f"{run.path} was trained with --holdout {run.config.data.holdout}; result tables take runs without "
            "--holdout only."
        )
    if run.config.network.arch not in ARCHITECTURES:
        raise UserError(f"{run.path} is a {run.config.network.arch}; result tables take codinet's own networks only.")
    if "zoo" in run.environment:
        raise UserError(f"{run.path} was unpacked from the zoo; add the run that the network was trained in.")


def _command(run: RunReader) -> str:
    words = train_arguments(run.config, Path("RUN"))
    return " ".join(["codinet", *(Path(word).name if os.sep in word else word for word in words[:-1])])


def _name(record: Record) -> str:
    """A readable name, with a digest of config and data so that different trainings get different names."""
    training = json.dumps([record["config"], record["data_sha256"]], sort_keys=True)
    budget = "" if record["budget"] is None else f"-{record['budget']:g}"
    digest = hashlib.sha256(training.encode()).hexdigest()[:8]
    return f"{record['data']}-{record['arch']}-{record['method']}{budget}-seed{record['seed']}-{digest}"


def _analysis_metrics(run: RunReader, table: str) -> Record:
    """The metrics of a run's analysis, for a table that shows them."""
    if not run.config.network.routed:
        raise UserError(f"{run.path} is a static run; the table {table} takes routed runs only.")
    command = f"codinet analyze {run.path}"
    try:
        analysis = saved_analysis(run)
    except files.DamagedError as error:
        raise files.DamagedError(f"{str(error).rstrip('.')}; run {command} again.") from error
    if analysis is None:
        raise UserError(
            f"{run.path} has no analysis of its current weights and data, which the table {table} requires; "
            f"run {command}."
        )
    parts = [analysis.figures.get(part, {}) for part in ("consistency", "correlation", "swapped")]
    consistency, correlation, swapped = (part if isinstance(part, dict) else {} for part in parts)
    kinds = consistency.get("same_path_kinds")
    metrics = {
        "images": consistency.get("pairs"),
        "seed": analysis.made_from.get("seed"),
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
    if not _is_complete_analysis(metrics):
        raise files.DamagedError(
            f"{run.path / JSON} lacks numbers that the table {table} requires; run {command} again."
        )
    return metrics


def _is_complete_analysis(metrics: Any) -> bool:
    """Whether all numbers that the tables need are present and possible."""
    if not isinstance(metrics, dict) or not isinstance(metrics.get("same_path_kinds"), dict):
        return False
    rates = [metrics.get("same_path"), *metrics["same_path_kinds"].values()]
    # A PCC is None if all images take one path. Older analyses lack the swapped accuracies.
    pccs = [metrics.get(key, "missing") for key in ("pcc_relaxed", "pcc_hard")]
    swapped = [metrics.get(key) for key in ("swapped_any", "swapped_class")]
    return (
        isinstance(metrics.get("features"), str)
        and type(metrics.get("images")) is int
        and metrics["images"] > 0
        and all(_is_number(rate, 0, 1) for rate in rates)
        and all(pcc is None or _is_number(pcc, -1, 1) for pcc in pccs)
        and all(accuracy is None or _is_number(accuracy, 0, 100) for accuracy in swapped)
    )


def _is_number(value: Any, low: float, high: float) -> bool:
    return type(value) in (int, float) and low <= value <= high


def feature_source(record: Mapping[str, Any]) -> str:
    """Where an analysis took its features from. All static runs count as one source, as each seed may use its own."""
    name: str = record["analysis"]["features"]
    if "own last layer" in name:
        return "own last layer"
    return "a static run's last layer" if "static run" in name else name


def save_records(records: Sequence[Record], folder: Path, *, replace: bool = False) -> list[Path]:
    """Writes one file per record. Nothing is written unless all records can be.

    Args:
        records: The records. One that already has a file is listed in its old and its new tables.
        folder: The folder of the result files.
        replace: Whether a record may replace one of the same run with other metrics.

    Returns:
        The files.
    """
    merged: dict[Path, Record] = {}
    for record in records:
        file = folder / f"{record['name']}.json"
        # `records` may contain two results of the same run.
        before = merged.get(file) or (read_record(file) if file.exists() else None)
        merged[file] = record if before is None else _merge(before, record, file, replace=replace)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot create the folder {folder}: {error.strerror}; choose another --results.") from error
    for file, record in merged.items():
        files.write_json(file, record)
    return list(merged)


def _merge(before: Record, record: Record, file: Path, *, replace: bool) -> Record:
    """The record, also listed in the tables of the earlier one."""
    same = all(before[key] == record[key] for key in METRICS)
    if not same and not replace:
        if file.exists():
            raise UserError(f"{file} contains another result of the same run; keep it, or pass --replace.")
        raise UserError(f"These runs contain two results of {record['name']}; add one of them, or pass --replace.")
    tables = dict(sorted({**before["tables"], **record["tables"]}.items()))
    table = analysed_table(tables, record["method"])
    if table is None or "analysis" in record:
        return {**record, "tables": tables}
    if not same:  # the old analysis is of other paths
        raise UserError(
            f"{record['name']} is in the table {table} with another result; analyse the run again and add it with "
            f"--table {table} too."
        )
    return {**record, "tables": tables, "analysis": before["analysis"]}


def read_record(file: Path) -> Record:
    """The record in a file; `DamagedError` if an entry is missing or impossible."""
    record = files.read_json(file)
    if not isinstance(record, dict) or record.get("format") != FORMAT or record.get("name") != file.stem:
        raise files.DamagedError(f"{file} is not a result that this version reads; restore it or add the run again.")
    invalid = _invalid_entry(record)
    if invalid is not None:
        raise files.DamagedError(f"{file} has an invalid or missing {invalid}; restore it or add the run again.")
    for table in record["tables"]:
        if table not in TABLES:
            raise unknown(f"table in {file}:", table, TABLES)
    try:
        # Parsing the config gives entries that older records lack their defaults.
        config = from_dict(record["config"])
        resolve(config)  # for its checks
        if config.network.arch != record["arch"]:
            raise UserError(f"its network is {config.network.arch}, but the record's is {record['arch']}.")
        return {**record, "config": to_dict(config)}
    except UserError as error:
        why = str(error).rstrip(".")
        raise files.DamagedError(f"{file} has an invalid config ({why}); restore it or add the run again.") from error


def _invalid_entry(record: Record) -> str | None:
    """The first entry that is missing, of the wrong type or impossible; None if the record is valid."""
    for key, kinds in _FIELDS.items():
        if key not in record or type(record[key]) not in kinds:
            return key
    if record["arch"] not in ARCHITECTURES:
        return "arch"
    for key, valid in (
        ("tables", all(isinstance(label, str) for label in record["tables"].values())),
        ("versions", all(isinstance(version, str | None) for version in record["versions"].values())),
        ("method", record["method"] in METHODS),
        ("wall_s", (record["wall_s"] or 0) >= 0),
        (
            "analysis",
            not analysed_table(record["tables"], record["method"]) or _is_complete_analysis(record.get("analysis")),
        ),
    ):
        if not valid:
            return key
    return impossible_figure(record, ARCHITECTURES[record["arch"]].blocks, METRICS)


def read_records(folder: Path) -> list[Record]:
    """All records of a folder, sorted by name."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; create it with python -m tools.results add RUNS.")
    records = [read_record(file) for file in sorted(folder.glob("*.json"))]
    if not records:
        raise UserError(f"{folder} contains no results; add some with python -m tools.results add RUNS.")
    return records
