"""Set up a training: the runs it learns from, everything that it needs in memory, and its run folder.

A run may start from the weights of another run (`--start`) or of a file (`--weights`) and learn from a teacher
(`--teacher`). Start and teacher are finished run folders or networks of the zoo; a start may also be the weights that
timm or torchvision publish. The config records their path and the sha256 of their weights. The digest decides: a folder
may move, but its weights must not change. An interrupted run needs its teacher to continue, but not what it started
from.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.modules.batchnorm import _NormBase

from codinet import files
from codinet.config import RESIZED, ExtraConfig, ModelConfig, NetworkConfig, RunConfig, first_difference, flat, to_dict
from codinet.cost import CostTable, block_costs
from codinet.data.batches import Loader
from codinet.data.catalogue import KNOWN
from codinet.data.dataset import Dataset, LazyImages
from codinet.errors import UserError
from codinet.model import RoutedNetwork
from codinet.networks import build, load_library_weights, load_parts, pretrained_weights, read_weights
from codinet.run_reader import DataInfo, trained_network
from codinet.runs import RunFolder, RunWriter, open_run
from codinet.specs import TIMM, TORCHVISION
from codinet.thresholds import require_reach
from codinet.train import checkpoint
from codinet.train.budget import BudgetController
from codinet.train.checkpoint import RunIdentity
from codinet.train.distributed import World, synchronised
from codinet.train.splits import Splits, split_data
from codinet.train.stages import Stage, stages_of
from codinet.train.teaching import Teacher

CHECKPOINTS = "checkpoints"
LOADER = "loader"  # in the environment of a run: "resident" or "stream", where views depend on it
NEW_CLASSIFIER = "new_classifier"  # in the environment of a run: whether the initial weights had none that fits


class Source(NamedTuple):
    """The network of a finished run, as tensors."""

    path: str
    sha256: str
    network: NetworkConfig
    data: DataInfo
    tensors: dict[str, torch.Tensor]

    def build(self) -> RoutedNetwork:
        """Build the network."""
        return trained_network(self.data.model_config(self.network), self.tensors, self.path)


class WeightsFile(NamedTuple):
    """Weights by the names of the network's library, of a file or published."""

    path: str
    sha256: str
    tensors: dict[str, torch.Tensor]


class SourceFlag(NamedTuple):
    """The value of --start, --teacher or --weights: what the config records; the source, or why it cannot be read."""

    path: str | None = None
    sha256: str | None = None
    source: Any = None  # `Source` or `WeightsFile`
    missing: str | None = None

    def require(self) -> None:
        """Raise a `UserError` if the source cannot be read."""
        if self.missing is not None:
            raise UserError(self.missing)


class Sources(NamedTuple):
    """The sources of a run, and what a run that was started before made of them."""

    start: SourceFlag
    teacher: SourceFlag
    weights: SourceFlag
    new_classifier: bool | None = None  # as the run folder records it; None for a new run

    def record_in(self, config: RunConfig) -> RunConfig:
        """Return the config with the paths and digests of the sources."""
        recorded: dict[str, Any] = {}
        for name in ("start", "teacher", "weights"):
            flag: SourceFlag = getattr(self, name)
            recorded |= {name: flag.path, f"{name}_sha256": flag.sha256}
        return replace(config, extra=replace(config.extra, **recorded))

    @property
    def given_initial(self) -> bool:
        """Whether a source has the initial weights."""
        return self.start.source is not None or self.weights.source is not None

    def require_initial(self) -> None:
        """Raise a `UserError` if the source of the initial weights cannot be read."""
        self.start.require()
        self.weights.require()


def read_sources(config: RunConfig, out: Path, *, resume: bool) -> Sources:
    """Read the sources that a config names, for a run in `out`, which may have been started before."""
    extra, old, new_classifier = config.extra, ExtraConfig(), None
    if resume and (out / "config.json").exists():
        run = open_run(out)
        old, new_classifier = run.config.extra, bool(run.environment.get(NEW_CLASSIFIER))
    readers: dict[str, Callable[[str], Source | WeightsFile]]
    readers = {"start": _read_start, "teacher": _read, "weights": _read_file}
    found = {name: _find(name, extra, old, out, read) for name, read in readers.items()}
    return Sources(**found, new_classifier=new_classifier)


def _find(
    name: str, extra: ExtraConfig, old: ExtraConfig, out: Path, read: Callable[[str], Source | WeightsFile]
) -> SourceFlag:
    """`old` is what the config of the started run holds."""
    (path, pinned), (old_path, old_sha256) = ((getattr(of, name), getattr(of, f"{name}_sha256")) for of in (extra, old))
    if path is None:
        return SourceFlag()
    try:
        source = read(path)
    except UserError as error:
        message = f"--{name} {path} cannot be used: {error}"
        if old_sha256 is None or old_path != path:
            raise UserError(message) from error
        return SourceFlag(path, old_sha256, missing=message)
    if pinned is not None and pinned != source.sha256:
        raise UserError(f"--{name} {path} holds weights with sha256 {source.sha256}, not {pinned}; restore them.")
    if old_sha256 is not None and old_sha256 != source.sha256:
        raise UserError(
            f"--{name} {path} holds other weights than when {out} was started; restore them or choose another --out."
        )
    return SourceFlag(path if old_path is None else old_path, source.sha256, source)


