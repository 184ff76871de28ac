"""What the page is told of one image: class, path, confidence of each router, cost, a view, its neighbours.

Pure functions of the run and the request; they run in worker threads and keep nothing between calls.
"""

from functools import partial
from typing import Any

import torch

from codinet.data import normalise
from codinet.evaluate import exact_inference
from codinet.explorer.gallery import routed
from codinet.explorer.maps import Maps
from codinet.explorer.pictures import data_url
from codinet.explorer.space import RoutingSpace
from codinet.explorer.views import make_view
from codinet.predict import Predictor
from codinet.relaxation import hard, run_probability

TOP = 5
NEIGHBOURS = 12


class Answers:
    """A run's network and its routing space, ready to be asked."""

    def __init__(self, predictor: Predictor, space: RoutingSpace | None, maps: Maps | None) -> None:
        self.predictor, self.space, self.maps = predictor, space, maps
        self._mean_C = torch.tensor(predictor.data.mean, device=predictor.device)
        self._std_C = torch.tensor(predictor.data.std, device=predictor.device)

    def about(
        self, image_CHW: torch.Tensor, *, threshold: float, view: str | None, seed: int, index: int | None
    ) -> dict[str, Any]:
        """The answer for a uint8 image of the network's shape; `index` is its place among the test images."""
        image_1CHW = normalise(image_CHW[None].to(self.predictor.device), self._mean_C, self._std_C)
        answer, point_N = self._routed(image_1CHW, threshold)
        answer["picture"] = data_url(image_CHW)
        said: dict[str, Any] = {"threshold": threshold, "image": answer, "index": index}
        if view is not None:
            said["view"] = self._view(image_1CHW, view, seed, threshold, answer["path"])
        if self.space is not None:
            said["neighbours"] = self._neighbours(self.space, point_N, index)
        if self.maps is not None:
            said["place"] = self.maps.places(point_N)
        return said

    def _routed(self, image_1CHW: torch.Tensor, threshold: float) -> tuple[dict[str, Any], torch.Tensor]:
        """Class, path and cost, and the relaxed path itself. One image a pass, as `codinet predict` does."""
        predictor = self.predictor
        with exact_inference():
            output = predictor.model(image_1CHW, decide=partial(hard, threshold=threshold))
            point_N = run_probability(output.scores_BN2)[0].float().cpu()
            chance_K = output.logits_BK.softmax(dim=1)[0].cpu()
            path_1N = output.path_BN.cpu()
        confidence, best = chance_K.topk(min(TOP, len(chance_K)))
        macs = float(predictor.table.path_macs(path_1N)[0])
        return {
            "top": [
                {"label": label, "confidence": round(value, 6)}
                for label, value in zip(best.tolist(), confidence.tolist(), strict=True)
            ],
            "path": [int(ran) for ran in path_1N[0]],
            # A static network has no routers, so it has no confidence to show.
            "run_probability": None if predictor.model.routers is None else [round(p, 4) for p in point_N.tolist()],
            "blocks_run": int(path_1N.sum()),
            "macs": macs,
            "cost_share": macs / predictor.table.static_macs,
        }, point_N

    def _view(
        self, image_1CHW: torch.Tensor, name: str, seed: int, threshold: float, path: list[int]
    ) -> dict[str, Any]:
        view_1CHW = make_view(image_1CHW, name, seed=seed)
        answer, _ = self._routed(view_1CHW, threshold)
        bytes_CHW = view_1CHW[0] * self._std_C[:, None, None] + self._mean_C[:, None, None]
        answer["picture"] = data_url(bytes_CHW.round().clamp(0, 255).to(torch.uint8))
        answer["name"] = name
        answer["differs"] = [
            k for k, (here, there) in enumerate(zip(path, answer["path"], strict=True)) if here != there
        ]
        return answer

    def _neighbours(self, space: RoutingSpace, point_N: torch.Tensor, index: int | None) -> list[dict[str, Any]]:
        return [
            {
                "index": near.image,
                "distance": round(near.distance, 4),
                "label": int(space.paths.label_T[near.image]),
                **routed(space.paths, near.image),
            }
            for near in space.nearest(point_N, NEIGHBOURS, besides=index)
        ]
