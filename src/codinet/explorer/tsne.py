"""The t-SNE chart: from the run's analysis where there is one, else computed once beside the server and kept.

It takes seconds, so it is started when a page first asks, and the page shows the PCA until it is ready.
"""

import hashlib
import importlib.util
import logging
import threading
from pathlib import Path
from typing import Literal

import torch

from codinet import files
from codinet.analysis.embedding import TSNE_POINTS, choose, pca, tsne
from codinet.analysis.folders import kept_analysis
from codinet.errors import UserError
from codinet.explorer.space import Chart, RoutingSpace, fit
from codinet.runs import RunFolder

State = Literal["absent", "idle", "computing", "ready"]
FILE = "explorer-tsne.safetensors"
_log = logging.getLogger(__name__)


class Tsne:
    """A chart that appears after `start`, or is there at once if it was made before."""

    def __init__(self, space: RoutingSpace, folder: Path) -> None:
        self._points_TN, self._folder, self._lock = space.points_TN, folder, threading.Lock()
        self.chart: Chart | None = self._analysed() or self._kept()
        missing = importlib.util.find_spec("sklearn") is None
        self.state: State = "ready" if self.chart is not None else "absent" if missing else "idle"

    def start(self) -> None:
        """Compute it in the background; a second call does nothing."""
        with self._lock:
            if self.state == "idle":
                self.state = "computing"
                # A daemon: leaving the explorer does not wait for a chart nobody will see.
                threading.Thread(target=self._compute, name="codinet-tsne", daemon=True).start()

    def _compute(self) -> None:
        try:
            index_P = choose(len(self._points_TN), TSNE_POINTS, seed=0)
            layout_P2 = tsne(self._points_TN[index_P], seed=0)
        except Exception:
            # The chart is an extra: without it the explorer goes on, and the terminal says why.
            _log.exception("the t-SNE map could not be computed")
            layout_P2 = None
        if layout_P2 is None:  # or too few distinct paths
            self.state = "absent"
            return
        self.chart, self.state = _chart(index_P, layout_P2), "ready"
        try:
            tensors = {"index_P": index_P, "layout_P2": layout_P2}
            files.save_tensors(self._folder / FILE, tensors, about=_digest(self._points_TN))
        except (OSError, UserError):
            _log.info("the run folder cannot be written; the t-SNE map is computed again next time")

    def _kept(self) -> Chart | None:
        """The chart of an earlier visit, if it is of these very points."""
        try:
            tensors, about = files.load_tensors(self._folder / FILE)
        except UserError:
            return None
        return _chart(tensors["index_P"], tensors["layout_P2"]) if about == _digest(self._points_TN) else None

    def _analysed(self) -> Chart | None:
        """The chart that `codinet analyze` laid out, if it did so for this network and data."""
        try:
            known = kept_analysis(RunFolder.open(self._folder))
        except (OSError, UserError):
            return None
        if known is None or "tsne" not in known.tensors:
            return None
        index_P = known.tensors["tsne_index"]
        return _chart(index_P, known.tensors["tsne"]) if int(index_P.max()) < len(self._points_TN) else None


def _chart(index_P: torch.Tensor, layout_P2: torch.Tensor) -> Chart:
    """The layout turned so that its long side lies across, which changes no distance."""
    turned_P2, _ = pca(layout_P2)
    return Chart(index_P, fit(turned_P2))


def _digest(points_TN: torch.Tensor) -> str:
    return hashlib.sha256(points_TN.contiguous().numpy().data).hexdigest()
