"""A sweep's folder: `sweep.json`, the plan; a run folder and a `.log` for each run; later the results.

Only one process at a time works in it, and it holds only one plan.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from codinet import files
from codinet.config import RunConfig, first_difference, flat, from_dict, to_dict
from codinet.errors import UserError, shown
from codinet.runs import RunFolder
from codinet.sweep.grid import Planned

FORMAT = 1
PLAN = "sweep.json"


def working_in(out: Path) -> AbstractContextManager[None]:
    """Create the folder and lock it against other sweeps."""
    return files.held(out, f"Another sweep is running in {out}; wait for it or choose another --out.")


def keep_plan(out: Path, planned: Sequence[Planned]) -> None:
    """Write the plan, or check that the existing one is the same."""
    runs = [{"name": run.name, "config": to_dict(run.trained())} for run in planned]
    if (out / PLAN).exists():
        _compare(out, runs)
        return
    if any(entry.name != files.LOCK and not entry.match(f".{PLAN}.*.tmp") for entry in out.iterdir()):
        raise UserError(f"{out} is not empty and holds no sweep; choose another --out.")
    files.sweep(out)  # a kill may have left a half-written plan
    files.write_json(out / PLAN, {"format": FORMAT, "runs": runs})


def is_finished(out: Path, run: Planned) -> bool:
    """Whether the run's folder holds the result of this run; the worker refuses a folder of another run."""
    try:
        folder = RunFolder.open(out / run.name)
    except UserError:
        return False
    config = folder.config if run.after is None else _by_name(folder.config)
    return folder.finished and config == run.trained()


def _by_name(config: RunConfig) -> RunConfig:
    """A trained config as in the plan: other runs by name, because the sweep's folder may have been moved."""
    start, teacher = (path and Path(path).name for path in (config.extra.start, config.extra.teacher))
    extra = replace(config.extra, start=start, start_sha256=None, teacher=teacher, teacher_sha256=None)
    return replace(config, extra=extra)


def log_of(out: Path, run: Planned) -> Path:
    return out / f"{run.name}.log"


def _compare(out: Path, runs: list[dict[str, Any]]) -> None:
    try:
        before = _read_plan(out)
    except files.DamagedError as error:
        why = str(error).rstrip(".")
        raise files.DamagedError(f"{out / PLAN} is not a sweep's plan ({why}); choose another --out.") from error
    now = {run["name"]: flat(run["config"]) for run in runs}
    difference = _difference(before, now)
    if difference:
        raise UserError(f"{out} holds another sweep ({difference}); repeat its flags or choose another --out.")


def _read_plan(out: Path) -> dict[str, dict[str, Any]]:
    """The flat config of each run of the plan in the folder."""
    content = files.read_json(out / PLAN)
    if not isinstance(content, dict) or not isinstance(content.get("runs"), list):
        raise files.DamagedError("it does not list runs")
    if content.get("format") != FORMAT:
        raise files.DamagedError("it was written by another version of codinet")
    found: dict[str, dict[str, Any]] = {}
    for run in content["runs"]:
        if not isinstance(run, dict) or not isinstance(run.get("name"), str):
            raise files.DamagedError(f"it holds {shown(run)}, which is not a run")
        try:
            # Through the config, so that an entry that older plans lack gets its default.
            found[run["name"]] = flat(to_dict(from_dict(run.get("config"))))  # type: ignore[arg-type]
        except UserError as error:
            raise files.DamagedError(str(error)) from error
    return found


def _difference(before: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> str | None:
    chained, to_be_chained = (any(config.get("start") for config in runs.values()) for runs in (before, now))
    if chained != to_be_chained:
        return f"it was begun {'with' if chained else 'without'} --from-static"
    for names, verb in ((before.keys() - now.keys(), "has"), (now.keys() - before.keys(), "lacks")):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            return f"it {verb} {min(names)}{more}"
    return next(filter(None, (first_difference(before[name], config) for name, config in now.items())), None)