def _read_start(path: str) -> Source | WeightsFile:
    """A run, or `timm:NAME` or `torchvision:NAME`: the weights that the library publishes."""
    if not path.startswith((f"{TIMM}:", f"{TORCHVISION}:")):
        return _read(path)
    tensors = pretrained_weights(ModelConfig(arch=path))
    return WeightsFile(path, files.sha256(files.pack_tensors(tensors)), tensors)


def _read(path: str) -> Source:
    run = open_run(path)
    tensors = run.load_tensors()
    return Source(path, files.sha256_of(run.weights_file), run.config.network, run.data, tensors)


def _read_file(path: str) -> WeightsFile:
    file = Path(path)
    tensors = read_weights(file)
    return WeightsFile(path, files.sha256_of(file), tensors)


def _load_initial(model: RoutedNetwork, sources: Sources, extra: ExtraConfig) -> list[str]:
    """Load the initial weights that the settings name; return the parts that do not fit and stay as they are."""
    start = sources.start.source
    if isinstance(start, WeightsFile):
        return load_library_weights(model, start.tensors, f"--start {start.path}")
    if start:
        try:
            return load_parts(model, start.tensors, f"--start {start.path}, a {start.network.arch},")
        except UserError as error:
            hint = "use a run of the same architecture, widths and number of channels."
            raise UserError(f"{str(error).rstrip('.')}; {hint}") from error
    if sources.weights.source:
        weights = sources.weights.source
        return load_library_weights(model, weights.tensors, f"--weights {weights.path}")
    if extra.pretrained and model.config is not None:
        return load_library_weights(model, pretrained_weights(model.config), "--pretrained")
    return []


@dataclass(frozen=True)
class Prepared:
    """What a training needs in memory before it creates its run folder."""

    model: RoutedNetwork
    data: DataInfo
    splits: Splits
    table: CostTable
    controller: BudgetController | None
    teacher: Teacher | None
    stages: list[Stage]
    reinitialised: list[str]  # parts of the initial weights that do not fit
    new_classifier: bool  # whether the run started with a new classifier, although it has initial weights
    missing: str | None  # why published weights cannot be loaded, in a run that may not need them any more


def prepare(
    config: RunConfig,
    dataset: Dataset,
    sources: Sources,
    device: torch.device,
    world: World,
    *,
    sync_bn: bool = False,
    loader: Loader = "auto",
    resume: bool = False,
) -> Prepared:
    """Build the network, its cost table, the splits, the budget controller and the teacher.

    Settings that cannot work are a `UserError`. Draws the initial weights from the config's seed. With `resume`,
    published weights may be missing, because a checkpoint may have the weights.
    """
    if sync_bn and device.type != "cuda":
        raise UserError(f"--sync-bn requires GPUs, and this training runs on {device.type}.")
    splits = split_data(config, dataset, device, world, loader)
    data = DataInfo.of(dataset)
    torch.manual_seed(config.seed)
    model = build(data.model_config(config.network)).to(device)
    if device.type == "cuda":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    _require_views(config, model, world)
    taught_by = sources.teacher.source
    reinitialised, missing = [], None
    try:
        reinitialised = _load_initial(model, sources, config.extra)
    except UserError as error:
        if not (resume and config.extra.pretrained):
            raise
        missing = str(error)
    teacher = Teacher(taught_by.build(), taught_by.data, dataset, device) if taught_by else None
    if config.data.grow_from is not None:
        _require_growth(config, dataset.image_shape, model, teacher)
    # What the initial weights were is known when a run starts; later they may be missing.
    new_classifier = "classifier" in reinitialised if sources.new_classifier is None else sources.new_classifier
    stages = stages_of(config, new_classifier=new_classifier)
    table, budget, controller = block_costs(model, dataset.image_shape), config.losses.budget, None
    if model.routers is not None and budget is not None:
        require_reach(table, budget, config.network.arch, model.routers.always)
        epochs = sum(stage.epochs for stage in stages if stage.has_target) or config.schedule.epochs
        controller = BudgetController(budget, steps=epochs * splits.steps, device=device)
    return Prepared(
        synchronised(model) if sync_bn else model,
        data,
        splits,
        table,
        controller,
        teacher,
        stages,
        reinitialised,
        new_classifier,
        missing,
    )


