"""The finished runs that a run learns from: whose weights it begins with (`--start`), who teaches it (`--teacher`).

Networks of the zoo (`zoo:NAME`) are such runs too. A run's config notes where they lie and the sha256 of their
weights' file. The digest is what counts: a folder may move, but its weights must not change under a run that has begun.
A run that has begun needs its teacher to go on and its start no more. Knows nothing of how either is used.
"""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from codinet import files
from codinet.config import ExtraConfig, NetworkConfig, RunConfig
from codinet.errors import UserError
from codinet.model import RoutedNetwork
from codinet.runs import DataBrief, RunFolder, build_model, load_weights
from codinet.zoo.open_run import open_run


class Source(NamedTuple):
    """A finished run's network, as tensors."""

    path: str
    sha256: str
    network: NetworkConfig
    data: DataBrief
    tensors: dict[str, torch.Tensor]

    def build(self) -> RoutedNetwork:
        """The network itself. Draws no random numbers that anybody else would miss."""
        with torch.random.fork_rng(devices=[]):
            model = build_model(self.network, self.data)
        load_weights(model, self.tensors, Path(self.path) / "model.safetensors")
        return model


class Found(NamedTuple):
    """What became of a flag: the path and digest to note, and the source, or why a run that has begun lacks it."""

    path: str | None = None
    sha256: str | None = None
    source: Source | None = None
    gone: str | None = None

    def require(self) -> None:
        """A `UserError` where the source is needed and gone."""
        if self.gone is not None:
            raise UserError(self.gone)


class Sources(NamedTuple):
    """Both sources of a run."""

    start: Found
    teacher: Found

    def note(self, config: RunConfig) -> RunConfig:
        """The config with what is to be noted of the sources."""
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
    """The sources that a config names, for a run into `out`, which may have begun already."""
    extra, old = config.extra, ExtraConfig()
    if resume and (out / "config.json").exists():
        old = RunFolder.open(out).config.extra
    return Sources(
        _find("start", (extra.start, extra.start_sha256), (old.start, old.start_sha256), out),
        _find("teacher", (extra.teacher, extra.teacher_sha256), (old.teacher, old.teacher_sha256), out),
    )


def _find(name: str, asked: tuple[str | None, str | None], begun: tuple[str | None, str | None], out: Path) -> Found:
    """`begun` is what the run noted when it began."""
    (path, pinned), (old_path, old_sha256) = asked, begun
    if path is None:
        return Found()
    try:
        source = _read(path)
    except UserError as error:
        sentence = f"--{name} {path} cannot be used: {error}"
        if old_sha256 is None or old_path != path:
            raise UserError(sentence) from error
        return Found(path, old_sha256, gone=sentence)
    if pinned is not None and pinned != source.sha256:
        raise UserError(f"--{name} {path} holds weights of sha256 {source.sha256}, not {pinned}; restore them.")
    if old_sha256 is not None and old_sha256 != source.sha256:
        raise UserError(
            f"--{name} {path} holds other weights than {out} was begun with; restore them or choose another --out."
        )
    return Found(path if old_path is None else old_path, source.sha256, source)


def _read(path: str) -> Source:
    run = open_run(path)
    tensors = run.load_tensors()
    return Source(path, files.sha256_of(run.weights_file), run.config.network, run.data, tensors)


def begin_from(source: Source, model: RoutedNetwork) -> list[str]:
    """Give a fresh network the weights of another run; what of both did not fit: routers, classifier.

    The rest must fit to the last tensor. Routers are taken all or not at all, and so is the classifier.
    """
    own = model.state_dict()
    fresh = []
    taken: dict[str, torch.Tensor] = {}
    for part in ("", "routers", "classifier"):
        ours, theirs = ({name: t for name, t in of.items() if _part(name) == part} for of in (own, source.tensors))
        odd = sorted(name for name in {*ours, *theirs} if _shape(ours, name) != _shape(theirs, name))
        if not odd:
            taken |= theirs
        elif part:
            fresh += [part] if ours and theirs else []
        else:
            raise UserError(
                f"--start {source.path} holds a {source.network.arch} that does not fit this network: {odd[0]} "
                "differs; start from a run of the same architecture and kind of images."
            )
    model.load_state_dict(own | taken)
    return fresh


def _part(name: str) -> str:
    """A tensor's part of the network; the empty one must fit."""
    return "routers" if name.startswith("routers.") else "classifier" if name.startswith("fc.") else ""


def _shape(tensors: dict[str, torch.Tensor], name: str) -> torch.Size | None:
    return tensors[name].shape if name in tensors else None
