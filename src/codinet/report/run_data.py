"""What a report needs of each run, read from its folder."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from codinet.analysis import RunAnalysis
from codinet.files import DamagedError
from codinet.methods import method_named
from codinet.published import NAMES, UNITS, data_key
from codinet.records import PathTable
from codinet.report.drawing import colour
from codinet.report.inference_time import InferenceTime
from codinet.runs import RunFolder


@dataclass(frozen=True)
class Run:
    """A finished run, with a name that is unique in the report and does not contain the path of the folder."""

    name: str
    slug: str  # the name for files and ids
    folder: RunFolder
    evaluation: dict[str, Any]
    metrics: list[dict[str, Any]]
    paths: PathTable
    analysis: RunAnalysis
    position: int = 0  # in the report, which decides the colour
    time: InferenceTime | None = None  # None if it was not measured

    @property
    def colour(self) -> str:
        """The colour of the run in every figure."""
        return colour(self.position)

    @property
    def routed(self) -> bool:
        return self.folder.config.network.routed

    @property
    def method(self) -> str:
        """The name of the method, as in the paper's tables."""
        return method_named(self.folder.config.method).title_of(self.folder.config)

    @property
    def groups(self) -> tuple[int, ...]:
        """The number of blocks in each group of the network."""
        return self.folder.groups

    @property
    def data_name(self) -> str:
        """The name of the data set, as the paper writes it."""
        name = self.folder.data.name
        return NAMES.get(data_key(name), name)

    @property
    def unit(self) -> int | None:
        """How many operations the paper counts per multiply-add on this data set; None if it does not use it."""
        return UNITS.get(data_key(self.folder.data.name))

    @property
    def classes(self) -> tuple[str, ...]:
        return self.folder.data.classes


def read_run(folder: RunFolder, analysis: RunAnalysis, name: str, slug: str) -> Run:
    """Read a finished run.

    Args:
        folder: The run's folder.
        analysis: The run's analysis.
        name: The run's name in the report.
        slug: The run's name in files and ids, see `unique_slugs`.

    Raises:
        UserError: A file is missing, damaged, or does not match the others.
    """
    folder.require_finished()
    evaluation, paths = folder.load_evaluation(), folder.load_paths()
    if len(paths.label_T) != evaluation["n"]:
        raise DamagedError(
            f"{folder.path / 'paths.safetensors'} has {len(paths.label_T)} images, but the test set has "
            f"{evaluation['n']}; run codinet eval {folder.path}."
        )
    return Run(name, slug, folder, evaluation, folder.metrics(), paths, analysis)


def run_colours(runs: Sequence[Run]) -> dict[str, str]:
    """The colour of each run, by name."""
    return {run.name: run.colour for run in runs}


def unique_slugs(names: Sequence[str]) -> list[str]:
    """Different names for files and ids, made of lower-case letters, digits and dashes."""
    slugs: list[str] = []
    for name in names:
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"
        candidates = [slug, *(f"{slug}-{number}" for number in range(2, len(names) + 2))]
        slugs.append(next(text for text in candidates if text not in slugs))
    return slugs


def row_names(runs: Sequence[Run]) -> list[str]:
    """Names of runs in a grid: their margins m_d if nothing else differs, otherwise their own names."""
    configs = [run.folder.config for run in runs]
    # Without the diversity loss, m_d has no effect.
    margins = [config.losses.m_d for config in configs if config.losses.beta > 0]
    rest = [replace(config, losses=replace(config.losses, m_d=0.0)) for config in configs]
    if len(runs) > 1 and len(set(margins)) == len(runs) and all(config == rest[0] for config in rest):
        return [f"m_d = {margin:g}" for margin in margins]
    return [run.name for run in runs]