def _require_views(config: RunConfig, model: RoutedNetwork, world: World) -> None:
    """Require that BatchNorm sees more than one view at once: pooled features of one view are one value."""
    schedule = config.schedule
    assert schedule.batch is not None
    views = schedule.batch // world.size // schedule.accumulate * schedule.views
    if views == 1 and any(isinstance(part, _NormBase) for part in model.modules()):
        raise UserError(
            "--batch, --accumulate and --views must give a process 2 views or more at once, because BatchNorm compares "
            f"them, got {views}."
        )


def _require_growth(
    config: RunConfig, image_shape: tuple[int, int, int], model: RoutedNetwork, teacher: Teacher | None
) -> None:
    """Require that views can begin smaller than the images, for the network and its teacher."""
    side = config.data.grow_from
    assert side is not None
    if config.data.view != RESIZED:
        raise UserError("--grow-from requires --view resized, and so an image folder or a packed data set.")
    if side > min(image_shape[1:]):
        raise UserError(f"--grow-from must be at most {min(image_shape[1:])}, the side of the images, got {side}.")
    networks = {config.network.arch: model} | ({"the teacher": teacher.model} if teacher else {})
    for name, network in networks.items():
        try:
            block_costs(network, (image_shape[0], side, side))
        except UserError as error:
            raise UserError(f"--grow-from {side} cannot be used with {name}: {error}") from error


@contextmanager
def claimed_folder(
    out: Path, config: RunConfig, data: DataInfo, environment: dict[str, Any], groups: tuple[int, ...], *, resume: bool
) -> Iterator[RunWriter]:
    """Create a run folder, or with `resume` open the one of the same run, and lock out other trainings.

    The folder is locked before anything in it is written. A finished run is only read, so it is not locked.

    Args:
        out: The folder.
        config: The config, complete.
        data: The data that it trains on.
        environment: Device and versions, recorded in a new folder.
        groups: The number of blocks in each group of the network, likewise.
        resume: Whether the folder may hold this run already.
    """
    _require_usable(out, resume=resume)
    if resume and (out / "config.json").exists():
        folder = _reopen(out, config, data)
        if folder.finished:
            yield folder
            return
    with files.lock_folder(
        out / CHECKPOINTS, f"Another training is running in {out}; wait for it or choose another --out."
    ):
        _require_usable(out, resume=resume)  # the previous holder of the lock may have written a run
        if (out / "config.json").exists():
            yield _reopen(out, config, data)
            return
        _require_own_checkpoints(out, identify(config, data))
        yield RunWriter.create(out, config, data, environment, groups)


def loader_matters(config: RunConfig, dataset: Dataset) -> bool:
    """Whether views depend on where images are kept: resident image files are scaled to squares before they are cut."""
    return config.data.view == RESIZED and isinstance(dataset.train.images_NCHW, LazyImages)


def loader_of(out: Path, config: RunConfig, dataset: Dataset, loader: Loader, *, resume: bool) -> Loader:
    """The given loader; where it matters, that of the run to resume, whatever memory is free today."""
    if not (resume and loader_matters(config, dataset) and (out / "config.json").exists()):
        return loader
    began: Loader | None = RunFolder.open(out).environment.get(LOADER)
    if began is None or loader in ("auto", began):
        return began or loader
    raise UserError(
        f"{out} was started with --loader {began}, and views of image files depend on it; omit --loader {loader}."
    )


def identify(config: RunConfig, data: DataInfo) -> RunIdentity:
    """Return what checkpoints record about the run that they belong to."""
    return RunIdentity(to_dict(config), data.sha256)


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
    """Whether an entry was left by a training that was killed before it wrote its config."""
    if entry.name == CHECKPOINTS and entry.is_dir():
        return all(inner.name == files.LOCK for inner in entry.iterdir())
    return entry.name.startswith(".") and entry.name.endswith(".tmp")


def _reopen(out: Path, config: RunConfig, data: DataInfo) -> RunWriter:
    folder = RunWriter.open(out)
    if not {config.source, folder.config.source} & KNOWN.keys():
        # The user's own data may have moved; its digest decides whether it is the same.
        config = replace(config, source=folder.config.source)
    difference = first_difference(flat(to_dict(folder.config)), flat(to_dict(config)))
    if difference:
        raise UserError(f"{out} was started with other settings ({difference}); repeat them or choose another --out.")
    if not folder.data.same_images(data):
        raise UserError(
            f"{out} was started on other data than {data.name} holds now; restore the data or choose another --out."
        )
    return replace(folder, data=data)


def _require_own_checkpoints(out: Path, run: RunIdentity) -> None:
    """Without a config.json, only checkpoints that record this very run may be continued."""
    found = checkpoint.latest(out / CHECKPOINTS, lambda _warning: None, run)
    if found is not None and found.run is None:
        raise UserError(
            f"{out} holds checkpoints but no config.json, so they may belong to another run; restore config.json or "
            "choose another --out."
        )
