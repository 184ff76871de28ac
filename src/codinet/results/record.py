"""A record: the results of one run, how and where it was made, as it is in results/NAME.json."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from codinet import files
from codinet.backbones import ARCHITECTURES
from codinet.config import from_dict, resolve, to_dict
from codinet.data.official import KNOWN
from codinet.errors import UserError, unknown
from codinet.evaluate import impossible_figure
from codinet.results import routing
from codinet.results.tables import METHODS, TABLES, label_of
from codinet.runs import RunFolder
from codinet.sweep.methods import method_of
from codinet.sweep.words import train_words

FORMAT = 1
Record = dict[str, Any]
FIGURES = ("accuracy", "cost_share", "macs", "paper_gmaccs", "mean_blocks", "distinct_paths", "path_entropy", "n")
_NUMBER, _TEXT = (int, float), (str,)
_FIELDS: dict[str, tuple[type, ...]] = {
    "tables": (dict,),
    **dict.fromkeys(("data", "data_sha256", "arch", "method", "command"), _TEXT),
    **dict.fromkeys(("seed", "epochs", "finetune"), (int,)),
    **dict.fromkeys(FIGURES, _NUMBER),
    **dict.fromkeys(("budget", "gamma", "wall_s"), (*_NUMBER, NoneType)),
    **dict.fromkeys(("commit", "device"), (*_TEXT, NoneType)),
    **dict.fromkeys(("config", "versions"), (dict,)),
}


def find_runs(paths: Sequence[Path]) -> list[RunFolder]:
    """The run folders among the paths, and in those that are folders of runs."""
    found: list[RunFolder] = []
    for path in paths:
        inner = [] if (path / "config.json").exists() else _runs_in(path)
        if path.is_dir() and not inner and not (path / "config.json").exists():
            raise UserError(f"{path} holds no runs; name run folders, or the folder of a sweep.")
        found += [RunFolder.open(folder) for folder in inner or [path]]
    if not found:
        raise UserError("There is nothing to add; name run folders, or the folder of a sweep.")
    return found


def _runs_in(folder: Path) -> list[Path]:
    """The folders that hold a run; a folder that may not be read is an error, because it might hold one too."""
    try:
        return sorted(inner for inner in folder.iterdir() if inner.is_dir() and "config.json" in os.listdir(inner))
    except (FileNotFoundError, NotADirectoryError):  # opening it as a run gives the error
        return []
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}; name the runs to add.") from error


def record_of(run: RunFolder, tables: Sequence[str]) -> Record:
    """The record of a run; `UserError` where it may not be in these tables."""
    for table in tables:
        if table not in TABLES:
            raise unknown("table", table, TABLES)
    _require_fit(run)
    figures, config, made = run.load_evaluation(), run.config, run.environment
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
        **{key: figures[key] for key in FIGURES},
        "config": run.recipe(),
        "command": _command(run),
        "commit": made.get("commit"),
        "device": made.get("device"),
        "versions": {key: made.get(key) for key in ("codinet", "python", "torch")},
        "wall_s": run.wall_seconds(),
    }
    if routing.NAME in tables:
        record["analysis"] = routing.figures_of(run)
    rows = {table: label_of(table, record) for table in sorted(tables)}
    return {"format": FORMAT, "name": _name(record), "tables": rows, **record}


def _require_fit(run: RunFolder) -> None:
    run.require_finished()
    if run.config.data.holdout:
        raise UserError(
            f"{run.path} is a development run: it held {run.config.data.holdout} training images back to choose "
            "recipes on; tables take runs without --holdout."
        )
    if "zoo" in run.environment:
        raise UserError(f"{run.path} was unpacked from the zoo; tables take the runs that networks were trained in.")


def _command(run: RunFolder) -> str:
    words = train_words(run.config, Path("RUN"))
    return " ".join(["codinet", *(Path(word).name if os.sep in word else word for word in words[:-1])])


def _name(record: Record) -> str:
    """A readable name with a digest of the training, so that different trainings have different names."""
    told = json.dumps([record["config"], record["data_sha256"]], sort_keys=True)
    cost = "" if record["budget"] is None else f"-{record['budget']:g}"
    digest = hashlib.sha256(told.encode()).hexdigest()[:8]
    return f"{record['data']}-{record['arch']}-{record['method']}{cost}-seed{record['seed']}-{digest}"


def keep(records: Sequence[Record], folder: Path, *, replace: bool = False) -> list[Path]:
    """Write one file per record. A record that exists keeps its tables and gains the new ones."""
    kept: dict[Path, Record] = {}
    for record in records:
        file = folder / f"{record['name']}.json"
        # The records themselves may hold two outcomes of the same run.
        before = kept.get(file) or (read(file) if file.exists() else None)
        kept[file] = record if before is None else _after(before, record, file, replace=replace)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot make the folder {folder}: {error.strerror}; choose another --results.") from error
    for file, record in kept.items():  # nothing is written unless all can be
        files.write_json(file, record)
    return list(kept)


def _after(before: Record, record: Record, file: Path, *, replace: bool) -> Record:
    """The record that replaces an earlier one of the same run."""
    same = all(before[key] == record[key] for key in FIGURES)
    if not same and not replace:
        if file.exists():
            raise UserError(f"{file} holds another outcome of the same run; keep it, or give --replace.")
        raise UserError(f"{record['name']} came to two outcomes in these runs; add one of them, or give --replace.")
    return _with_before(record, before, same=same)


def _with_before(record: Record, before: Record, *, same: bool) -> Record:
    """The record, also in the tables of the earlier one."""
    tables = dict(sorted({**before["tables"], **record["tables"]}.items()))
    if routing.NAME not in tables or "analysis" in record:
        return {**record, "tables": tables}
    if not same:  # its paths have changed
        raise UserError(
            f"{record['name']} is in the table {routing.NAME} with another outcome; "
            f"analyse the run again and add it with --table {routing.NAME} too."
        )
    return {**record, "tables": tables, "analysis": before["analysis"]}


def read(file: Path) -> Record:
    """The record in a file; `DamagedError` where an entry is missing or impossible."""
    record = files.read_json(file)
    if not isinstance(record, dict) or record.get("format") != FORMAT or record.get("name") != file.stem:
        raise files.DamagedError(f"{file} is not a result that this version reads; restore it or add the run again.")
    odd = _odd_entry(record)
    if odd is not None:
        raise files.DamagedError(
            f"{file} is not a complete result: {odd} does not fit; restore it or add the run again."
        )
    for table in record["tables"]:
        if table not in TABLES:
            raise unknown(f"table in {file}:", table, TABLES)
    try:
        # Through the config, so that an entry that older records lack gets its default.
        config = from_dict(record["config"])
        resolve(config)  # for its checks
        if config.network.arch != record["arch"]:
            raise UserError(f"its network is {config.network.arch}, and that of the record {record['arch']}.")
        return {**record, "config": to_dict(config)}
    except UserError as error:
        why = str(error).rstrip(".")
        raise files.DamagedError(f"{file} holds no run's config ({why}); restore it or add the run again.") from error


def _odd_entry(record: Record) -> str | None:
    """The first entry that is missing, of the wrong type, or impossible; None where the record is complete."""
    for key, kinds in _FIELDS.items():
        if key not in record or type(record[key]) not in kinds:
            return key
    if record["arch"] not in ARCHITECTURES:
        return "arch"
    labels, versions = record["tables"].values(), record["versions"].values()
    for key, fine in (
        ("tables", all(isinstance(label, str) for label in labels)),
        ("versions", all(isinstance(one, str | None) for one in versions)),
        ("method", record["method"] in METHODS),
        ("wall_s", (record["wall_s"] or 0) >= 0),
        ("analysis", routing.NAME not in record["tables"] or routing.is_whole(record.get("analysis"))),
    ):
        if not fine:
            return key
    return impossible_figure(record, ARCHITECTURES[record["arch"]].blocks, FIGURES)


def read_all(folder: Path) -> list[Record]:
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}; make it with codinet results add RUNS.")
    records = [read(file) for file in sorted(folder.glob("*.json"))]
    if not records:
        raise UserError(f"{folder} holds no results; add some with codinet results add RUNS.")
    return records
