"""The run folder: everything that a training writes, and the only thing that later packages read.

config.json          the run's config, a description of its data set, versions and device
metrics.jsonl        one line per epoch
model.safetensors    final weights              } written when
paths.safetensors    the path of each test image } training is
timing.json          how long it took           } complete
evaluation.json      results on the test set    }
checkpoints/         optimizer, generators, position: for resuming only

A folder may come from anywhere, so whatever is read from it is checked: content that no training writes is a
`DamagedError`.
"""

import hashlib
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from codinet import files
from codinet.backbones import ARCHITECTURES
from codinet.config import NetworkConfig, RunConfig, from_dict, resolve, to_dict
from codinet.cost import block_costs
from codinet.data import Dataset, Split, load
from codinet.data.placing import Placing
from codinet.data.views import normalise
from codinet.errors import UserError, shown
from codinet.evaluate import Evaluation, evaluate, impossible_figure
from codinet.model import CoDiNet, ModelConfig
from codinet.records import PathTable
from codinet.relaxation import hard

FORMAT = 1
ZOO = "zoo:"  # prefix of a network of the zoo, wherever a run folder is expected
MOST_METRICS = 2**26  # bytes of metrics.jsonl; an epoch has 500
_ENOUGH = 2**28  # bytes of images; of larger data sets, the digest covers a sample
_MOST_PIXELS = 2**26  # values of an image; 4,096 × 4,096 in colour are 2**25.6
_MOST_CLASSES = 2**17
_MOST_BYTES = 1e6  # bound of mean and standard deviation, which are below 256 for images
_PATH_TYPES = {  # of the columns of a path table
    "path_TN": torch.uint8,
    "run_probability_TN": torch.float32,
    "label_T": torch.int64,
    "prediction_T": torch.int64,
    "confidence_T": torch.float32,
    "macs_T": torch.float64,
}


@dataclass(frozen=True)
class DataBrief:
    """What a network trained on a data set needs of it, and what identifies the data set."""

    name: str
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    image_shape: tuple[int, int, int]
    sha256: str  # of labels and images of both splits; of every k-th image where there are very many

    @classmethod
    def of(cls, dataset: Dataset) -> "DataBrief":
        """The description of a data set as it is now; reads every image."""
        digest = hashlib.sha256()
        for split in (dataset.train, dataset.test):
            # The step depends on the size alone, so images in memory and images decoded on use give the same digest.
            step = -(-split.images_NCHW.nbytes // _ENOUGH) or 1
            for tensor in (split.images_NCHW[::step], split.labels_N):
                digest.update(tensor.contiguous().numpy().data)
        return cls(dataset.name, dataset.classes, dataset.mean, dataset.std, dataset.image_shape, digest.hexdigest())

    @classmethod
    def read(cls, content: Any) -> "DataBrief":
        """The description that JSON holds; an entry that no data set can have is a `UserError`."""
        names = {entry.name for entry in fields(cls)}
        if not isinstance(content, dict) or set(content) != names:
            raise UserError(f"data must have the entries {', '.join(sorted(names))}, got {shown(content)}.")
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in content.items()
        }
        brief = cls(**values)
        odd = _misfit(brief)
        if odd is not None:
            raise UserError(f"data.{odd} holds {shown(content[odd])}, which does not fit.")
        return brief

    def same_images(self, other: "DataBrief") -> bool:
        """Whether both describe the same images and classes.

        Mean and standard deviation are not compared: they are sums of floats, which machines round differently.
        """
        return (self.sha256, self.classes) == (other.sha256, other.classes)


def _misfit(brief: DataBrief) -> str | None:
    """The first entry that no data set can have."""
    if not _listed(brief.classes, str) or not 0 < len(brief.classes) <= _MOST_CLASSES:
        return "classes"
    if not _listed(brief.image_shape, int) or len(brief.image_shape) != 3 or min(brief.image_shape) < 1:
        return "image_shape"
    if math.prod(brief.image_shape) > _MOST_PIXELS:
        return "image_shape"
    # Images are bytes; they are divided by the standard deviation.
    for name, values, least in (("mean", brief.mean, -_MOST_BYTES), ("std", brief.std, 1 / _MOST_BYTES)):
        if not _listed(values, int, float) or len(values) != brief.image_shape[0]:
            return name
        if not all(least <= value <= _MOST_BYTES for value in values):  # NaN fails too
            return name
    return next((name for name in ("name", "sha256") if not isinstance(getattr(brief, name), str)), None)


