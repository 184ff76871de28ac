"""What the page shows of a run and of its images: class, path, cost, a view, neighbours, thumbnails.

Everything here is a function of the run and the request, keeps nothing between calls, and may run in any thread.
"""

import base64
import io
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from PIL import Image

from codinet.analysis.augment import CROP, HORIZONTAL, ROTATION, VERTICAL, augment, draw
from codinet.analysis.usage import easiest_first
from codinet.data import Dataset, normalise
from codinet.data.lazy import LazyImages
from codinet.errors import UserError
from codinet.evaluate import exact_inference
from codinet.explorer.guard import Limits, RefusedError
from codinet.explorer.space import Maps, RoutingSpace
from codinet.predict import Predictor
from codinet.records import PathTable
from codinet.relaxation import hard, run_probability
from codinet.runs import DataBrief, RunFolder
from codinet.zoo.open_run import ZooRun
from codinet.zoo.same_images import identity_of

TOP = 5
NEIGHBOURS = 12
THUMBNAIL = 96  # pixels on the longer side
_FIGURES = ("accuracy", "cost_share", "mean_blocks", "distinct_paths", "n")

Order = Literal["random", "index", "hardest", "easiest"]
ViewName = Literal["crop", "mirror", "rotation", "upside-down"]


class View(NamedTuple):
    """One of the analysis's augmentations."""

    title: str
    kind: int  # an index into `analysis.augment.KINDS`
    drawn: bool  # whether another seed gives another view


VIEWS: dict[ViewName, View] = {
    "crop": View("Random crop", CROP, True),
    "mirror": View("Mirror", HORIZONTAL, False),
    "rotation": View("Rotation", ROTATION, True),
    "upside-down": View("Upside down", VERTICAL, False),
}


