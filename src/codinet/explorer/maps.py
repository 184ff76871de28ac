"""The maps of a run's routing space, as the page draws them."""

from pathlib import Path
from typing import Any, Literal

import torch

from codinet.analysis.embedding import choose, pca
from codinet.explorer.space import Chart, RoutingSpace, fit
from codinet.explorer.tsne import Tsne

Kind = Literal["pca", "tsne"]
MAX_POINTS = 10_000  # more would hide each other, and take a browser long to draw


class Maps:
    """PCA at once; t-SNE when it is ready."""

    def __init__(self, space: RoutingSpace, folder: Path) -> None:
        self.space = space
        index_P = choose(len(space), MAX_POINTS, seed=0)
        layout_P2, _ = pca(space.points_TN[index_P])
        self._pca, self._tsne = Chart(index_P, fit(layout_P2)), Tsne(space, folder)

    @property
    def kinds(self) -> list[Kind]:
        """Those that are there or can be made."""
        return ["pca"] if self._tsne.state == "absent" else ["pca", "tsne"]

    def chart(self, kind: Kind) -> Chart | None:
        """The chart, or None while it is being computed, which asking for it begins."""
        if kind == "pca":
            return self._pca
        self._tsne.start()
        return self._tsne.chart

    def content(self, chart: Chart) -> dict[str, Any]:
        """One list a column: places, and what is known of the image there."""
        paths, index_P = self.space.paths, chart.index_P
        x_P, y_P = (chart.map_P2 * 10_000).round().long().T.tolist()  # ten-thousandths: finer than a screen
        return {
            "index": index_P.tolist(),
            "x": x_P,
            "y": y_P,
            "label": paths.label_T[index_P].tolist(),
            "prediction": paths.prediction_T[index_P].tolist(),
            "blocks_run": paths.path_TN[index_P].long().sum(dim=1).tolist(),
        }

    def places(self, point_N: torch.Tensor) -> dict[str, tuple[float, float]]:
        """Where a relaxed path falls on each map that is there."""
        charts = {"pca": self._pca, "tsne": self._tsne.chart}
        return {kind: self.space.place(point_N, chart) for kind, chart in charts.items() if chart is not None}