def _listed(values: Any, *kinds: type) -> bool:
    return isinstance(values, tuple) and all(type(value) in kinds for value in values)


@dataclass(frozen=True)
class RunFolder:
    """A run folder that exists and whose config was read."""

    path: Path
    config: RunConfig
    data: DataBrief
    environment: dict[str, Any]

    @classmethod
    def create(cls, path: Path, config: RunConfig, data: DataBrief, environment: dict[str, Any]) -> "RunFolder":
        """Make the folder and write what is known before training."""
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"Cannot make the run folder {path}: {error.strerror}; choose another --out.") from error
        content = {
            "format": FORMAT,
            "config": to_dict(config),
            "data": asdict(data),
            "environment": environment,
            "started": time.time(),
        }
        files.write_json(path / "config.json", content)
        return cls(path, config, data, environment)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """The run folder at a path; `UserError` where there is none, or its config is damaged."""
        if str(path).startswith(ZOO):
            name = str(path).removeprefix(ZOO)
            raise UserError(f"{path} is not a folder; unpack it into one with codinet zoo unpack {name} --out DIR.")
        if not path.is_dir():
            raise UserError(f"There is no run folder {path}; make one with codinet train … --out {path}.")
        file = path / "config.json"
        content = files.read_json(file)
        try:
            if not isinstance(content, dict):
                raise UserError(f"it holds {shown(content)}, not named entries.")
            if content.get("format") != FORMAT:
                raise UserError(f"its format is {shown(content.get('format'))}, and this version reads {FORMAT}.")
            environment = content.get("environment")
            if not isinstance(environment, dict) or any(isinstance(one, dict | list) for one in environment.values()):
                raise UserError(f"environment holds {shown(environment)}, which does not fit.")
            config = from_dict(content.get("config"))  # type: ignore[arg-type]  # which checks it
            resolve(config)  # for its checks
            return cls(path, config, DataBrief.read(content.get("data")), environment)
        except UserError as error:
            why = str(error).rstrip(".")
            raise files.DamagedError(f"{file} is not a run's config ({why}); restore it or train again.") from error

    def recipe(self) -> dict[str, Any]:
        """The config as JSON to publish: files and folders by name, without their paths."""
        return _without_places(to_dict(self.config))

    def load_dataset(self, data_root: Path) -> Dataset:
        """The data set named in the config, as it is on disk now; compare it with `data` to see whether it changed.

        It is normalised with the statistics that the network was trained with.
        """
        dataset = load(self.config.source, data_root, image_size=self.config.data.image_size)
        return replace(dataset, mean=self.data.mean, std=self.data.std)

    def load_own_dataset(self, data_root: Path) -> Dataset:
        """The same, if its images are those of the training and its test; `UserError` otherwise."""
        dataset = self.load_dataset(data_root)
        if not DataBrief.of(dataset).same_images(self.data):
            raise UserError(
                f"{self.path} was trained on other data than {dataset.name} holds now; point --data-root to it."
            )
        return dataset

    def test_images(self, data_root: Path, number: int) -> torch.Tensor:
        """The first test images, normalised with the statistics that the network was trained with."""
        dataset = self.load_dataset(data_root)
        if dataset.image_shape != self.data.image_shape:
            raise UserError(f"{dataset.name} now has images of another shape than {self.path} was trained on.")
        return normalise(dataset.test.images_NCHW[:number], torch.tensor(dataset.mean), torch.tensor(dataset.std))

    # metrics

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    def metrics(self) -> list[dict[str, Any]]:
        """The rows before the first line that is not one: a kill may cut the last line, and files may be damaged."""
        rows: list[dict[str, Any]] = []
        try:
            lines = files.read(self.metrics_file, MOST_METRICS).splitlines()
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

    def keep_metrics(self, rows: list[dict[str, Any]]) -> None:
        """Replace all rows."""
        files.write(self.metrics_file, "".join(_line(row) for row in rows).encode())

    def add_metrics(self, row: dict[str, Any]) -> None:
        """Append a row and flush it to the disk."""
        line = _line(row)
        try:
            with self.metrics_file.open("a") as file:
                file.write(line)
                # Checkpoints count the rows, so a row must be on the disk before the next checkpoint is.
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UserError(
                f"Could not write {self.metrics_file}: {error.strerror}; free some space and run again with --resume."
            ) from error

    # results

    @property
    def finished(self) -> bool:
        """Whether training is complete."""
        return (self.path / "evaluation.json").exists()

    def require_finished(self) -> None:
        """`UserError` unless training is complete."""
        if not self.finished:
            raise UserError(f"{self.path} is not finished; finish it with codinet train … --resume.")

    def load_model(self, device: torch.device | None = None) -> CoDiNet:
        """The trained network, in evaluation mode."""
        model = build_model(self.config.network, self.data)
        load_weights(model, self.load_tensors(), self.weights_file)
        return model.to(device).eval()

    @property
    def weights_file(self) -> Path:
        return self.path / "model.safetensors"

    def load_tensors(self) -> dict[str, torch.Tensor]:
        """The weights of the trained network, by name."""
        if not self.weights_file.exists():
            raise UserError(f"{self.path} holds no finished network; finish it with codinet train … --resume.")
        try:
            return files.load_tensors(self.weights_file)[0]
        except files.DamagedError as error:
            raise files.DamagedError(f"{str(error).rstrip('.')}; restore it or train again.") from error

    def save_results(self, model: CoDiNet, evaluation: Evaluation) -> None:
        """Write weights, paths and figures. The figures come last, because they mark the run as finished."""
        files.save_tensors(self.path / "model.safetensors", model.state_dict(), about=asdict(model.config))
        files.save_tensors(self.path / "paths.safetensors", evaluation.paths._asdict())
        self._save_timing()
        files.write_json(self.path / "evaluation.json", evaluation.summary())

    def _save_timing(self) -> None:
        started, finished = files.read_json(self.path / "config.json").get("started"), time.time()
        if not isinstance(started, int | float):  # older run folders lack this field
            return
        seconds = finished - started if finished >= started else None  # None: the clock was set back
        files.write_json(self.path / "timing.json", {"started": started, "finished": finished, "seconds": seconds})

    def wall_seconds(self) -> float | None:
        """From the start of the run to its end, including pauses of a resumed run; None where it is not known."""
        file = self.path / "timing.json"
        if not file.exists():
            return None
        content = files.read_json(file)
        seconds: Any = content.get("seconds") if isinstance(content, dict) else "missing"
        if seconds is not None and type(seconds) not in (int, float):
            raise files.DamagedError(f"{file} does not say how long the run took; restore or remove it.")
        # A negative time was written by an older version, after the clock had been set back.
        return None if seconds is None or seconds < 0 else float(seconds)

    def load_paths(self) -> PathTable:
        """How the test images were routed, in the data set's order; `DamagedError` for the table of another run."""
        file, again = self.path / "paths.safetensors", f"make it again with codinet eval {self.path}"
        try:
            tensors, _ = files.load_tensors(file)
        except files.DamagedError as error:
            raise files.DamagedError(f"{str(error).rstrip('.')}; {again}.") from error
        try:
            return path_table(tensors, self.config.network, self.data)
        except UserError as error:
            why = str(error).rstrip(".")
            raise files.DamagedError(f"{file} is not the path table of this run ({why}); {again}.") from error

    def load_evaluation(self) -> dict[str, Any]:
        """The figures of `Evaluation.summary`; `DamagedError` where one is missing or impossible."""
        file = self.path / "evaluation.json"
        figures = files.read_json(file)
        odd = impossible_figure(figures, ARCHITECTURES[self.config.network.arch].blocks)
        if odd is not None:
            raise files.DamagedError(f"{file} holds no evaluation ({odd} does not fit); restore it or train again.")
        return figures


