"""Accuracy against cost from one set of weights: the same network at many thresholds.

Each threshold is a budget that can be chosen when the network is used. Takes any engine, or the network itself.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from codinet.cost import CostTable
from codinet.engines.contract import Engine
from codinet.engines.masked import MaskedEngine
from codinet.evaluate import evaluate
from codinet.model import RoutedNetwork
from codinet.records import RoutedOutput

THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


@dataclass(frozen=True)
class CurvePoint:
    threshold: float
    accuracy: float  # percent
    cost_share: float  # of the static network's MACs
    mean_blocks: float
    distinct_paths: int


def threshold_curve(
    engine: Engine | RoutedNetwork,
    batches: Callable[[], Iterable[tuple[torch.Tensor, torch.Tensor]]],
    table: CostTable,
    *,
    thresholds: Sequence[float] = THRESHOLDS,
) -> list[CurvePoint]:
    """One point per threshold, in the order given. `batches()` starts over (normalised images, labels) anew."""
    engine = engine if isinstance(engine, Engine) else MaskedEngine(engine)
    points = []
    for threshold in thresholds:
        found = evaluate(_at(engine, threshold), batches(), table)
        points.append(CurvePoint(threshold, found.accuracy, found.cost_share, found.mean_blocks, found.distinct_paths))
    return points


def _at(engine: Engine, threshold: float) -> Callable[[torch.Tensor], RoutedOutput]:
    return lambda images_BCHW: engine(images_BCHW, threshold=threshold)
