"""The run folder: all that a training leaves behind, and the only thing later rooms read.

config.json          the run's config, its data set in brief, where it was made
metrics.jsonl        one line an epoch
model.safetensors    final weights            } written when training
paths.safetensors    how each test image went } is complete
timing.json          how long it took         }
evaluation.json      figures on the test set  }
checkpoints/         optimizer, generators, position: for resuming only
"""

import hashlib
import json
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
from codinet.config import NetworkConfig, RunConfig, from_dict, to_dict
from codinet.cost import block_costs
from codinet.data import Dataset, Split, load
from codinet.data.placing import Placing
from codinet.data.stream import lost_workers
from codinet.data.views import normalise
from codinet.errors import UserError
from codinet.evaluate import Evaluation, evaluate
from codinet.model import CoDiNet, ModelConfig
from codinet.records import PathTable
from codinet.relaxation import hard

FORMAT = 1
ZOO = "zoo:"  # what stands before the name of a network of the zoo, where a run folder is asked for
_ENOUGH = 2**28  # bytes of images, beyond which a sample of them tells a data set from others
# The figures of an evaluation and the kinds that JSON has them as, which may write a whole float as an int.
_FIGURES = {
    entry.name: (int,) if entry.type is int else (int, float) for entry in fields(Evaluation) if entry.name != "paths"
}


@dataclass(frozen=True)
class DataBrief:
    """What is needed of a data set to use a network trained on it, and to recognise the set again."""

    name: str
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    image_shape: tuple[int, int, int]
    sha256: str  # of labels and images, both splits; of every k-th image where there are very many

    @classmethod
    def of(cls, dataset: Dataset) -> "DataBrief":
        """The brief of a data set as it is now; reads every image."""
        digest = hashlib.sha256()
        for split in (dataset.train, dataset.test):
            # The same images whether they lie in memory or are decoded when used.
            step = -(-split.images_NCHW.nbytes // _ENOUGH) or 1
            for tensor in (split.images_NCHW[::step], split.labels_N):
                digest.update(tensor.contiguous().numpy().data)
        return cls(dataset.name, dataset.classes, dataset.mean, dataset.std, dataset.image_shape, digest.hexdigest())

    @classmethod
    def read(cls, content: dict[str, Any]) -> "DataBrief":
        """The brief that JSON holds; an entry that no data set can have is a `UserError`."""
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in content.items()
        }
        brief = cls(**values)
        odd = _misfit(brief)
        if odd is not None:
            raise UserError(f"data.{odd} holds {content[odd]!r}, which does not fit.")
        return brief

    def same_images(self, other: "DataBrief") -> bool:
        """Whether both are of the same images and classes.

        Mean and spread do not count: they are sums of floats, and another machine may round them otherwise.
        """
        return (self.sha256, self.classes) == (other.sha256, other.classes)


