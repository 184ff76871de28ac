"""Set up a training: the runs it learns from, everything that it needs in memory, and its run folder.

A run may start from the weights of another run (`--start`) and learn from a teacher (`--teacher`), each a finished run
folder or a network of the zoo. The config records their path and the sha256 of their weights. The digest decides: a
folder may move, but its weights must not change. An interrupted run needs its teacher to continue, but not its start.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from codinet import files
from codinet.config import ExtraConfig, NetworkConfig, RunConfig, first_difference, flat, to_dict
from codinet.cost import CostTable, block_costs
from codinet.data.batches import Loader
from codinet.data.catalogue import KNOWN
from codinet.data.dataset import Dataset
from codinet.errors import UserError
from codinet.model import CoDiNet, RoutedNetwork
from codinet.run_reader import DataInfo, trained_network
from codinet.runs import RunWriter, open_run
from codinet.thresholds import require_reach
from codinet.train import checkpoint
from codinet.train.budget import BudgetController
from codinet.train.checkpoint import RunIdentity
from codinet.train.distributed import World
from codinet.train.extras import Teacher
from codinet.train.splits import Splits, split_data
from codinet.train.stages import stages_of

CHECKPOINTS = "checkpoints"


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


class SourceFlag(NamedTuple):
    """The value of --start or --teacher: what the config records, and the source or why it cannot be read."""

    path: str | None = None
    sha256: str | None = None
    source: Source | None = None
    missing: str | None = None

    def require(self) -> None:
        """Raise a `UserError` if the source cannot be read."""
        if self.missing is not None:
            raise UserError(self.missing)


class Sources(NamedTuple):
    """The sources of a run."""

    start: SourceFlag
    teacher: SourceFlag

    def record_in(self, config: RunConfig) -> RunConfig:
        """Return the config with the paths and digests of the sources."""
        (start, start_sha256, *_), (teacher, teacher_sha256, *_) = self
        extra = replace(
            config.extra,
            start=start,
            start_sha256=start_sha256,
            teacher=teacher,
            teacher_sha256=teacher_sha256,
        )
        return replace(config, extra=extra)


def read_sources(config: RunConfig, out: Path, *, resume: bool) -> Sources:
    """Read the sources that a config names, for a run in `out`, which may have been started before."""
    extra, old = config.extra, ExtraConfig()
    if resume and (out / "config.json").exists():
        old = open_run(out).config.extra
    return Sources(
        _find("start", (extra.start, extra.start_sha256), (old.start, old.start_sha256), out),
        _find("teacher", (extra.teacher, extra.teacher_sha256), (old.teacher, old.teacher_sha256), out),
    )


def _find(
    name: str, given: tuple[str | None, str | None], recorded: tuple[str | None, str | None], out: Path
) -> SourceFlag:
    """`recorded` is what the config of the started run holds."""
    (path, pinned), (old_path, old_sha256) = given, recorded
    if path is None:
        return SourceFlag()
    try:
        source = _read(path)
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


def _read(path: str) -> Source:
    run = open_run(path)
    tensors = run.load_tensors()
    return Source(path, files.sha256_of(run.weights_file), run.config.network, run.data, tensors)


def load_start(source: Source, model: RoutedNetwork) -> list[str]:
    """Initialise a network with the weights of another run.

    Routers and classifier are loaded if they fit completely. Everything else must fit.

    Returns:
        Which of "routers" and "classifier" both networks have but do not fit, and so keep their initial values.
    """
    own = model.state_dict()
    reinitialised = []
    loaded: dict[str, torch.Tensor] = {}
    for part in ("", "routers", "classifier"):
        ours, theirs = ({name: t for name, t in of.items() if _part(name) == part} for of in (own, source.tensors))
        odd = sorted(name for name in {*ours, *theirs} if _shape(ours, name) != _shape(theirs, name))
        if not odd:
            loaded |= theirs
        elif part:
            reinitialised += [part] if ours and theirs else []
        else:
            raise UserError(
                f"--start {source.path} holds a {source.network.arch} that does not fit this network: {odd[0]} "
                "differs; use a run of the same architecture and number of channels."
            )
    model.load_state_dict(own | loaded)
    return reinitialised


def _part(name: str) -> str:
    """The part of the network that a tensor belongs to; "" is the part that must fit."""
    return "routers" if name.startswith("routers.") else "classifier" if name.startswith("fc.") else ""


def _shape(tensors: dict[str, torch.Tensor], name: str) -> torch.Size | None:
    return tensors[name].shape if name in tensors else None


@dataclass(frozen=True)
class Prepared:
    """What a training needs in memory before it creates its run folder."""

    model: CoDiNet
    data: DataInfo
    splits: Splits
    table: CostTable
    controller: BudgetController | None
    teacher: Teacher | None
    reinitialised: list[str]  # parts of the start network that do not fit


def prepare(
    config: RunConfig,
    dataset: Dataset,
    sources: Sources,
    device: torch.device,
    world: World,
    *,
    sync_bn: bool = False,
    loader: Loader = "auto",
) -> Prepared:
    """Build the network, its cost table, the splits, the budget controller and the teacher.

    Settings that cannot work are a `UserError`. Draws the initial weights from the config's seed.
    """
    if sync_bn and device.type != "cuda":
        raise UserError(f"--sync-bn requires GPUs, and this training runs on {device.type}.")
    splits = split_data(config, dataset, device, world, loader)
    data = DataInfo.of(dataset)
    torch.manual_seed(config.seed)
    model = CoDiNet(data.model_config(config.network)).to(device)
    if device.type == "cuda":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    start, taught_by = sources.start.source, sources.teacher.source
    reinitialised = load_start(start, model) if start else []
    teacher = Teacher(taught_by.build(), taught_by.data, dataset, device) if taught_by else None
    table, budget, controller = block_costs(model, dataset.image_shape), config.losses.budget, None
    if config.network.routed and budget is not None:
        require_reach(table, budget, config.network.arch)
        controller = BudgetController(budget, steps=stages_of(config)[0].epochs * splits.steps, device=device)
    return Prepared(
        torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) if sync_bn else model,
        data,
        splits,
        table,
        controller,
        teacher,
        reinitialised,
    )


@contextmanager
def claimed_folder(
    out: Path, config: RunConfig, data: DataInfo, environment: dict[str, Any], *, resume: bool
) -> Iterator[RunWriter]:
    """Create a run folder, or with `resume` open the one of the same run, and lock out other trainings.

    The folder is locked before anything in it is written. A finished run is only read, so it is not locked.

    Args:
        out: The folder.
        config: The config, complete.
        data: The data that it trains on.
        environment: Device and versions, recorded in a new folder.
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
        yield RunWriter.create(out, config, data, environment)


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
