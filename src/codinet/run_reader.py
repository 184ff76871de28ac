"""What every reader of a run uses: config, data, network, evaluation, paths.

`RunReader` is the read-only interface. A run folder (`codinet.runs.RunFolder`) and a network of the zoo
(`codinet.zoo.zoo_run.ZooRun`) implement it; `codinet.runs.open_run` opens either. Nothing here writes.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from codinet.backbones import ARCHITECTURES
from codinet.checks import LARGEST_SIDE, require_weights
from codinet.config import SMALLEST_CROP, ModelConfig, NetworkConfig, RunConfig, to_dict
from codinet.data import Dataset, Split
from codinet.data.dataset import image_digest
from codinet.data.loading import load_for
from codinet.data.views import normalise
from codinet.errors import UserError, shown
from codinet.evaluate import paths_html
from codinet.hub import RESULTS
from codinet.methods import DEFAULT, method_named
from codinet.model import RoutedNetwork
from codinet.networks import build_blank
from codinet.notebook import figure_rows, html_table
from codinet.records import PathTable
from codinet.specs import library_versions

_MAX_PIXELS = 2**26  # values per image; 4,096 × 4,096 in colour are 2**25.6
_MAX_CLASSES = 2**17
_MAX_STATISTIC = 1e6  # bound of mean and standard deviation, which are below 256 for images
_PATH_DTYPES = {
    "path_TN": torch.uint8,
    "run_probability_TN": torch.float32,
    "label_T": torch.int64,
    "prediction_T": torch.int64,
    "confidence_T": torch.float32,
    "macs_T": torch.float64,
}


@dataclass(frozen=True)
class DataInfo:
    """What a network needs to know about its data set, and what identifies the data set."""

    name: str
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    image_shape: tuple[int, int, int]
    sha256: str  # of labels and images of both splits; of every k-th image in very large splits
    crop: float = 1.0  # fraction of the shorter side that was kept of each image file

    @classmethod
    def of(cls, dataset: Dataset) -> "DataInfo":
        """Describe a data set as it is now. Reads every image, or a sample of very many."""
        described = dataset.name, dataset.classes, dataset.mean, dataset.std, dataset.image_shape
        return cls(*described, dataset.sha256 or image_digest(dataset.train, dataset.test), dataset.crop)

    @classmethod
    def read(cls, content: Any) -> "DataInfo":
        """Parse JSON content; an entry that no data set can have is a `UserError`."""
        names = {entry.name for entry in fields(cls)}
        if not isinstance(content, dict) or set(content) | {"crop"} != names:  # older files lack the crop
            raise UserError(f"data must have the entries {', '.join(sorted(names))}, got {shown(content)}.")
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in content.items()
        }
        info = cls(**values)
        invalid = info._first_invalid()
        if invalid is not None:
            raise UserError(f"data.{invalid} is invalid, got {shown(content[invalid])}.")
        return info

    def _first_invalid(self) -> str | None:
        if not _is_tuple_of(self.classes, str) or not 0 < len(self.classes) <= _MAX_CLASSES:
            return "classes"
        if not _is_tuple_of(self.image_shape, int) or len(self.image_shape) != 3 or min(self.image_shape) < 1:
            return "image_shape"
        if math.prod(self.image_shape) > _MAX_PIXELS:
            return "image_shape"
        # Pixels are divided by the standard deviation, so it must not be 0.
        for name, values, low in (("mean", self.mean, -_MAX_STATISTIC), ("std", self.std, 1 / _MAX_STATISTIC)):
            if not _is_tuple_of(values, int, float) or len(values) != self.image_shape[0]:
                return name
            if not all(low <= value <= _MAX_STATISTIC for value in values):  # false for NaN
                return name
        if type(self.crop) not in (int, float) or not SMALLEST_CROP <= self.crop <= 1:
            return "crop"
        return next((name for name in ("name", "sha256") if not isinstance(getattr(self, name), str)), None)

    def same_images(self, other: "DataInfo") -> bool:
        """Whether both describe the same images and classes.

        Mean and standard deviation are not compared: they are sums of floats, which machines round differently.
        """
        return (self.sha256, self.classes) == (other.sha256, other.classes)

    def model_config(self, network: NetworkConfig) -> ModelConfig:
        """The config of a network for this data."""
        return ModelConfig(
            **vars(network),
            num_classes=len(self.classes),
            in_channels=self.image_shape[0],
            image_shape=self.image_shape,
            classes=self.classes,
            mean=self.mean,
            std=self.std,
            crop=self.crop,
        )


def _is_tuple_of(values: Any, *kinds: type) -> bool:
    return isinstance(values, tuple) and all(type(value) in kinds for value in values)


class SampleImages(NamedTuple):
    """Some test images that come with a run, for use without its data set."""

    split: Split
    index_S: torch.Tensor  # the position of each image in `RunReader.load_paths`


class CurvePoint(NamedTuple):
    """What a run reaches at one threshold, on `n` test images."""

    threshold: float
    accuracy: float  # percent
    cost_share: float
    n: int


@dataclass(frozen=True)
class RunReader(ABC):
    """A run, read-only.

    Attributes:
        path: The run folder, or `zoo:NAME`.
        config: The settings that it was trained with.
        data: The data set that it was trained on.
        environment: Versions and device of the training.
        groups: The number of blocks in each group of the network.
    """

    path: Path
    config: RunConfig
    data: DataInfo
    environment: dict[str, Any]
    groups: tuple[int, ...]

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether training is complete."""

    @property
    @abstractmethod
    def weights_file(self) -> Path:
        """The file of the weights, which its digest is computed from."""

    @abstractmethod
    def load_tensors(self) -> dict[str, torch.Tensor]:
        """The trained weights by name."""

    @abstractmethod
    def load_evaluation(self) -> dict[str, Any]:
        """The results on the test set: `Evaluation.summary`."""

    @abstractmethod
    def load_paths(self) -> PathTable:
        """How each test image was routed."""

    @abstractmethod
    def metrics(self) -> list[dict[str, Any]]:
        """One row per epoch; empty for networks of the zoo."""

    @abstractmethod
    def wall_seconds(self) -> float | None:
        """Time from start to end of training, pauses included; None if unknown."""

    @abstractmethod
    def aligned(self, dataset: Dataset) -> Dataset | None:
        """Check that a data set holds the run's images.

        Returns:
            The data set with its test images in the order of `load_paths`; None if its images are not the run's.
        """

    def sample_images(self) -> SampleImages | None:
        """Test images that come with the run itself; None if it has none. Networks of the zoo have some."""
        return None

    def threshold_curve(self) -> list[CurvePoint]:
        """Accuracy and cost at several thresholds, ascending, if they were measured; otherwise empty."""
        return []

    def require_finished(self) -> None:
        """Raise `UserError` unless training is complete."""
        if not self.finished:
            raise UserError(f"{self.path} is not finished; finish it with codinet train … --resume.")

    def _repr_html_(self) -> str:
        """Settings, results and a picture of the paths, for notebooks."""
        network, budget = self.config.network, self.config.losses.budget
        method = method_named(self.config.method).title_of(self.config)
        rows = [
            ("network", f"{network.arch}, {f'{network.router} routers' if network.routed else 'no routers'}"),
            *([("method", method)] if self.config.method != DEFAULT else []),
            ("data", f"{self.data.name}: {len(self.data.classes)} classes"),
            ("images, C×H×W", "×".join(map(str, self.data.image_shape))),
            *([("budget", f"{budget:g} of the static cost")] if network.routed and budget is not None else []),
        ]
        picture = ""
        try:
            if self.finished:
                rows += figure_rows(self.load_evaluation())
            else:
                rows.append(("state", f"not finished: {len(self.metrics())} epochs"))
            if self.finished and network.routed:
                picture = paths_html(self.load_paths(), self.data.classes)
        except UserError as error:  # a damaged file; a zoo network without paths
            rows.append(("note", str(error)))
        return html_table(str(self.path), rows) + picture

    def recipe(self) -> dict[str, Any]:
        """The config as JSON to publish; files and folders are reduced to their names."""
        return _without_folders(to_dict(self.config))

    def load_model(self, device: torch.device | None = None) -> RoutedNetwork:
        """The trained network in evaluation mode."""
        config, file = self.data.model_config(self.config.network), str(self.weights_file)
        return trained_network(config, self.load_tensors(), file, self.environment).to(device).eval()

    def save_pretrained(self, save_directory: Path | str, **options: Any) -> str | None:
        """Write the network in the format of the Hugging Face hub, with a model card that has the run's results.

        Args:
            save_directory: The folder to write; `CoDiNet.from_pretrained` loads it.
            options: Those of `huggingface_hub.PyTorchModelHubMixin.save_pretrained`, such as `push_to_hub`.

        Returns:
            The address of the commit if the network was pushed to the hub.
        """
        self.require_finished()
        return self.load_model().save_pretrained(save_directory, results=self._card_results(), **options)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the network to the Hugging Face hub, with a model card that has the run's results.

        Args:
            repo_id: The repository, such as "user/name".
            options: Those of `huggingface_hub.PyTorchModelHubMixin.push_to_hub`.

        Returns:
            The address of the commit.
        """
        self.require_finished()
        return self.load_model().push_to_hub(repo_id, results=self._card_results(), **options)

    def _card_results(self) -> dict[str, Any]:
        figures = self.load_evaluation()
        results = {name: figures[name] for name in RESULTS if name in figures}
        return {"data": Path(self.data.name).name, **results}

    def load_dataset(self, data_root: Path | str) -> Dataset:
        """Load the data set named in the config, normalised with the statistics of the training.

        Its images may have changed since; `load_own_dataset` checks that. Other classes or another image shape are a
        `UserError`.
        """
        dataset = load_for(self.config.source, Path(data_root), self.config.data)
        if (dataset.image_shape, dataset.classes) != (self.data.image_shape, self.data.classes):
            raise self._other_data(dataset)
        return replace(dataset, mean=self.data.mean, std=self.data.std)

    def load_own_dataset(self, data_root: Path | str) -> Dataset:
        """`load_dataset`, and `UserError` unless the images are those that the run was trained and tested on."""
        dataset = self.load_dataset(data_root)
        if self.aligned(dataset) is None:
            raise self._other_data(dataset)
        return dataset

    def _other_data(self, dataset: Dataset) -> UserError:
        return UserError(f"{self.path} was trained on other data than {dataset.name} holds now; check --data-root.")

    def test_images(self, data_root: Path | str, number: int) -> torch.Tensor:
        """The first test images, normalised."""
        dataset = self.load_dataset(data_root)
        return normalise(dataset.test.images_NCHW[:number], torch.tensor(dataset.mean), torch.tensor(dataset.std))


def _without_folders(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folders(inner) for inner in value]
    return Path(value).name if isinstance(value, str) and ("/" in value or "\\" in value) else value


def trained_network(
    config: ModelConfig,
    tensors: dict[str, torch.Tensor],
    source: str,
    environment: Mapping[str, Any] | None = None,
    *,
    dtype: torch.dtype | None = None,
) -> RoutedNetwork:
    """Build a network with trained weights. Leaves the global RNG state unchanged.

    Args:
        config: The config of the network.
        tensors: Its weights by name. A missing, misfitting or non-finite tensor is a `UserError`.
        source: Where the weights come from, for errors.
        environment: The versions that it was trained with, for errors.
        dtype: The precision of the network; by default float32.
    """
    model = build_blank(config).to(dtype)
    require_weights(tensors, model.state_dict(), config.arch, source, _advice(config.arch, environment or {}))
    unset = [name for name, _ in model.named_parameters(remove_duplicate=False) if name not in tensors]
    if unset:
        raise UserError(f"{config.arch} cannot be loaded: its state_dict leaves out {unset[0]}.")
    model.load_state_dict(tensors)
    return model


def _advice(arch: str, environment: Mapping[str, Any]) -> str:
    """What to do about weights that do not fit, in view of the version of the network's library."""
    for library, version in library_versions(arch).items():
        if (before := environment.get(library)) not in (None, version):
            return f"it was trained with {library} {before}, and this is {library} {version}: install that version"
    return "restore the file or train again"


