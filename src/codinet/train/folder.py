"""Where a training writes: a new run folder, or the one that a stopped training left."""

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from codinet import files
from codinet.config import RunConfig, first_difference, flat, to_dict
from codinet.data.official import KNOWN
from codinet.errors import UserError
from codinet.runs import DataBrief, RunFolder


def alone_in(out: Path) -> AbstractContextManager[None]:
    """Keep other trainings out of a run folder: two that go on with one run would undo each other's checkpoints."""
    refusal = f"Another training is at work in {out}; wait for it or choose another --out."
    return files.held(out / "checkpoints", refusal)


def open_folder(
    out: Path, config: RunConfig, brief: DataBrief, environment: dict[str, Any], *, resume: bool
) -> RunFolder:
    """A new run folder, or with `resume` the one that is there if it is the same run."""
    if not (out / "config.json").exists():
        if out.exists() and not out.is_dir():
            raise UserError(f"{out} is a file, not a folder; choose another --out.")
        if out.is_dir() and any(out.iterdir()) and not resume:
            raise UserError(f"{out} exists and is not empty; choose another --out.")
        return RunFolder.create(out, config, brief, environment)
    if not resume:
        raise UserError(f"{out} holds a run already; continue it with --resume or choose another --out.")
    folder = RunFolder.open(out)
    if not {config.source, folder.config.source} & KNOWN.keys():
        # Folders and files may have been moved; whether they are the same is told by their digest.
        config = replace(config, source=folder.config.source)
    difference = first_difference(flat(to_dict(folder.config)), flat(to_dict(config)))
    if difference:
        raise UserError(f"{out} was begun with other settings ({difference}); repeat them or choose another --out.")
    if not folder.data.same_images(brief):
        raise UserError(f"{out} was begun on other data than {brief.name} holds now; restore it or start anew.")
    return replace(folder, data=brief)
