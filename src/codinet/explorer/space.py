"""Routing space: where images lie by their relaxed paths, who lies near, and charts of it.

A point is an image's run probabilities, one coordinate a block; distance is Euclidean, as in the paper's
losses. Knows nothing of networks, files or pictures.
"""

from typing import NamedTuple

import torch

from codinet.records import PathTable


class Near(NamedTuple):
    """A test image, by its place in the set, and how far its relaxed path is."""

    image: int
    distance: float


class Chart(NamedTuple):
    """Some test images laid out in the plane."""

    index_P: torch.Tensor  # their places in the test set
    map_P2: torch.Tensor  # within the unit square


class RoutingSpace:
    """The test images of a run, as points."""

    def __init__(self, paths: PathTable) -> None:
        self.paths = paths
        self.points_TN = paths.run_probability_TN.float()

    def __len__(self) -> int:
        return len(self.points_TN)

    @property
    def flat(self) -> bool:
        """Whether all images lie at one point, so that there is nothing to lay out."""
        return bool((self.points_TN == self.points_TN[0]).all())

    def nearest(self, point_N: torch.Tensor, count: int, *, besides: int | None = None) -> list[Near]:
        """The images closest to a relaxed path, nearest first; `besides` leaves one out."""
        distance_T = _distance(self.points_TN, point_N)
        if besides is not None:
            distance_T[besides] = torch.inf
        count = min(count, len(self) - (besides is not None))
        values, indices = distance_T.topk(count, largest=False)
        return [Near(index, value) for index, value in zip(indices.tolist(), values.tolist(), strict=True)]

    def place(self, point_N: torch.Tensor, chart: Chart, *, among: int = 5) -> tuple[float, float]:
        """Where a point falls on a chart: between the nearest of the images there, the nearer the closer."""
        distance_P = _distance(self.points_TN[chart.index_P], point_N)
        values, indices = distance_P.topk(min(among, len(distance_P)), largest=False)
        weight_A = (values + 1e-6) ** -2
        x, y = ((weight_A / weight_A.sum())[:, None] * chart.map_P2[indices]).sum(dim=0).tolist()
        return x, y


def _distance(points_TN: torch.Tensor, point_N: torch.Tensor) -> torch.Tensor:
    return (points_TN - point_N.to(points_TN)).double().square().sum(dim=1).sqrt()


def fit(map_P2: torch.Tensor) -> torch.Tensor:
    """A layout moved and scaled alike in both directions into the unit square, its middle in the middle."""
    low_2, high_2 = map_P2.amin(dim=0), map_P2.amax(dim=0)
    span = float((high_2 - low_2).max()) or 1.0
    return ((map_P2 - (low_2 + high_2) / 2) / span + 0.5).double()
