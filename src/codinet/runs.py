"""Run folders: everything a training writes, and the only thing that later packages read.

config.json          the run's config, a description of its data set, versions and device
metrics.jsonl        one line per epoch
model.safetensors    final weights              } written when
paths.safetensors    the path of each test image } training is
timing.json          how long it took           } complete
evaluation.json      results on the test set    }
checkpoints/         optimizer, generators, position: for resuming only

`open_run` opens a run folder or `zoo:NAME` for reading. `RunWriter` is for training. A folder may come from anywhere,
so everything that is read is checked: invalid content is a `DamagedError`.
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch

from codinet import files
from codinet.config import RunConfig, from_dict, to_dict
from codinet.data import Dataset
from codinet.errors import UserError, shown
from codinet.evaluate import Evaluation, evaluate_test_set, impossible_figure
from codinet.model import RoutedNetwork
from codinet.records import PathTable
from codinet.resolving import resolve
from codinet.run_reader import DataInfo, RunReader, path_table, read_groups
from codinet.zoo.card import BATCH
from codinet.zoo.shelf import ZOO
from codinet.zoo.zoo_run import ZooRun, open_zoo

FORMAT = 1
DATA_WAIT = "data_wait"  # in metrics.jsonl: a measured time, so unlike all else not the same if a run is repeated
MAX_METRICS_BYTES = 2**26  # of metrics.jsonl; an epoch takes 500


def open_run(path: Path | str) -> RunReader:
    """Open a run for reading.

    Args:
        path: A run folder, or `zoo:NAME`.

    Returns:
        The run; `UserError` if it does not exist or is damaged.
    """
    name = str(path)
    return open_zoo(name.removeprefix(ZOO)) if name.startswith(ZOO) else RunFolder.open(path)


def open_folder(
    path: Path | str,
    *,
    data_root: Path,
    device: torch.device,
    runs: Path = Path("runs"),
    note: Callable[[str], None] = lambda _sentence: None,
) -> "RunFolder":
    """Open a run that is written to, e.g. by an analysis. A network of the zoo is unpacked into a run folder first.

    Args:
        path: A run folder, or `zoo:NAME`.
        data_root: Folder that holds the data sets, to evaluate an unpacked network.
        device: Device to evaluate an unpacked network on.
        runs: A network of the zoo is unpacked into the folder NAME in here. An earlier copy of it is reused.
        note: Called with one sentence when a network is unpacked.
    """
    run = open_run(path)
    if isinstance(run, RunFolder):
        return run
    assert isinstance(run, ZooRun)
    out = runs / run.card.name
    if (out / "config.json").exists():
        folder = RunFolder.open(out)
        if folder.finished and (folder.config, folder.environment) == (run.config, run.environment):
            return folder
    note(f"unpacking {path} into {out}")
    return unpack(run, out, data_root, device)


@dataclass(frozen=True)
class RunFolder(RunReader):
    """A run folder, finished or not. Read-only."""

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open a run folder.

        Args:
            path: The folder.

        Returns:
            The run with its config; `UserError` if there is none, `DamagedError` if it is invalid.
        """
        if not isinstance(path, Path | str):
            raise UserError(f"A run folder must be a path, got {shown(path)}.")
        path = Path(path)
        if not path.is_dir():
            raise UserError(f"There is no run folder {path}; make one with codinet train … --out {path}.")
        file = path / "config.json"
        content = files.read_json(file)
        try:
            if not isinstance(content, dict):
                raise UserError(f"expected named entries, got {shown(content)}.")
            if content.get("format") != FORMAT:
                raise UserError(f"format must be {FORMAT}, got {shown(content.get('format'))}.")
            environment = content.get("environment")
            if not isinstance(environment, dict) or any(isinstance(one, dict | list) for one in environment.values()):
                raise UserError(f"environment is invalid, got {shown(environment)}.")
            config = from_dict(content.get("config"))  # type: ignore[arg-type]  # which checks it
            resolve(config)  # for its checks
            groups = read_groups(content.get("groups"), config.network.arch)
            return cls(path, config, DataInfo.read(content.get("data")), environment, groups)
        except UserError as error:
            why = str(error).rstrip(".")
            raise files.DamagedError(f"{file} is not a run's config ({why}); restore it or train again.") from error

    @property
    def finished(self) -> bool:
        return (self.path / "evaluation.json").exists()

    @property
    def weights_file(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    def load_tensors(self) -> dict[str, torch.Tensor]:
        if not self.weights_file.exists():
            again = "with codinet train … --resume."
            if self.finished:
                raise UserError(f"{self.weights_file} is missing; restore it {again}")
            raise UserError(f"{self.path} has no trained network yet; finish it {again}")
        try:
            return files.load_tensors(self.weights_file)[0]
        except files.DamagedError as error:
            raise files.DamagedError(f"{str(error).rstrip('.')}; restore it or train again.") from error

    def load_evaluation(self) -> dict[str, Any]:
        file = self.path / "evaluation.json"
        figures = files.read_json(file)
        invalid = impossible_figure(figures, sum(self.groups))
        if invalid is not None:
            raise files.DamagedError(f"{file} is not an evaluation: {invalid} is invalid; restore it or train again.")
        return figures

    def load_paths(self) -> PathTable:
        """How each test image was routed, in the order of the data set."""
        file, again = self.path / "paths.safetensors", f"make it again with codinet eval {self.path}"
        try:
            tensors, _ = files.load_tensors(file)
        except files.DamagedError as error:
            raise files.DamagedError(f"{str(error).rstrip('.')}; {again}.") from error
        try:
            return path_table(tensors, sum(self.groups), self.data)
        except UserError as error:
            why = str(error).rstrip(".")
            raise files.DamagedError(f"{file} is not the path table of this run ({why}); {again}.") from error

    def aligned(self, dataset: Dataset) -> Dataset | None:
        return dataset if DataInfo.of(dataset).same_images(self.data) else None

    def metrics(self) -> list[dict[str, Any]]:
        """The rows up to the first invalid line: a killed process may leave an incomplete last line."""
        rows: list[dict[str, Any]] = []
        try:
            lines = files.read(self.metrics_file, MAX_METRICS_BYTES).splitlines()
        except FileNotFoundError:
            return rows
        except OSError as error:
            raise files.unreadable(self.metrics_file, error) from error
        for line in lines:
            try:
                row = files.parse_json(line)
            except ValueError:
                break
            if not _is_row(row):
                break
            rows.append(row)
        return rows

    def wall_seconds(self) -> float | None:
        file = self.path / "timing.json"
        if not file.exists():
            return None
        content = files.read_json(file)
        seconds: Any = content.get("seconds") if isinstance(content, dict) else "missing"
        if seconds is not None and type(seconds) not in (int, float):
            raise files.DamagedError(f"{file} does not state the run's seconds; restore or remove it.")
        # Older versions wrote a negative time when the clock had been set back.
        return None if seconds is None or seconds < 0 else float(seconds)


@dataclass(frozen=True)
class RunWriter(RunFolder):
    """A run folder that a training writes."""

    @classmethod
    def create(
        cls, path: Path, config: RunConfig, data: DataInfo, environment: dict[str, Any], groups: tuple[int, ...]
    ) -> "RunWriter":
        """Make the folder and write config.json."""
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"Cannot make the run folder {path}: {error.strerror}; choose another --out.") from error
        content = {
            "format": FORMAT,
            "config": to_dict(config),
            "data": asdict(data),
            "environment": environment,
            "groups": list(groups),
            "started": time.time(),
        }
        files.write_json(path / "config.json", content)
        return cls(path, config, data, environment, groups)

    def keep_metrics(self, rows: list[dict[str, Any]]) -> None:
        """Replace all rows."""
        files.write(self.metrics_file, "".join(_line(row) for row in rows).encode())

    def add_metrics(self, row: dict[str, Any]) -> None:
        """Append a row and flush it to disk."""
        line = _line(row)
        try:
            with self.metrics_file.open("a") as file:
                file.write(line)
                # Checkpoints count the rows, so a row must be on disk before the next checkpoint is.
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UserError(
                f"Could not write {self.metrics_file}: {error.strerror}; free some space and run again with --resume."
            ) from error

    def save_results(self, model: RoutedNetwork, evaluation: Evaluation) -> None:
        """Write weights, paths and results. The results come last, because they mark the run as finished."""
        self.save_weights(model)
        files.save_tensors(self.path / "paths.safetensors", evaluation.paths._asdict())
        self._save_timing()
        files.write_json(self.path / "evaluation.json", evaluation.summary())

    def save_weights(self, model: RoutedNetwork) -> None:
        """Write the weights."""
        assert model.config is not None
        files.save_tensors(self.weights_file, model.state_dict(), about=asdict(model.config))

    def _save_timing(self) -> None:
        started, finished = files.read_json(self.path / "config.json").get("started"), time.time()
        if not isinstance(started, int | float):  # older run folders lack this field
            return
        seconds = finished - started if finished >= started else None  # None: the clock was set back
        files.write_json(self.path / "timing.json", {"started": started, "finished": finished, "seconds": seconds})


def _line(row: dict[str, Any]) -> str:
    """A row of metrics as text; a loss that is not finite becomes null."""
    plain = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()
    }
    return files.to_json(plain) + "\n"


def _is_row(row: Any) -> bool:
    """Whether it is a row of metrics: numbers, and the names of the stage and of the evaluated images."""
    return isinstance(row, dict) and all(
        isinstance(value, str) if key in ("stage", "watched") else value is None or type(value) in (int, float)
        for key, value in row.items()
    )


def unpack(run: ZooRun, out: Path, data_root: Path, device: torch.device) -> RunFolder:
    """Write a network of the zoo as a run folder, with results and paths measured here. It has no metrics."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not empty; choose another --out.")
    dataset = run.load_own_dataset(data_root)
    model = run.load_model(device)
    evaluation = evaluate_test_set(model, dataset, device, batch=BATCH)
    data = replace(run.data, sha256=DataInfo.of(dataset).sha256)  # paths are in the order of this copy
    folder = RunWriter.create(out, run.config, data, run.environment, run.groups)
    folder.save_results(model, evaluation)
    files.write_json(out / "timing.json", {"seconds": run.wall_seconds()})  # of the training
    return RunFolder.open(out)