def path_table(tensors: dict[str, torch.Tensor], blocks: int, data: DataInfo) -> PathTable:
    """The tensors as the path table of a network on a data set; `UserError` if they are not one."""
    if set(tensors) != set(_PATH_DTYPES):
        raise UserError(f"its columns are {shown(sorted(tensors))}.")
    if tensors["label_T"].ndim != 1 or len(tensors["label_T"]) == 0:
        raise UserError(f"label_T has the shape {tuple(tensors['label_T'].shape)}.")
    images = len(tensors["label_T"])
    highest = {"path_TN": 1, "run_probability_TN": 1, "confidence_T": 1, "macs_T": math.inf}
    for name, dtype in _PATH_DTYPES.items():
        column, shape = tensors[name], (images, blocks) if name.endswith("_TN") else (images,)
        if column.dtype != dtype or column.shape != shape:
            raise UserError(f"{name} is {column.dtype} of shape {tuple(column.shape)}.")
        low, high = column.min().item(), column.max().item()  # NaN if the column has one
        if not (low >= 0 and high <= highest.get(name, len(data.classes) - 1) and math.isfinite(high)):
            raise UserError(f"{name} has values from {low:g} to {high:g}.")
    return PathTable(**tensors)


def read_groups(content: Any, arch: str) -> tuple[int, ...]:
    """The groups of a network. For codinet's own they are known; older run folders do not state them."""
    if arch in ARCHITECTURES:
        return ARCHITECTURES[arch].counts
    valid = isinstance(content, list) and content and all(type(count) is int and count > 0 for count in content)
    if not valid or sum(content) > LARGEST_SIDE:
        raise UserError(f"groups must be the number of blocks in each group of the network, got {shown(content)}.")
    return tuple(content)
