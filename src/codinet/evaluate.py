"""Deterministic evaluation: accuracy, cost and the distribution of paths.

Takes a network or any engine: a callable from images to `RoutedOutput`. Reads nothing but its arguments.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from codinet.cost import CostTable
from codinet.model import in_evaluation
from codinet.records import PathTable, RoutedOutput
from codinet.relaxation import run_probability


@dataclass(frozen=True)
class Evaluation:
    """What a network does on a set of images."""

    accuracy: float  # percent
    loss: float  # mean cross entropy
    macs: float  # mean multiply-adds an image, routers included
    paper_gmaccs: float  # the same in the unit of the paper's tables
    cost_share: float  # macs over the static network's
    mean_blocks: float  # blocks run an image
    distinct_paths: int
    path_entropy: float  # bits, of the distribution over distinct paths
    always_on: int  # blocks that every image runs
    always_off: int  # blocks that no image runs
    n: int
    paths: PathTable

    def summary(self) -> dict[str, Any]:
        """The figures without the table, ready for JSON."""
        return {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self) if entry.name != "paths"}

    @property
    def collapsed(self) -> bool:
        """Whether no block depends on the input."""
        return self.distinct_paths == 1


@contextmanager
def exact_inference() -> Iterator[None]:
    """No gradients, and full float32: a GPU's shortened multiplications would flip decisions that are close."""
    with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def evaluate(
    model: Callable[[torch.Tensor], RoutedOutput],
    loader: Iterable[tuple[torch.Tensor, torch.Tensor]],
    table: CostTable,
) -> Evaluation:
    """Run `model` over (normalised images, labels) batches with hard decisions."""
    with in_evaluation(model), exact_inference():
        parts = [_batch(model(images), labels, table) for images, labels in loader]
    paths = PathTable(*(torch.cat(column).cpu() for column in zip(*(part[0] for part in parts), strict=True)))
    losses_T = torch.cat([part[1] for part in parts])
    return summarise(paths, table, loss=losses_T.double().mean().item())


def _batch(output: RoutedOutput, labels_B: torch.Tensor, table: CostTable) -> tuple[PathTable, torch.Tensor]:
    confidence_B, prediction_B = output.logits_BK.softmax(dim=1).max(dim=1)
    rows = PathTable(
        path_TN=output.path_BN.to(torch.uint8),
        run_probability_TN=run_probability(output.scores_BN2).float(),
        label_T=labels_B,
        prediction_T=prediction_B,
        confidence_T=confidence_B,
        macs_T=table.path_macs(output.path_BN),
    )
    return rows, F.cross_entropy(output.logits_BK, labels_B, reduction="none")


def summarise(paths: PathTable, table: CostTable, *, loss: float) -> Evaluation:
    """The figures of a table of paths."""
    rate_N = paths.path_TN.double().mean(dim=0)
    _, count_P = torch.unique(paths.path_TN, dim=0, return_counts=True)
    share_P = count_P.double() / len(paths.path_TN)
    macs = paths.macs_T.mean().item()
    return Evaluation(
        accuracy=100 * (paths.prediction_T == paths.label_T).double().mean().item(),
        loss=loss,
        macs=macs,
        paper_gmaccs=table.paper_gmaccs(macs),
        cost_share=macs / table.static_macs,
        mean_blocks=rate_N.sum().item(),
        distinct_paths=len(count_P),
        path_entropy=abs(-(share_P * share_P.log2()).sum().item()),
        always_on=int((rate_N == 1).sum()),
        always_off=int((rate_N == 0).sum()),
        n=len(paths.path_TN),
        paths=paths,
    )
