"""Routing space: each test image is a point, its relaxed path. Nearest neighbours, and maps of all points.

A point has one coordinate per block, the probability that the block runs. Distances are Euclidean, as in the paper's
losses. The PCA map is computed at the start. The t-SNE map takes seconds: it is read from the analysis of `codinet
analyze` if there is one; otherwise it is computed in the background on first use and saved in the run folder.
"""

import hashlib
import importlib.util
import json
import logging
import threading
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from codinet import files
from codinet.analysis.embedding import TSNE_POINTS, choose, pca, tsne
from codinet.analysis.run_analysis import saved_analysis
from codinet.errors import UserError
from codinet.records import PathTable
from codinet.runs import open_run

Kind = Literal["pca", "tsne"]
State = Literal["absent", "idle", "computing", "ready"]
FILE = "explorer-tsne.safetensors"
MAX_POINTS = 10_000  # more would overlap and slow down the browser
TSNE_SECONDS = 300.0  # it takes 3 to 10 s on two cores
_log = logging.getLogger(__name__)


class Neighbour(NamedTuple):
    """The index of a test image and the distance to its relaxed path."""

    image: int
    distance: float


class Chart(NamedTuple):
    """Test images laid out in the plane."""

    index_P: torch.Tensor  # indices in the test set
    map_P2: torch.Tensor  # in the unit square


class RoutingSpace:
    """The test images of a run as points."""

    def __init__(self, paths: PathTable) -> None:
        self.paths = paths
        self.points_TN = paths.run_probability_TN.float()

    def __len__(self) -> int:
        return len(self.points_TN)

    @property
    def flat(self) -> bool:
        """Whether all points are equal, so that a map would show nothing."""
        return bool((self.points_TN == self.points_TN[0]).all())

    def nearest(self, point_N: torch.Tensor, count: int, *, exclude: int | None = None) -> list[Neighbour]:
        """The images closest to a relaxed path.

        Args:
            point_N: The relaxed path.
            count: Maximum number of images.
            exclude: Index of an image to leave out.

        Returns:
            The images, nearest first.
        """
        distance_T = _distance(self.points_TN, point_N)
        if exclude is not None:
            distance_T[exclude] = torch.inf
        count = min(count, len(self) - (exclude is not None))
        values, indices = distance_T.topk(count, largest=False)
        return [Neighbour(index, value) for index, value in zip(indices.tolist(), values.tolist(), strict=True)]

    def place(self, point_N: torch.Tensor, chart: Chart, *, count: int = 5) -> tuple[float, float]:
        """The position of a point on a chart: the mean of its nearest images there, weighted by inverse distance."""
        distance_P = _distance(self.points_TN[chart.index_P], point_N)
        values, indices = distance_P.topk(min(count, len(distance_P)), largest=False)
        weight_A = (values + 1e-6) ** -2
        x, y = ((weight_A / weight_A.sum())[:, None] * chart.map_P2[indices]).sum(dim=0).tolist()
        return x, y


def _distance(points_TN: torch.Tensor, point_N: torch.Tensor) -> torch.Tensor:
    return (points_TN - point_N.to(points_TN)).double().square().sum(dim=1).sqrt()


def fit(map_P2: torch.Tensor) -> torch.Tensor:
    """Centres a layout and scales it into the unit square, with the same scale in both directions."""
    low_2, high_2 = map_P2.amin(dim=0), map_P2.amax(dim=0)
    span = float((high_2 - low_2).max()) or 1.0
    return ((map_P2 - (low_2 + high_2) / 2) / span + 0.5).double()


class Maps:
    """The maps of a run, as JSON for the page: PCA at once, t-SNE when it is ready."""

    def __init__(self, space: RoutingSpace, folder: Path) -> None:
        self.space = space
        index_P = choose(len(space), MAX_POINTS, seed=0)
        layout_P2, _ = pca(space.points_TN[index_P])
        self._pca, self.tsne = Chart(index_P, fit(layout_P2)), Tsne(space, folder)
        self._json: dict[Kind, bytes] = {}

    @property
    def kinds(self) -> list[Kind]:
        """The maps that exist or can be computed."""
        return ["pca"] if self.tsne.state == "absent" else ["pca", "tsne"]

    def content(self, kind: Kind) -> bytes | None:
        """The map as JSON, or None while it is being computed. The first call for t-SNE starts the computation."""
        if kind == "tsne":
            self.tsne.start()
        chart = self._pca if kind == "pca" else self.tsne.chart
        if kind not in self._json and chart is not None:
            self._json[kind] = json.dumps({"state": "ready", **self._columns(chart)}, separators=(",", ":")).encode()
        return self._json.get(kind)

    def _columns(self, chart: Chart) -> dict[str, Any]:
        """The chart and its images, one list per column."""
        paths, index_P = self.space.paths, chart.index_P
        x_P, y_P = (chart.map_P2 * 10_000).round().long().T.tolist()  # finer than screen pixels
        return {
            "index": index_P.tolist(),
            "x": x_P,
            "y": y_P,
            "label": paths.label_T[index_P].tolist(),
            "prediction": paths.prediction_T[index_P].tolist(),
            "blocks_run": paths.path_TN[index_P].long().sum(dim=1).tolist(),
        }

    def places(self, point_N: torch.Tensor) -> dict[str, tuple[float, float]]:
        """The position of a relaxed path on each map that exists."""
        charts = {"pca": self._pca, "tsne": self.tsne.chart}
        return {kind: self.space.place(point_N, chart) for kind, chart in charts.items() if chart is not None}