def _line(row: dict[str, Any]) -> str:
    """A row of metrics as text; a loss that is not finite becomes null."""
    plain = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()
    }
    return files.to_json(plain) + "\n"


def _is_row(row: Any) -> bool:
    """Whether it is a row of metrics: numbers, and the names of the stage and of the images watched."""
    return isinstance(row, dict) and all(
        isinstance(value, str) if key in ("stage", "watched") else value is None or type(value) in (int, float)
        for key, value in row.items()
    )


def _without_places(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_places(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_places(inner) for inner in value]
    return Path(value).name if isinstance(value, str) and ("/" in value or "\\" in value) else value


def path_table(tensors: dict[str, torch.Tensor], network: NetworkConfig, data: DataBrief) -> PathTable:
    """The path table of a network on a data set; `UserError` where the tensors are not one."""
    if set(tensors) != set(_PATH_TYPES):
        raise UserError(f"its columns are {shown(sorted(tensors))}.")
    if tensors["label_T"].ndim != 1 or len(tensors["label_T"]) == 0:
        raise UserError(f"label_T has the shape {tuple(tensors['label_T'].shape)}.")
    images, blocks = len(tensors["label_T"]), ARCHITECTURES[network.arch].blocks
    most = {"path_TN": 1, "run_probability_TN": 1, "confidence_T": 1, "macs_T": math.inf}
    for name, dtype in _PATH_TYPES.items():
        column, shape = tensors[name], (images, blocks) if name.endswith("_TN") else (images,)
        if column.dtype != dtype or column.shape != shape:
            raise UserError(f"{name} is {column.dtype} of shape {tuple(column.shape)}.")
        low, high = column.min().item(), column.max().item()  # NaN where the column has one
        if not (low >= 0 and high <= most.get(name, len(data.classes) - 1) and math.isfinite(high)):
            raise UserError(f"{name} has values from {low:g} to {high:g}.")
    return PathTable(**tensors)


def measure(
    model: CoDiNet, dataset: Dataset, device: torch.device, *, batch: int = 250, threshold: float = 0.5
) -> Evaluation:
    """Evaluate a network that is on the device on the test images of a data set."""
    return measurer(model, dataset, dataset.test, device, batch=batch)(threshold)


def measurer(
    model: CoDiNet, dataset: Dataset, split: Split, device: torch.device, *, batch: int
) -> Callable[[float], Evaluation]:
    """A function from a threshold to the evaluation on a split; images are placed and costs counted only once."""
    placed, table = Placing(dataset, device).place(split), block_costs(model, dataset.image_shape)

    def at(threshold: float) -> Evaluation:
        found = evaluate(partial(model, decide=partial(hard, threshold=threshold)), placed.batches(batch), table)
        if not math.isfinite(found.loss):
            raise UserError(
                f"The network computes NaN or infinity on images of {dataset.name}; restore its weights or train again."
            )
        return found

    return at


def build_model(network: NetworkConfig, data: DataBrief) -> CoDiNet:
    """A run's network, freshly initialised."""
    model = CoDiNet(
        ModelConfig(
            arch=network.arch,
            num_classes=len(data.classes),
            in_channels=data.image_shape[0],
            routed=network.routed,
            router=network.router,
            stride_on=network.stride_on,
        )
    )
    model.image_shape = data.image_shape
    return model


def load_weights(model: CoDiNet, tensors: dict[str, torch.Tensor], file: Path) -> None:
    """Load a file's tensors into a network; `UserError` where one is missing, does not fit or is not finite."""
    expected = model.state_dict()
    odd = sorted(set(tensors) ^ set(expected))
    odd += sorted(
        name
        for name in set(tensors) & set(expected)
        if (tensors[name].shape, tensors[name].dtype) != (expected[name].shape, expected[name].dtype)
    )
    if odd:
        raise UserError(
            f"{file} holds the weights of another network: {odd[0]} does not fit {model.config.arch}"
            f"{f' (nor do {len(odd) - 1} more)' if len(odd) > 1 else ''}; restore the run's own file or train again."
        )
    bad = next((name for name, tensor in tensors.items() if not tensor.isfinite().all()), None)
    if bad is not None:
        raise UserError(f"{bad} in {file} holds NaN or infinity; restore the run's own file or train again.")
    model.load_state_dict(tensors)
