"""How long a training on a folder of many files takes until its first step, and how much memory it needs.

    python -m tools.large_folder SOURCE FOLDER [--files 1300000] [--classes 1000]

Links the photographs of SOURCE (a folder with files of any names) into FOLDER as `train` and `test` with so many files,
unless FOLDER exists, and starts a training of ResNet-50 at 224 pixels in a new process: twice, first without and then
with an index in the cache. Steps of eight images keep the step itself short.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
import tyro

from codinet.cli import guarded
from codinet.errors import UserError

_TEST = 26  # one of so many files is a test file, as in ImageNet
_MOST_LINKS = 60_000  # of a file
_BATCH = 8


def link(source: Path, folder: Path, files: int, classes: int) -> None:
    """Fill a folder with hard links to the files of another one."""
    found = sorted(path for path in source.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if len(found) * _MOST_LINKS < files:
        raise UserError(f"{source} must hold at least {-(-files // _MOST_LINKS)} JPEG files, found {len(found)}.")
    for number in range(classes):
        for split in ("train", "test"):
            (folder / split / f"class{number:04}").mkdir(parents=True)
    for number in range(files):
        split = "test" if number % _TEST == 0 else "train"
        target = f"{folder}/{split}/class{number // _TEST % classes:04}/{number:07}.jpg"
        os.link(found[number % len(found)], target)


def first_step(folder: Path, started: float) -> None:
    """Train until the first step is done; print the seconds since `started` and the memory of this process."""
    from codinet.data.loading import load_for
    from codinet.presets import imagenet
    from codinet.resolving import resolve
    from codinet.train import train
    from codinet.train.reporting import Reporter

    class Done(Exception):  # noqa: N818
        """The first step is done."""

    class Watch(Reporter):
        def begin(self, *_args: object, **_options: object) -> None:
            print(f"{time.time() - started:.1f} s and {_peak():.2f} GiB until training begins", end=", ")

        def advance(self) -> None:
            print(f"{time.time() - started:.1f} s and {_peak():.2f} GiB until the first step is done")
            raise Done

    config = imagenet(str(folder))
    config = resolve(replace(config, schedule=replace(config.schedule, batch=_BATCH, epochs=1, finetune=0)))
    data = load_for(config.source, folder, config.data)
    with tempfile.TemporaryDirectory() as out, suppress(Done):
        train(Path(out) / "run", config, data, device=torch.device("cpu"), reporter=Watch())


def _peak() -> float:
    """The most memory that this process has used, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(
    source: tyro.conf.Positional[Path],
    folder: tyro.conf.Positional[Path],
    files: int = 1_300_000,
    classes: int = 1000,
) -> int:
    """Link the files and measure two starts.

    Args:
        source: Photographs.
        folder: The folder to make, or one that was made before.
        files: Number of files.
        classes: Number of classes.
    """
    if not folder.exists():
        start = time.monotonic()
        link(source, folder, files, classes)
        print(f"linked {files:,} files in {time.monotonic() - start:.0f} s", flush=True)
        time.sleep(3)  # an index of a folder that has just changed would not be kept
    with tempfile.TemporaryDirectory() as cache:
        for name in ("first", "second"):
            call = f"from pathlib import Path; first_step(Path({str(folder.resolve())!r}), {time.time()})"
            words = [sys.executable, "-c", f"from tools.large_folder import first_step; {call}"]
            print(f"{name} start: ", end="", flush=True)
            subprocess.run(words, env=os.environ | {"CODINET_CACHE": cache}, check=True, timeout=3600)
    return 0


if __name__ == "__main__":
    sys.exit(guarded(lambda: tyro.cli(measure)))
