"""From run folders to their analyses: the only file of this package that opens them.

An analysis is kept in the run folder. It is made again when it is missing or damaged, when the network, the data or the
options have changed, and when this version measures more.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from codinet import files
from codinet.analysis.features import load_features
from codinet.analysis.forward import Watch, silent
from codinet.analysis.result import JSON, RunAnalysis
from codinet.analysis.whole import REVISION, Features, Subject, analyse
from codinet.backbones import ARCHITECTURES
from codinet.data import Dataset
from codinet.data.resident import Resident
from codinet.errors import UserError
from codinet.records import PathTable
from codinet.runs import RunFolder


@dataclass(frozen=True)
class Request:
    """The options of an analysis, and where the data is."""

    data_root: Path
    device: torch.device
    features: Path | None = None  # a file with one row for each test image
    static: RunFolder | None = None  # a static run whose last layer gives the features
    tsne: bool = True
    images: int = 10_000
    seed: int = 0


def analysis_of(
    folder: RunFolder,
    request: Request,
    *,
    watch: Watch = silent,
    any_options: bool = False,
    note: Callable[[str], None] = lambda _sentence: None,
) -> RunAnalysis:
    """The run's analysis, made and saved where necessary.

    With `any_options`, a saved one that was made with other options is used too. `note` is called when a saved one
    cannot be used, or a new one cannot be saved.
    """
    folder.require_finished()
    options = _options(folder, request)
    try:
        known = kept_analysis(folder)
        if known is not None:
            _require_whole(known, folder)
    except files.DamagedError as error:
        note(f"{error} It is made again.")
        known = None
    if known is not None and (any_options or _has(known, options)):
        return known
    dataset = folder.load_own_dataset(request.data_root)
    figures, tensors = analyse(
        _subject(folder, dataset, request.device),
        _features(folder, request, len(dataset.test)),
        images=request.images,
        with_tsne=request.tsne,
        seed=request.seed,
        watch=watch,
    )
    made = RunAnalysis({**_identity(folder), **options}, figures, tensors)
    try:
        made.save(folder.path)
    except UserError as error:  # a folder may be for reading only
        note(f"The analysis is not kept: {error}")
    return made


def kept_analysis(folder: RunFolder) -> RunAnalysis | None:
    """The analysis in the run's folder, made with any options; None unless it is of the current network and data."""
    known = RunAnalysis.load(folder.path)
    return known if known is not None and _has(known, _identity(folder)) else None


def _require_whole(known: RunAnalysis, folder: RunFolder) -> None:
    odd = known.misfit(
        routed=folder.config.network.routed,
        images=folder.load_evaluation()["n"],
        classes=len(folder.data.classes),
        blocks=ARCHITECTURES[folder.config.network.arch].blocks,
    )
    if odd is not None:
        raise files.DamagedError(f"{folder.path / JSON} is not an analysis of the run: {odd} does not fit.")


def load_whole_paths(folder: RunFolder) -> PathTable:
    """The path table of the run's whole test set; `UserError` where it is missing or of another network or set."""
    return folder.load_paths()


def _has(known: RunAnalysis, wanted: dict[str, Any]) -> bool:
    return all(known.made_from.get(key) == value for key, value in wanted.items())


def _identity(folder: RunFolder) -> dict[str, Any]:
    """What identifies the network and data of an analysis."""
    return {"network": _file_digest(folder.weights_file), "data": folder.data.sha256}


def _options(folder: RunFolder, request: Request) -> dict[str, Any]:
    """The options that it is made with."""
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
        raise UserError(f"{file} cannot be read ({error.strerror or error}); check the path.") from error


def _subject(folder: RunFolder, dataset: Dataset, device: torch.device) -> Subject:
    network, classifier = _network(folder, device)
    paths = load_whole_paths(folder)
    if not torch.equal(paths.label_T, dataset.test.labels_N):
        raise files.DamagedError(
            f"{folder.path / 'paths.safetensors'} is of other images; make it again with codinet eval {folder.path}."
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


def _network(folder: RunFolder, device: torch.device) -> tuple[nn.Module, nn.Module]:
    model = folder.load_model(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model, model.fc


def _features(folder: RunFolder, request: Request, images: int) -> Features | None:
    if not folder.config.network.routed:
        return None
    if request.features is not None:
        return Features(f"the file {request.features.name}", load_features(request.features, images=images))
    if request.static is None:
        return None
    static = request.static
    static.require_finished()
    if static.config.network.routed:
        raise UserError(f"{static.path} is a routed run; --static takes one trained with --no-routed.")
    if not static.data.same_images(folder.data):
        raise UserError(f"{static.path} was trained on other data than {folder.path}; give a static run of the same.")
    network, classifier = _network(static, request.device)
    return Features(f"the last layer of the static run {static.path.resolve().name}", None, network, classifier)
