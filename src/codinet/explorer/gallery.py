"""The test images of a run, to pick from: at random, by class, hardest or easiest first."""

from dataclasses import replace
from typing import Any, Literal

import torch

from codinet.analysis.usage import easiest_first
from codinet.data import Dataset
from codinet.explorer.pictures import THUMBNAIL, png
from codinet.records import PathTable
from codinet.runs import DataBrief, RunFolder
from codinet.zoo.open_run import ZooRun
from codinet.zoo.same_images import identity_of

Order = Literal["random", "index", "hardest", "easiest"]


class Gallery:
    """Test images with what is known of each; hard means many blocks run and, among equals, unsure."""

    def __init__(self, dataset: Dataset, paths: PathTable | None) -> None:
        self.split, self.classes, self.paths = dataset.test, dataset.classes, paths

    def __len__(self) -> int:
        return len(self.split)

    def list(self, order: Order, *, label: int | None, seed: int, limit: int) -> list[dict[str, Any]]:
        """The first `limit` images in an order, of one class or of all."""
        index_T = self._ordered(order, seed)
        if label is not None:
            index_T = index_T[self.split.labels_N[index_T] == label]
        return [self.describe(index) for index in index_T[:limit].tolist()]

    def _ordered(self, order: Order, seed: int) -> torch.Tensor:
        if order == "random":
            return torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        if order == "index" or self.paths is None:
            return torch.arange(len(self))
        order_T = easiest_first(self.paths)
        return order_T if order == "easiest" else order_T.flip(0)

    def describe(self, index: int) -> dict[str, Any]:
        return {"index": index, "label": int(self.split.labels_N[index]), **routed(self.paths, index)}

    def picture(self, index: int) -> bytes:
        """A thumbnail as PNG."""
        return png(self.split.images_NCHW[index], longest=THUMBNAIL)


def routed(paths: PathTable | None, index: int) -> dict[str, Any]:
    """How the run's own evaluation routed and classified a test image."""
    if paths is None:
        return {}
    return {"prediction": int(paths.prediction_T[index]), "blocks_run": int(paths.path_TN[index].sum())}


def fitting(dataset: Dataset | None, run: RunFolder) -> Dataset | None:
    """The data set, if its images are the very ones the run was trained and tested on.

    For a network of the zoo any copy with its test images will do, and is put in the order of its path table.
    """
    if dataset is None:
        return None
    if isinstance(run, ZooRun):
        digest, order_T = identity_of(dataset.test)
        return replace(dataset, test=dataset.test.subset(order_T)) if digest == run.card["test_sha256"] else None
    return dataset if DataBrief.of(dataset).same_images(run.data) else None
