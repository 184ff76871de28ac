"""A config as the words of `codinet train` that give it back: what a worker is started with."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from codinet.config import RunConfig


def train_words(config: RunConfig, out: Path, *, data_root: Path | None = None, device: str | None = None) -> list[str]:
    """The command that trains this run into `out`, or goes on with it."""
    words = ["train", config.source, *_flags(config), "--out", str(out), "--resume"]
    if data_root is not None:
        words += ["--data-root", str(data_root)]
    if device is not None:
        words += ["--device", device]
    return words


def _flags(config: RunConfig) -> Iterator[str]:
    """Flags for all that is not the default; the defaults are those of the paper's recipe."""
    default = RunConfig(config.source)
    for part in ("data", "network", "losses", "schedule", "extra"):
        for entry in dataclasses.fields(getattr(config, part)):
            value = getattr(getattr(config, part), entry.name)
            if value == getattr(getattr(default, part), entry.name):
                continue
            flag = entry.name.replace("_", "-")
            if isinstance(value, bool):
                yield f"--{flag}" if value else f"--no-{flag}"
            elif isinstance(value, tuple):
                yield from (f"--{flag}", *map(str, value))
            else:
                yield from (f"--{flag}", str(value))
    yield from ("--seed", str(config.seed))
