"""The analysis of a run, kept in its folder: loaded if it is up to date, otherwise computed and saved.

The files are analysis.json and analysis.safetensors. The tensor file carries a checksum and the digest of the JSON
file, so the two are used together or not at all. An analysis is computed again when it is missing or damaged, when the
network, the data or the options have changed, and when this version measures more.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch import nn

from codinet import files
from codinet.analysis.augment import KINDS
from codinet.analysis.features import Progress, load_features, no_progress
from codinet.analysis.network_analysis import REVISION, FeatureSource, Subject, analyse_network
from codinet.data import Dataset
from codinet.data.batches import Resident
from codinet.errors import UserError
from codinet.run_reader import RunReader
from codinet.runs import RunFolder

FORMAT = 1  # of the files; analyses of older versions lack some figures and are still readable
JSON, TENSORS = "analysis.json", "analysis.safetensors"


@dataclass(frozen=True)
class Request:
    """The options of an analysis, where to find the data, and the device to compute on."""

    data_root: Path
    device: torch.device
    features: Path | None = None  # a file with one row for each test image
    static: RunReader | None = None  # a static run whose last layer gives the features
    tsne: bool = True
    images: int = 10_000
    seed: int = 0


@dataclass(frozen=True)
class RunAnalysis:
    """The measured figures of a run, the tensors that its plots need, and what both were computed from."""

    made_from: dict[str, Any]  # digests of network and data, the options, the revision
    figures: dict[str, Any]
    tensors: dict[str, torch.Tensor]

    def save(self, folder: Path) -> None:
        """Write both files into a run folder."""
        content = {"format": FORMAT, "made_from": self.made_from, "figures": self.figures}
        files.save_tensors(folder / TENSORS, self.tensors, about={"json": _digest(content)})
        files.write_json(folder / JSON, content)

    @classmethod
    def load(cls, folder: Path) -> "RunAnalysis | None":
        """Read the analysis of a run folder.

        Returns:
            The analysis, or None if a file is missing or has another format.

        Raises:
            DamagedError: A file is damaged, or the two do not match.
        """
        if not (folder / JSON).exists() or not (folder / TENSORS).exists():
            return None
        content = files.read_json(folder / JSON)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            return None
        tensors, about = files.load_tensors(folder / TENSORS)
        if not isinstance(about, dict) or about.get("json") != _digest(content):
            raise files.DamagedError(f"{folder / JSON} and {folder / TENSORS} do not match.")
        made_from, figures = content.get("made_from"), content.get("figures")
        if not isinstance(figures, dict) or not isinstance(made_from, dict):
            raise files.DamagedError(f"{folder / JSON} is not an analysis.")
        if any(isinstance(value, dict | list) for value in made_from.values()):
            raise files.DamagedError(f"{folder / JSON} has an invalid 'made_from' entry.")
        return cls(made_from, figures, tensors)

    def invalid_entry(self, *, routed: bool, images: int, classes: int, blocks: int) -> str | None:
        """Check that every figure and tensor that reports use is present and valid for a run of these sizes.

        Returns:
            The name of the first missing or invalid entry, or None if there is none.
        """
        invalid = _invalid_figure(self.figures, _FIGURES | (_ROUTED_FIGURES if routed else {}), "")
        if invalid is not None:
            return invalid
        sizes = {"T": images, "K": classes, "N": blocks, "D": 2}
        for name, (dtype, letters) in (_TENSORS | (_ROUTED_TENSORS if routed else {})).items():
            tensor = self.tensors.get(name)
            if tensor is None and name in _OPTIONAL:
                continue
            if tensor is None or tensor.dtype != dtype or tensor.ndim != len(letters):
                return name
            if any(sizes.setdefault(*pair) != pair[1] for pair in zip(letters, tensor.shape, strict=True)):
                return name
            if tensor.numel() == 0 and letters != "A":  # a single image has no pairs
                return name
            if tensor.is_floating_point() and name != "run_rates" and not tensor.isfinite().all():
                return name
        views = self.figures["embedding"]["views"] if routed else 1
        if routed and (views < 1 or sizes["V"] != sizes["G"] * views):
            return "group_pca"
        return self._invalid_index(images)

    def _invalid_index(self, images: int) -> str | None:
        """The first tensor with an index that is out of range or does not match the others."""
        for name in ("index", "easiest", "hardest", "shared", "shown_index", "tsne_index", "group_index"):
            tensor = self.tensors.get(name, torch.zeros(1))
            low = -1 if name == "shared" else 0  # -1 pads the rows of "shared"
            if not low <= int(tensor.min()) <= int(tensor.max()) < images:
                return name
        stored, shared_PI = self.tensors["shown_index"], self.tensors["shared"]
        strips = [self.tensors["easiest"], self.tensors["hardest"], shared_PI[shared_PI >= 0]]
        if not torch.isin(torch.cat(strips), stored).all() or not torch.equal(stored, stored.unique()):
            return "shown_index"
        if bool((shared_PI[:, 0] < 0).any()):
            return "shared"
        return "kind" if int(self.tensors["kind"].max()) >= len(KINDS) else None


def analyse_run(
    folder: RunFolder,
    request: Request,
    *,
    progress: Progress = no_progress,
    any_options: bool = False,
    note: Callable[[str], None] = lambda _message: None,
) -> RunAnalysis:
    """The run's analysis, computed and saved if necessary.

    Args:
        folder: A finished run.
        request: The options.
        progress: Called at the start of each step of a new analysis.
        any_options: Accept a saved analysis that was made with other options.
        note: Called with a message if the saved analysis is damaged, or a new one cannot be saved.
    """
    folder.require_finished()
    options = _options(folder, request)
    try:
        saved = saved_analysis(folder)
        if saved is not None:
            _require_valid(saved, folder)
    except files.DamagedError as error:
        note(f"{error} The analysis is computed again.")
        saved = None
    if saved is not None and (any_options or _made_from(saved, options)):
        return saved
    dataset = folder.load_own_dataset(request.data_root)
    figures, tensors = analyse_network(
        _subject(folder, dataset, request.device),
        _feature_source(folder, request, len(dataset.test)),
        images=request.images,
        with_tsne=request.tsne,
        seed=request.seed,
        progress=progress,
    )
    analysis = RunAnalysis({**_identity(folder), **options}, figures, tensors)
    try:
        analysis.save(folder.path)
    except UserError as error:  # the folder may be read-only
        note(f"The analysis is not saved: {error}")
    return analysis


def saved_analysis(folder: RunReader) -> RunAnalysis | None:
    """The analysis in a run folder, made with any options; None if it is missing or of another network or data."""
    saved = RunAnalysis.load(folder.path)
    return saved if saved is not None and _made_from(saved, _identity(folder)) else None


def _require_valid(analysis: RunAnalysis, folder: RunFolder) -> None:
    invalid = analysis.invalid_entry(
        routed=folder.config.network.routed,
        images=folder.load_evaluation()["n"],
        classes=len(folder.data.classes),
        blocks=sum(folder.groups),
    )
    if invalid is not None:
        raise files.DamagedError(f"{folder.path / JSON} does not match the run: {invalid} is missing or invalid.")


def _made_from(analysis: RunAnalysis, wanted: dict[str, Any]) -> bool:
    return all(analysis.made_from.get(key) == value for key, value in wanted.items())


def _identity(folder: RunReader) -> dict[str, Any]:
    """What identifies the network and the data."""
    return {"network": _file_digest(folder.weights_file), "data": folder.data.sha256}


def _options(folder: RunFolder, request: Request) -> dict[str, Any]:
    features = None
    if folder.config.network.routed:
        source = request.features or (request.static and request.static.weights_file)
        features = _file_digest(source) if source else None
    return {
        "features": features,
        "tsne": request.tsne,
        "images": request.images,
        "seed": request.seed,
        "revision": REVISION,
    }


def _file_digest(file: Path) -> str:
    try:
        return files.sha256_of(file)
    except OSError as error:
        raise UserError(f"Cannot read {file}: {error.strerror or error}.") from error


def _subject(folder: RunFolder, dataset: Dataset, device: torch.device) -> Subject:
    network, classifier = _network(folder, device)
    paths = folder.load_paths()
    if not torch.equal(paths.label_T, dataset.test.labels_N):
        raise files.DamagedError(
            f"{folder.path / 'paths.safetensors'} does not match the test set; run codinet eval {folder.path}."
        )
    return Subject(
        network=network,
        classifier=classifier,
        images=Resident.of(dataset.test, dataset, device),
        paths=paths,
        classes=dataset.classes,
        pad=dataset.pad,
        routed=folder.config.network.routed,
    )


def _network(folder: RunReader, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """The network, and its last layer, whose input are the features."""
    model = folder.load_model(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if not model.classifier:
        raise UserError(
            f"{folder.path} cannot be analysed: features are the input of the last linear layer or 1×1 convolution "
            f"after the blocks, and {folder.config.network.arch} has none."
        )
    return model, model.get_submodule(model.classifier)


def _feature_source(folder: RunFolder, request: Request, images: int) -> FeatureSource | None:
    if not folder.config.network.routed:
        return None
    if request.features is not None:
        return FeatureSource(f"the file {request.features.name}", load_features(request.features, images=images))
    if request.static is None:
        return None
    static = request.static
    static.require_finished()
    if static.config.network.routed:
        raise UserError(f"--static must be a run trained with --no-routed, got {static.path}.")
    if not static.data.same_images(folder.data):
        raise UserError(f"--static must be trained on the data of {folder.path}, got {static.path}.")
    network, classifier = _network(static, request.device)
    return FeatureSource(f"the last layer of the static run {static.path.resolve().name}", None, network, classifier)


# Required figures: allowed types, or an object of figures. "*" stands for any key, "?" marks an optional one.
_INT, _NUMBER, _TEXT = (int,), (int, float), (str,)
_LARGEST = 2**53
_BY_KIND = {"*": {"pairs": _INT, "mean": _NUMBER}}
_FIGURES: dict[str, Any] = {
    "images": _INT,
    "consistency": dict.fromkeys(("same_prediction", "accuracy_original", "accuracy_augmented"), _NUMBER),
    "kl": {"mean": _NUMBER, "median": _NUMBER, "kinds": _BY_KIND},
    "usage": {"distinct_paths": _INT, "path_entropy": _NUMBER},
    "swapped?": {"accuracy_any": _NUMBER, "accuracy_class": _NUMBER},  # missing in revision 1
}
_ROUTED_FIGURES: dict[str, Any] = {
    "consistency": {
        **_FIGURES["consistency"],
        **{"pairs": _INT, "same_path": _NUMBER, "same_path_kinds": _BY_KIND, "blocks_changed": _NUMBER},
    },
    "correlation": {
        **dict.fromkeys(("pcc_relaxed", "pcc_hard"), (*_NUMBER, NoneType)),
        **{"features": _TEXT, "pairs": _INT, "which_pairs": _TEXT},
    },
    "embedding": {"groups": _INT, "views": _INT},
}

# The dtype and shape of each tensor. Equal letters are equal sizes; T images, K classes, N blocks, D = 2.
_TENSORS: dict[str, tuple[torch.dtype, str]] = {
    "index": (torch.int64, "S"),
    "kind": (torch.uint8, "S"),
    "kl": (torch.float32, "S"),
    "easiest": (torch.int64, "I"),
    "hardest": (torch.int64, "I"),
    "shared": (torch.int64, "PJ"),
    "shown_index": (torch.int64, "X"),
    "shown_images": (torch.uint8, "XCHW"),
    "run_rates": (torch.float32, "KN"),
}
_ROUTED_TENSORS: dict[str, tuple[torch.dtype, str]] = {
    "same_path": (torch.uint8, "S"),
    "pair_path": (torch.float32, "A"),
    "pair_feature": (torch.float32, "A"),
    "pca": (torch.float32, "TD"),
    "expected_blocks": (torch.float32, "T"),
    "tsne_index": (torch.int64, "E"),
    "tsne": (torch.float32, "ED"),
    "group_index": (torch.int64, "G"),
    "group_pca": (torch.float32, "VD"),
    "group_tsne": (torch.float32, "VD"),
}
_OPTIONAL = {"tsne", "group_tsne"}


def _invalid_figure(found: Any, wanted: Any, name: str) -> str | None:
    """The name of the first figure that is missing, has another type, or is out of range; counts are at least 0."""
    if isinstance(wanted, tuple):
        valid = type(found) in wanted and not (wanted == _INT and found < 0)
        if type(found) in _NUMBER:
            valid = valid and abs(found) <= _LARGEST  # False for NaN
        return None if valid else name
    if not isinstance(found, dict):
        return name
    if "*" in wanted:
        wanted = dict.fromkeys(found, wanted["*"])
    for key, inner in wanted.items():
        plain = key.removesuffix("?")
        if key != plain and plain not in found:
            continue
        invalid = _invalid_figure(found.get(plain), inner, f"{name}.{plain}" if name else plain)
        if invalid is not None:
            return invalid
    return None


def _digest(content: dict[str, Any]) -> str:
    # Through JSON and back: the digest covers the values that a reader of the file gets.
    return hashlib.sha256(json.dumps(json.loads(json.dumps(content)), sort_keys=True).encode()).hexdigest()
