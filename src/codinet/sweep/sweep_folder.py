"""The folder of a sweep: the plan in `sweep.json`, and a run folder and a `.log` file for each run.

Only one sweep at a time can use a folder, and a folder holds only one plan.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from codinet import files
from codinet.config import DataConfig, RunConfig, first_difference, flat, from_dict, to_dict
from codinet.data.catalogue import KNOWN
from codinet.errors import UserError, shown
from codinet.specs import TIMM, TORCHVISION, parse_spec
from codinet.sweep.plan import PlannedRun

FORMAT = 1
PLAN = "sweep.json"


def lock_folder(out: Path) -> AbstractContextManager[None]:
    """Create the folder and lock it against other sweeps."""
    return files.lock_folder(out, f"Another sweep is running in {out}; wait for it or choose another --out.")


def log_file(out: Path, run: PlannedRun) -> Path:
    """The file with the output of a run's worker."""
    return out / f"{run.name}.log"


def is_finished(out: Path, run: PlannedRun) -> bool:
    """Whether the run's folder holds the results of this run. Workers refuse the folder of a different run."""
    from codinet.runs import open_run

    try:
        folder = open_run(out / run.name)
    except UserError:
        return False
    planned = run.training_config()
    # The plan has no digests, and gives other runs of the sweep by name, because the sweep folder may have been moved.
    unpinned: dict[str, Any] = dict.fromkeys(("start_sha256", "teacher_sha256", "weights_sha256"))
    if run.depends_on is not None:
        paths = {link: getattr(folder.config.extra, link) for link in run.links}
        unpinned |= {link: path and Path(path).name for link, path in paths.items()}
    config = replace(folder.config, extra=replace(folder.config.extra, **unpinned))
    # Where the plan leaves them open, the training records the view that it chose for a folder, and the size and the
    # crop that timm or torchvision states.
    library = parse_spec(planned.network.arch).library in (TIMM, TORCHVISION)
    chosen = ("view", "image_size", "crop") if library else ("view",)
    default, data = DataConfig(), planned.data
    open_ones = {name: value for name in chosen if (value := getattr(data, name)) == getattr(default, name)}
    config = replace(config, data=replace(config.data, **open_ones))
    return folder.finished and config == planned


def save_plan(out: Path, planned: Sequence[PlannedRun]) -> None:
    """Write the plan to the folder, or check that the plan already there is the same."""
    configs = {run.name: run.training_config() for run in planned}
    if (out / PLAN).exists():
        _require_same_plan(out, {name: _flat(config) for name, config in configs.items()})
        return
    if any(entry.name != files.LOCK and not entry.match(f".{PLAN}.*.tmp") for entry in out.iterdir()):
        raise UserError(f"{out} is not empty and holds no sweep; choose another --out.")
    files.remove_leftovers(out)  # remove a half-written plan that a killed process may have left
    runs = [{"name": name, "config": to_dict(config)} for name, config in configs.items()]
    files.write_json(out / PLAN, {"format": FORMAT, "runs": runs})


def _flat(config: RunConfig) -> dict[str, Any]:
    """The settings of a run by name, with data of the user's own as an absolute path."""
    if config.source not in KNOWN:
        config = replace(config, source=str(Path(config.source).absolute()))
    return flat(to_dict(config))


def _require_same_plan(out: Path, now: dict[str, dict[str, Any]]) -> None:
    try:
        before = _read_plan(out)
    except files.DamagedError as error:
        why = str(error).rstrip(".")
        raise files.DamagedError(f"{out / PLAN} is not a sweep's plan ({why}); choose another --out.") from error
    difference = _difference(before, now)
    if difference:
        raise UserError(f"{out} holds another sweep ({difference}); repeat its flags or choose another --out.")


def _read_plan(out: Path) -> dict[str, dict[str, Any]]:
    """The flat config of each run in the folder's plan."""
    content = files.read_json(out / PLAN)
    if not isinstance(content, dict) or not isinstance(content.get("runs"), list):
        raise files.DamagedError("it has no list of runs")
    if content.get("format") != FORMAT:
        raise files.DamagedError("it was written by another version of codinet")
    found: dict[str, dict[str, Any]] = {}
    for run in content["runs"]:
        if not isinstance(run, dict) or not isinstance(run.get("name"), str):
            raise files.DamagedError(f"{shown(run)} is not a run")
        try:
            # Converting to a config adds defaults for settings that older plans lack.
            found[run["name"]] = _flat(from_dict(run.get("config")))  # type: ignore[arg-type]
        except UserError as error:
            raise files.DamagedError(str(error)) from error
    return found


def _difference(before: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> str | None:
    for names, verb in ((before.keys() - now.keys(), "has"), (now.keys() - before.keys(), "lacks")):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            return f"it {verb} {min(names)}{more}"
    return next(filter(None, (first_difference(before[name], config) for name, config in now.items())), None)
