"""The run folder that a training writes: a new one, or the one that an interrupted training left."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from codinet import files
from codinet.config import RunConfig, first_difference, flat, to_dict
from codinet.data.official import KNOWN
from codinet.errors import UserError
from codinet.runs import DataBrief, RunFolder
from codinet.train import checkpoint
from codinet.train.checkpoint import RunIdentity

CHECKPOINTS = "checkpoints"


@contextmanager
def claimed_folder(
    out: Path, config: RunConfig, brief: DataBrief, environment: dict[str, Any], *, resume: bool
) -> Iterator[RunFolder]:
    """Create a run folder, or with `resume` open the one of the same run, and keep other trainings out of it.

    The folder is locked before anything in it is written. A finished run is only read, so it is not locked.
    """
    _require_usable(out, resume=resume)
    if resume and (out / "config.json").exists():
        folder = _reopen(out, config, brief)
        if folder.finished:
            yield folder
            return
    with files.held(out / CHECKPOINTS, f"Another training is running in {out}; wait for it or choose another --out."):
        _require_usable(out, resume=resume)  # the training that held the lock may have written a run
        if (out / "config.json").exists():
            yield _reopen(out, config, brief)
            return
        _require_own_checkpoints(out, identify(config, brief))
        yield RunFolder.create(out, config, brief, environment)


def identify(config: RunConfig, brief: DataBrief) -> RunIdentity:
    """What checkpoints record about the run that they belong to."""
    return RunIdentity(to_dict(config), brief.sha256)


def _require_usable(out: Path, *, resume: bool) -> None:
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file, not a folder; choose another --out.")
    if resume or not out.is_dir():
        return
    if (out / "config.json").exists():
        raise UserError(f"{out} already holds a run; continue it with --resume or choose another --out.")
    if not all(map(_is_leftover, out.iterdir())):
        raise UserError(f"{out} exists and is not empty; choose another --out.")


def _is_leftover(entry: Path) -> bool:
    """Whether an entry is what a training leaves that was killed before it wrote its config."""
    if entry.name == CHECKPOINTS and entry.is_dir():
        return all(inner.name == files.LOCK for inner in entry.iterdir())
    return entry.name.startswith(".") and entry.name.endswith(".tmp")


def _reopen(out: Path, config: RunConfig, brief: DataBrief) -> RunFolder:
    folder = RunFolder.open(out)
    if not {config.source, folder.config.source} & KNOWN.keys():
        # The user's own data may have moved; its digest decides whether it is the same.
        config = replace(config, source=folder.config.source)
    difference = first_difference(flat(to_dict(folder.config)), flat(to_dict(config)))
    if difference:
        raise UserError(f"{out} was started with other settings ({difference}); repeat them or choose another --out.")
    if not folder.data.same_images(brief):
        raise UserError(f"{out} was started on other data than {brief.name} holds now; restore it or start anew.")
    return replace(folder, data=brief)


def _require_own_checkpoints(out: Path, run: RunIdentity) -> None:
    """Without a config.json, only checkpoints that record this very run may be continued."""
    found = checkpoint.latest(out / CHECKPOINTS, lambda _warning: None, run)
    if found is not None and found.run is None:
        raise UserError(
            f"{out} holds checkpoints but no config.json, so they may belong to another run; restore config.json or "
            "choose another --out."
        )