class Tsne:
    """The t-SNE chart, loaded or computed in the background after `start`."""

    def __init__(self, space: RoutingSpace, folder: Path) -> None:
        self._points_TN, self._folder, self._lock = space.points_TN, folder, threading.Lock()
        self.thread: threading.Thread | None = None
        self._end = 0.0  # when a running computation counts as failed
        self.chart: Chart | None = self._from_analysis() or self._saved()
        missing = importlib.util.find_spec("sklearn") is None
        self._state: State = "ready" if self.chart is not None else "absent" if missing else "idle"

    @property
    def state(self) -> State:
        overdue = self._state == "computing" and time.monotonic() > self._end
        return "absent" if overdue else self._state

    def start(self) -> None:
        """Starts the computation, unless it has been started or is not needed."""
        with self._lock:
            if self._state != "idle":
                return
            # A daemon thread, so that the process can end without waiting for it.
            self.thread = threading.Thread(target=self._compute, name="codinet-explore-tsne", daemon=True)
            self._state, self._end = "computing", time.monotonic() + TSNE_SECONDS
            try:
                self.thread.start()
            except RuntimeError:
                _log.warning("Could not compute the t-SNE map: the system has no threads left")
                self._state, self.thread = "absent", None

    def _compute(self) -> None:
        try:
            index_P = choose(len(self._points_TN), TSNE_POINTS, seed=0)
            layout_P2 = tsne(self._points_TN[index_P], seed=0)
        except Exception:
            # The explorer works without it.
            _log.exception("Could not compute the t-SNE map")
            layout_P2 = None
        if layout_P2 is None:  # failed, or too few distinct paths
            self._state = "absent"
            return
        self.chart, self._state = _rotated(index_P, layout_P2), "ready"
        try:
            tensors = {"index_P": index_P, "layout_P2": layout_P2}
            files.save_tensors(self._folder / FILE, tensors, about=_digest(self._points_TN))
        except (OSError, UserError):
            _log.info("Could not save the t-SNE map in the run folder; it will be computed again next time")

    def _saved(self) -> Chart | None:
        """The chart that an earlier explorer saved, if it belongs to these points."""
        try:
            tensors, about = files.load_tensors(self._folder / FILE)
        except UserError:
            return None
        same = about == _digest(self._points_TN)
        return self._checked(tensors.get("index_P"), tensors.get("layout_P2")) if same else None

    def _from_analysis(self) -> Chart | None:
        """The chart of `codinet analyze`, if it belongs to this network and data."""
        try:
            analysis = saved_analysis(open_run(self._folder))
        except (OSError, UserError):
            return None
        if analysis is None:
            return None
        return self._checked(analysis.tensors.get("tsne_index"), analysis.tensors.get("tsne"))

    def _checked(self, index_P: torch.Tensor | None, layout_P2: torch.Tensor | None) -> Chart | None:
        """The chart, or None if the tensors are invalid."""
        if index_P is None or layout_P2 is None or index_P.dtype != torch.int64 or index_P.ndim != 1:
            return None
        if len(index_P) == 0 or layout_P2.shape != (len(index_P), 2) or not layout_P2.is_floating_point():
            return None
        inside = int(index_P.min()) >= 0 and int(index_P.max()) < len(self._points_TN)
        return _rotated(index_P, layout_P2) if inside and bool(layout_P2.isfinite().all()) else None


def _rotated(index_P: torch.Tensor, layout_P2: torch.Tensor) -> Chart:
    """Rotates the layout so that it is widest from left to right. Distances stay the same."""
    rotated_P2, _ = pca(layout_P2)
    return Chart(index_P, fit(rotated_P2))


def _digest(points_TN: torch.Tensor) -> str:
    return hashlib.sha256(points_TN.contiguous().numpy().data).hexdigest()