def make_view(image_1CHW: torch.Tensor, name: ViewName, *, seed: int) -> torch.Tensor:
    """The named view of a normalised image, the same for the same seed. Crops shift by at most an eighth of a side."""
    pad = max(1, min(image_1CHW.shape[2:]) // 8)
    draws = draw(1, pad=pad, seed=seed)._replace(kind_B=torch.tensor([VIEWS[name].kind], dtype=torch.uint8))
    return augment(image_1CHW, draws.at(slice(None), image_1CHW.device), pad=pad)


def png(image_CHW: torch.Tensor, *, longest: int | None = None) -> bytes:
    """A uint8 image of one or three channels as a PNG file, scaled down if a side is longer than `longest`."""
    values = image_CHW.cpu().numpy()
    picture = Image.fromarray(values[0] if len(values) == 1 else values.transpose(1, 2, 0).copy())
    if longest is not None:
        picture.thumbnail((longest, longest))
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    return stream.getvalue()


def _data_url(image_CHW: torch.Tensor) -> str:
    return "data:image/png;base64," + base64.b64encode(png(image_CHW)).decode()


class Gallery:
    """The test images to choose from. Hard images run many blocks; among equals, the network is unsure of them."""

    def __init__(self, dataset: Dataset, paths: PathTable | None) -> None:
        self.split, self.classes, self.paths = dataset.test, dataset.classes, paths

    def __len__(self) -> int:
        return len(self.split)

    @property
    def lazy(self) -> bool:
        """Whether images are decoded when they are used."""
        return isinstance(self.split.images_NCHW, LazyImages)

    def list(self, order: Order, *, label: int | None, seed: int, limit: int) -> list[dict[str, Any]]:
        """The first `limit` images in an order, of one class or of all."""
        if label is not None and label >= len(self.classes):
            raise RefusedError(422, f"Invalid label: classes are numbered from 0 to {len(self.classes) - 1}.")
        index_T = self._ordered(order, seed)
        if label is not None:
            index_T = index_T[self.split.labels_N[index_T] == label]
        return [self._describe(index) for index in index_T[:limit].tolist()]

    def _ordered(self, order: Order, seed: int) -> torch.Tensor:
        if order == "random":
            return torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        if order == "index" or self.paths is None:
            return torch.arange(len(self))
        order_T = easiest_first(self.paths)
        return order_T if order == "easiest" else order_T.flip(0)

    def _describe(self, index: int) -> dict[str, Any]:
        return {"index": index, "label": int(self.split.labels_N[index]), **_routed(self.paths, index)}

    def image(self, index: int) -> torch.Tensor:
        """A test image as uint8 (C, H, W)."""
        try:
            return self.split.images_NCHW[index]
        except UserError:  # the sentence has the path of the file
            raise RefusedError(404, f"The file of test image {index} cannot be read any more.") from None

    def thumbnail(self, index: int) -> bytes:
        """A test image as a small PNG file."""
        return png(self.image(index), longest=THUMBNAIL)


def _routed(paths: PathTable | None, index: int) -> dict[str, Any]:
    """How the run's evaluation routed and classified a test image."""
    if paths is None:
        return {}
    return {"prediction": int(paths.prediction_T[index]), "blocks_run": int(paths.path_TN[index].sum())}


def matching(dataset: Dataset | None, run: RunFolder) -> Dataset | None:
    """The data set, if its images are those that the run was trained and tested on.

    For a network of the zoo the same test images are enough; they are put in the order of its path table.
    """
    if dataset is None:
        return None
    if isinstance(run, ZooRun):
        digest, order_T = identity_of(dataset.test)
        return replace(dataset, test=dataset.test.subset(order_T)) if digest == run.card["test_sha256"] else None
    return dataset if DataBrief.of(dataset).same_images(run.data) else None


def overview(
    run: RunFolder, predictor: Predictor, gallery: Gallery | None, maps: Maps | None, limits: Limits
) -> dict[str, Any]:
    """What the page shows before an image is chosen. It has no paths of the server's disk."""
    table = predictor.table
    return {
        "network": run.config.network.arch,
        "routed": predictor.model.routers is not None,
        "data": Path(run.data.name).name,  # of a file or folder, only its own name
        "classes": run.data.classes,
        "image_shape": run.data.image_shape,
        "version": run.data.sha256[:12],
        "stages": predictor.model.shape.counts,
        "block_share": [added / table.static_macs for added in table.added_N],
        "static_macs": table.static_macs,
        "evaluation": _evaluation(run),
        "images": len(gallery) if gallery is not None else 0,
        "views": [{"name": name, "title": view.title, "drawn": view.drawn} for name, view in VIEWS.items()],
        "maps": [] if maps is None else maps.kinds,
        "limits": {"bytes": limits.upload_bytes, "pixels": limits.upload_pixels},
    }


def _evaluation(run: RunFolder) -> dict[str, Any] | None:
    try:
        figures = run.load_evaluation()
        return {name: figures[name] for name in _FIGURES}
    except (UserError, KeyError):
        return None


class Answers:
    """Answers about images, from a run's network and its routing space."""

    def __init__(self, predictor: Predictor, space: RoutingSpace | None, maps: Maps | None) -> None:
        self.predictor, self.space, self.maps = predictor, space, maps
        self._mean_C = torch.tensor(predictor.data.mean, device=predictor.device)
        self._std_C = torch.tensor(predictor.data.std, device=predictor.device)

    def about(
        self, image_CHW: torch.Tensor, *, threshold: float, view: ViewName | None, seed: int, index: int | None
    ) -> dict[str, Any]:
        """The answer for a uint8 image in the network's shape; `index` is its index if it is a test image."""
        image_1CHW = normalise(image_CHW[None].to(self.predictor.device), self._mean_C, self._std_C)
        answer, point_N = self._route(image_1CHW, threshold)
        answer["picture"] = _data_url(image_CHW)
        said: dict[str, Any] = {"threshold": threshold, "image": answer, "index": index}
        if view is not None:
            said["view"] = self._view(image_1CHW, view, seed, threshold, answer["path"])
        if self.space is not None:
            said["neighbours"] = self._neighbours(self.space, point_N, index)
        if self.maps is not None:
            said["place"] = self.maps.places(point_N)
        return said

    def _route(self, image_1CHW: torch.Tensor, threshold: float) -> tuple[dict[str, Any], torch.Tensor]:
        """Class, path and cost of one image, and its relaxed path, computed as `codinet predict` does."""
        predictor = self.predictor
        with exact_inference():
            output = predictor.model(image_1CHW, decide=partial(hard, threshold=threshold))
            point_N = run_probability(output.scores_BN2)[0].float().cpu()
            chance_K = output.logits_BK.softmax(dim=1)[0].cpu()
            path_1N = output.path_BN.cpu()
        if not (chance_K.isfinite().all() and point_N.isfinite().all()):
            raise RefusedError(422, "The network computes NaN or infinity on this image; restore its weights.")
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
        self, image_1CHW: torch.Tensor, name: ViewName, seed: int, threshold: float, path: list[int]
    ) -> dict[str, Any]:
        view_1CHW = make_view(image_1CHW, name, seed=seed)
        answer, _ = self._route(view_1CHW, threshold)
        bytes_CHW = view_1CHW[0] * self._std_C[:, None, None] + self._mean_C[:, None, None]
        answer["picture"] = _data_url(bytes_CHW.round().clamp(0, 255).to(torch.uint8))
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
                **_routed(space.paths, near.image),
            }
            for near in space.nearest(point_N, NEIGHBOURS, besides=index)
        ]