def _misfit(brief: DataBrief) -> str | None:
    """The first entry that no data set can have."""
    if not _listed(brief.classes, str) or not brief.classes:
        return "classes"
    if not _listed(brief.image_shape, int) or len(brief.image_shape) != 3 or min(brief.image_shape) < 1:
        return "image_shape"
    for name, values in (("mean", brief.mean), ("std", brief.std)):
        if (
            not _listed(values, int, float)
            or len(values) != brief.image_shape[0]
            or not all(map(math.isfinite, values))
        ):
            return name
    if min(brief.std) <= 0:  # images are divided by it
        return "std"
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
        """A folder that a training has begun; `UserError` where it is none, or damaged."""
        if str(path).startswith(ZOO):
            name = str(path).removeprefix(ZOO)
            raise UserError(f"{path} is no folder to work in; make one of it with codinet zoo unpack {name} --out DIR.")
        if not path.is_dir():
            raise UserError(f"There is no run folder {path}; make one with codinet train … --out {path}.")
        file = path / "config.json"
        content = files.read_json(file)
        try:
            if content["format"] != FORMAT:
                raise files.DamagedError(f"its format is {content['format']}, and this version reads {FORMAT}")
            environment = content["environment"]
            if not isinstance(environment, dict):
                raise UserError(f"environment holds {environment!r}, which does not fit.")
            return cls(path, from_dict(content["config"]), DataBrief.read(content["data"]), environment)
        except (KeyError, TypeError, AttributeError, UserError) as error:
            why = str(error).rstrip(".") if isinstance(error, UserError) else repr(error)
            raise files.DamagedError(f"{file} is not a run's config ({why}); restore it or train again.") from error

    def recipe(self) -> dict[str, Any]:
        """The config for JSON that others may see: of files and folders the names, not where they lie."""
        return _without_places(to_dict(self.config))

    def load_dataset(self, data_root: Path) -> Dataset:
        """The data set named in the config, as it is on disk now; whether it is still the same is `data`'s to tell.

        Whatever it holds now, it is normalised as the network was trained to see it.
        """
        dataset = load(self.config.source, data_root, image_size=self.config.data.image_size)
        return replace(dataset, mean=self.data.mean, std=self.data.std)

    def load_own_dataset(self, data_root: Path) -> Dataset:
        """The same, if its images are those that the run was trained and tested on; `UserError` otherwise."""
        dataset = self.load_dataset(data_root)
        if not DataBrief.of(dataset).same_images(self.data):
            raise UserError(
                f"{self.path} was trained on other data than {dataset.name} holds now; point --data-root to it."
            )
        return dataset

    def test_images(self, data_root: Path, number: int) -> torch.Tensor:
        """The first test images, normalised as the network was trained to see them."""
        dataset = self.load_dataset(data_root)
        if dataset.image_shape != self.data.image_shape:
            raise UserError(f"{dataset.name} now has images of another shape than {self.path} was trained on.")
        return normalise(dataset.test.images_NCHW[:number], torch.tensor(dataset.mean), torch.tensor(dataset.std))

    # metrics

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    def metrics(self) -> list[dict[str, Any]]:
        """Every row before the first that is none: a kill may cut the last line short, and files may be damaged."""
        if not self.metrics_file.exists():
            return []
        rows: list[dict[str, Any]] = []
        for line in self.metrics_file.read_bytes().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                break
            if not isinstance(row, dict):
                break
            rows.append(row)
        return rows

    def keep_metrics(self, rows: list[dict[str, Any]]) -> None:
        """Replace all rows."""
        files.write(self.metrics_file, "".join(json.dumps(row) + "\n" for row in rows).encode())

    def add_metrics(self, row: dict[str, Any]) -> None:
        """Append a row, for good."""
        try:
            with self.metrics_file.open("a") as file:
                file.write(json.dumps(row) + "\n")
                # Checkpoints count the rows, so a row must not be lost where a checkpoint after it is not.
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UserError(
                f"Could not write {self.metrics_file}: {error.strerror}; free some space and run again with --resume."
            ) from error

    # results

    @property
    def finished(self) -> bool:
        """Whether training came to its end."""
        return (self.path / "evaluation.json").exists()

    def require_finished(self) -> None:
        """`UserError` where it did not."""
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
        """Weights, paths, figures; figures last, for they say that the run is finished."""
        files.save_tensors(self.path / "model.safetensors", model.state_dict(), about=asdict(model.config))
        files.save_tensors(self.path / "paths.safetensors", evaluation.paths._asdict())
        self._save_timing()
        files.write_json(self.path / "evaluation.json", evaluation.summary())

    def _save_timing(self) -> None:
        started, finished = files.read_json(self.path / "config.json").get("started"), time.time()
        if isinstance(started, int | float):  # folders begun before this was written down have it not
            content = {"started": started, "finished": finished, "seconds": finished - started}
            files.write_json(self.path / "timing.json", content)

    def wall_seconds(self) -> float | None:
        """From the beginning of the run to its end, pauses of a resumed one included; None where nobody noted it."""
        file = self.path / "timing.json"
        if not file.exists():
            return None
        content = files.read_json(file)
        if not isinstance(content, dict):
            raise files.DamagedError(f"{file} does not say how long the run took; restore or remove it.")
        seconds = content.get("seconds")
        return float(seconds) if isinstance(seconds, int | float) else None

    def load_paths(self) -> PathTable:
        """How the test images were routed, in the data set's order."""
        tensors, _ = files.load_tensors(self.path / "paths.safetensors")
        return PathTable(**tensors)

    def load_evaluation(self) -> dict[str, Any]:
        """What `Evaluation.summary` gave; `DamagedError` where a figure is missing or no number."""
        file = self.path / "evaluation.json"
        figures = files.read_json(file)
        if not isinstance(figures, dict) or any(type(figures.get(key)) not in kinds for key, kinds in _FIGURES.items()):
            raise files.DamagedError(f"{file} holds no evaluation; restore it or train again.")
        return figures


def _without_places(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_places(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_places(inner) for inner in value]
    return Path(value).name if isinstance(value, str) and ("/" in value or "\\" in value) else value


def measure(
    model: CoDiNet, dataset: Dataset, device: torch.device, *, batch: int = 250, threshold: float = 0.5
) -> Evaluation:
    """What a network that is on the device does on a data set's test images."""
    return measurer(model, dataset, dataset.test, device, batch=batch)(threshold)


def measurer(
    model: CoDiNet, dataset: Dataset, split: Split, device: torch.device, *, batch: int
) -> Callable[[float], Evaluation]:
    """What a network does on a split, by the threshold: images are placed and costs counted once for all of them."""
    placed, table = Placing(dataset, device).place(split), block_costs(model, dataset.image_shape)

    def at(threshold: float) -> Evaluation:
        with lost_workers():
            return evaluate(partial(model, decide=partial(hard, threshold=threshold)), placed.batches(batch), table)

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
    """Fill a network from a file's tensors, or say how they do not fit."""
    expected = model.state_dict()
    odd = sorted(set(tensors) ^ set(expected))
    odd += sorted(name for name in set(tensors) & set(expected) if tensors[name].shape != expected[name].shape)
    if odd:
        raise UserError(
            f"{file} holds the weights of another network: {odd[0]} does not fit {model.config.arch}"
            f"{f' (nor do {len(odd) - 1} more)' if len(odd) > 1 else ''}; restore the run's own file or train again."
        )
    model.load_state_dict(tensors)
