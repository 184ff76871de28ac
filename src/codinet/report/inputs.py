"""What a report uses of a run, read once from its folder. Reads files; draws nothing."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from codinet.analysis.folders import load_whole_paths
from codinet.analysis.result import RunAnalysis
from codinet.backbones import ARCHITECTURES
from codinet.files import DamagedError
from codinet.published import CODINET, STATIC, VANILLA
from codinet.records import PathTable
from codinet.report.figures_space import Cloud
from codinet.runs import RunFolder


@dataclass(frozen=True)
class Run:
    """A finished run, with a name that is unique in its report and does not contain the folder's path."""

    name: str
    slug: str  # the same for files and ids
    folder: RunFolder
    evaluation: dict[str, Any]
    metrics: list[dict[str, Any]]
    paths: PathTable
    analysis: RunAnalysis

    @property
    def routed(self) -> bool:
        return self.folder.config.network.routed

    @property
    def method(self) -> str:
        losses = self.folder.config.losses
        if not self.routed:
            return STATIC
        kinds = {(False, False): VANILLA, (True, False): "vanilla + L_con", (False, True): "vanilla + L_div"}
        return kinds.get((losses.alpha > 0, losses.beta > 0), CODINET)

    @property
    def stages(self) -> tuple[int, ...]:
        return ARCHITECTURES[self.folder.config.network.arch].counts

    @property
    def unit(self) -> int:
        return ARCHITECTURES[self.folder.config.network.arch].paper_unit

    @property
    def classes(self) -> tuple[str, ...]:
        return self.folder.data.classes

    def cloud(self, name: str) -> Cloud:
        """The maps of the run's relaxed paths, of the images in the t-SNE."""
        tensors = self.analysis.tensors
        chosen_E = tensors["tsne_index"]
        maps = {"PCA": tensors["pca"][chosen_E]}
        if "tsne" in tensors:
            maps["t-SNE"] = tensors["tsne"]
        return Cloud(name, maps, self.paths.label_T[chosen_E], tensors["expected_blocks"][chosen_E])

    def groups(self) -> dict[str, torch.Tensor]:
        tensors = self.analysis.tensors
        maps = {"PCA": tensors["group_pca"]}
        if "group_tsne" in tensors:
            maps["t-SNE"] = tensors["group_tsne"]
        return maps


def read_run(folder: RunFolder, analysis: RunAnalysis, name: str, slug: str) -> Run:
    """Read a finished run; `UserError` where one of its files is missing or does not fit the others."""
    folder.require_finished()
    evaluation, paths = folder.load_evaluation(), load_whole_paths(folder)
    if len(paths.label_T) != evaluation["n"]:
        raise DamagedError(
            f"{folder.path / 'paths.safetensors'} has {len(paths.label_T)} images, and the test set "
            f"{evaluation['n']}; make it again with codinet eval {folder.path}."
        )
    return Run(name, slug, folder, evaluation, folder.metrics(), paths, analysis)


def unique_slugs(names: Sequence[str]) -> list[str]:
    """Names for files and ids: small letters, digits and dashes, all different."""
    found: list[str] = []
    for name in names:
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"
        tries = [slug, *(f"{slug}-{number}" for number in range(2, len(names) + 2))]
        found.append(next(text for text in tries if text not in found))
    return found


def row_names(runs: Sequence[Run]) -> list[str]:
    """Names of runs in a grid: their m_d where they differ in that, otherwise their own."""
    margins = [run.folder.config.losses.m_d for run in runs if run.folder.config.losses.beta > 0]
    if len(runs) > 1 and len(set(margins)) == len(runs):  # only the diversity loss uses the margin
        return [f"m_d = {margin:g}" for margin in margins]
    return [run.name for run in runs]
