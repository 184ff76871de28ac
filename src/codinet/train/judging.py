"""Evaluating a network in training: on the images of a split, and against its budget.

In distributed training each process evaluates its share of the images, and all get the same figures.
"""

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from codinet.cost import CostTable
from codinet.evaluate import Evaluation, evaluate, summarise
from codinet.model import RoutedNetwork, in_evaluation
from codinet.records import PathTable
from codinet.relaxation import hard, margin_limit
from codinet.thresholds import find_threshold
from codinet.train.distributed import World
from codinet.train.splits import Placed

TOLERANCE = 0.004  # gap between cost and budget, on calibration images, that is left as it is


@dataclass(frozen=True)
class Judge:
    """Evaluates networks with one cost table on one device."""

    table: CostTable
    device: torch.device
    world: World

    def evaluate(self, model: Any, data: Placed) -> Evaluation:
        size = 1000 if self.device.type == "cuda" else 250
        if self.world.size == 1:
            return evaluate(model, data.batches(size), self.table)
        # Where there are few images, a process may have none.
        mine = self.world.each(lambda: evaluate(model, data.batches(size), self.table) if len(data) else None)
        return join([part for part in self.world.gather(mine) if part is not None], self.table)

    def calibrate(self, judged: RoutedNetwork, trained: RoutedNetwork, data: Placed, budget: float) -> None:
        """Shift the routers so that plain images in evaluation mode cost the budget."""

        @cache  # the check and the search both start at one half
        def cost_at(threshold: float) -> float:
            return self.evaluate(partial(judged, decide=partial(hard, threshold=threshold)), data).cost_share

        with in_evaluation(judged):
            if abs(cost_at(0.5) - budget) > TOLERANCE:
                shift_to({judged, trained}, find_threshold(cost_at, budget))

    def nudge(self, judged: RoutedNetwork, trained: RoutedNetwork, plain: Evaluation, budget: float) -> None:
        """Shift the routers half of the way to the budget, extrapolated from one evaluation.

        Assumes that later routers get the same features after the shift.
        """

        def cost_at(threshold: float) -> float:
            return self.table.share(plain.paths.run_probability_TN >= threshold).mean().item()

        if abs(plain.cost_share - budget) > TOLERANCE:
            shift_to({judged, trained}, find_threshold(cost_at, budget), part=0.5)


def shift_to(networks: set[RoutedNetwork], threshold: float, part: float = 1.0) -> None:
    """Shift the routers so that threshold ½ acts as this one did, or a part of the way.

    An averaged network and the one that is trained are shifted alike; otherwise the average would drift back.
    """
    for network in networks:
        assert network.routers is not None
        network.routers.shift(-part * margin_limit(threshold))


def join(parts: list[Evaluation], table: CostTable) -> Evaluation:
    """One evaluation of all images from evaluations of parts."""
    paths = PathTable(*(torch.cat(column) for column in zip(*(part.paths for part in parts), strict=True)))
    loss = sum(part.loss * part.n for part in parts) / len(paths.label_T)
    return summarise(paths, table, loss=loss)
