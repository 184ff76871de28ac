"""What the page shows of a run and its images: class, path, cost, an augmented view, neighbours, thumbnails.

Everything here depends on the run and the request only, keeps no state between calls, and may run in any thread.
"""

import base64
import io
import math
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Self

import torch
from PIL import Image

from codinet.analysis.augment import CROP, HORIZONTAL, ROTATION, VERTICAL, augment, random_augmentations
from codinet.analysis.measures import easiest_first
from codinet.data import Dataset, Split
from codinet.data.dataset import LazyImages
from codinet.errors import UserError
from codinet.explorer.guard import Limits, RefusedError
from codinet.explorer.space import Maps, RoutingSpace
from codinet.predictor import Predictor
from codinet.records import PathTable
from codinet.run_reader import RunReader

TOP = 5
NEIGHBOURS = 12
THUMBNAIL = 96  # pixels on the longer side
_METRICS = ("accuracy", "cost_share", "mean_blocks", "distinct_paths", "n")

Order = Literal["random", "index", "hardest", "easiest"]


class View(Enum):
    """An augmentation, as used by the analysis. The value is its name in requests and answers."""

    CROP = "crop", "Random crop", CROP, True
    MIRROR = "mirror", "Mirror", HORIZONTAL, False
    ROTATION = "rotation", "Rotation", ROTATION, True
    UPSIDE_DOWN = "upside-down", "Upside down", VERTICAL, False

    title: str
    kind: int  # an index into `analysis.augment.KINDS`
    random: bool  # whether the view depends on the seed

    def __new__(cls, name: str, title: str, kind: int, random: bool) -> Self:
        view = object.__new__(cls)
        view._value_ = name
        view.title, view.kind, view.random = title, kind, random
        return view


def make_view(image_1CHW: torch.Tensor, view: View, *, seed: int) -> torch.Tensor:
    """An augmented view of a normalised image.

    Args:
        image_1CHW: The image.
        view: The augmentation. Crops shift the image by at most an eighth of its side.
        seed: The same seed gives the same view.

    Returns:
        The view, in the same shape.
    """
    pad = max(1, min(image_1CHW.shape[2:]) // 8)
    kind_B = torch.tensor([view.kind], dtype=torch.uint8)
    augmentations = random_augmentations(1, pad=pad, seed=seed)._replace(kind_B=kind_B)
    return augment(image_1CHW, augmentations.at(slice(None), image_1CHW.device), pad=pad)


def png(image_CHW: torch.Tensor, *, longest: int | None = None) -> bytes:
    """Encodes a uint8 image of one or three channels as PNG, scaled down if a side is longer than `longest`."""
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
    """The test images to choose from. Hard images run many blocks; among equals, the least confident are hardest.

    Args:
        test: The images.
        classes: The names of the classes.
        paths: How the run's evaluation routed them, if it is known.
        index_S: The index of each image in the whole test set, if these are only some of its images.
    """

    def __init__(
        self, test: Split, classes: Sequence[str], paths: PathTable | None, index_S: torch.Tensor | None = None
    ) -> None:
        self.split, self.classes, self.paths = test, classes, paths
        self.indices: Sequence[int] = range(len(test)) if index_S is None else index_S.tolist()
        self.complete = index_S is None

    def __len__(self) -> int:
        return len(self.split)

    def _position(self, index: int) -> int:
        if index in self.indices:
            return self.indices.index(index)
        if self.complete:
            raise RefusedError(404, f"The index of a test image must be from 0 to {len(self) - 1}, got {index}.")
        raise RefusedError(404, f"Test image {index} is not on this machine; GET /api/images lists those that are.")

    def label(self, index: int) -> int:
        """The class of a test image."""
        return int(self.split.labels_N[self._position(index)])

    @property
    def lazy(self) -> bool:
        """Whether images are decoded on access."""
        return isinstance(self.split.images_NCHW, LazyImages)

    def list(self, order: Order, *, label: int | None, seed: int, limit: int) -> list[dict[str, Any]]:
        """Lists test images.

        Args:
            order: The order; "hardest" and "easiest" need the path table, otherwise the order is "index".
            label: Lists only images of this class.
            seed: Seed of the random order.
            limit: Maximum number of images.

        Returns:
            Index and class of each image, and how the run's evaluation routed it.
        """
        if label is not None and label >= len(self.classes):
            raise RefusedError(422, f"Invalid label: it must be from 0 to {len(self.classes) - 1}, got {label}.")
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

    def _describe(self, position: int) -> dict[str, Any]:
        label = int(self.split.labels_N[position])
        return {"index": self.indices[position], "label": label, **_routed(self.paths, position)}

    def image(self, index: int) -> torch.Tensor:
        """A test image as uint8 (C, H, W)."""
        position = self._position(index)
        try:
            return self.split.images_NCHW[position]
        except UserError:  # its message contains the path of the file
            raise RefusedError(404, f"The file of test image {index} can no longer be read.") from None

    def thumbnail(self, index: int) -> bytes:
        """A test image as a small PNG."""
        return png(self.image(index), longest=THUMBNAIL)


def _routed(paths: PathTable | None, index: int) -> dict[str, Any]:
    """How the run's evaluation routed and classified a test image."""
    if paths is None:
        return {}
    return {"prediction": int(paths.prediction_T[index]), "blocks_run": int(paths.path_TN[index].sum())}


def gallery_of(run: RunReader, dataset: Dataset | None, paths: PathTable | None) -> Gallery | None:
    """The test images: those of the data set, else those that come with the run, else None."""
    if dataset is not None:
        return Gallery(dataset.test, dataset.classes, paths)
    samples = run.sample_images()
    if samples is None:
        return None
    rows = None if paths is None else PathTable(*(column[samples.index_S] for column in paths))
    return Gallery(samples.split, run.data.classes, rows, samples.index_S)


def matching(dataset: Dataset | None, run: RunReader) -> Dataset | None:
    """The data set, or None if its images are not the run's.

    For a network of the zoo it is enough that the test images are the same, in any order.
    """
    if dataset is None:
        return None
    return run.aligned(dataset)


def overview(
    run: RunReader,
    predictor: Predictor,
    gallery: Gallery | None,
    maps: Maps | None,
    limits: Limits,
    *,
    accuracy: bool,
) -> dict[str, Any]:
    """What the page shows of the run. It contains no paths of the server."""
    table = predictor.table
    return {
        "network": run.config.network.title,
        "routed": predictor.model.routers is not None,
        "data": Path(run.data.name).name,  # without the folder
        "classes": run.data.classes,
        "image_shape": run.data.image_shape,
        "version": run.data.sha256[:12],
        "groups": run.groups,
        "block_share": [added / table.static_macs for added in table.added_N],
        "static_macs": table.static_macs,
        "evaluation": _evaluation(run),
        "images": len(gallery) if gallery is not None else 0,
        # Index and class of each image, if there are only some of the test images.
        "samples": None
        if gallery is None or gallery.complete
        else list(zip(gallery.indices, gallery.split.labels_N.tolist(), strict=True)),
        "accuracy": accuracy,
        "views": [{"name": view.value, "title": view.title, "random": view.random} for view in View],
        "maps": [] if maps is None else maps.kinds,
        "limits": {"bytes": limits.upload_bytes, "pixels": limits.upload_pixels},
    }


def _evaluation(run: RunReader) -> dict[str, Any] | None:
    try:
        evaluation = run.load_evaluation()
        return {name: evaluation[name] for name in _METRICS}
    except (UserError, KeyError):
        return None


class Answers:
    """Routes images with a run's network and finds their place in its routing space."""

    def __init__(self, predictor: Predictor, space: RoutingSpace | None, maps: Maps | None) -> None:
        self.predictor, self.space, self.maps = predictor, space, maps

    def route(
        self, image_CHW: torch.Tensor, *, threshold: float, view: View | None, seed: int, index: int | None
    ) -> dict[str, Any]:
        """Routes an image.

        Args:
            image_CHW: The image, as uint8 in the network's shape.
            threshold: Run probability from which a block runs.
            view: Augmentation to route as well.
            seed: Seed of the augmentation.
            index: Index of the image if it is a test image.

        Returns:
            The answer as JSON.
        """
        image_1CHW = self.predictor.normalise(image_CHW[None])
        image, point_N = self._route(image_1CHW, threshold)
        image["picture"] = _data_url(image_CHW)
        answer: dict[str, Any] = {"threshold": threshold, "image": image, "index": index}
        if view is not None:
            answer["view"] = self._view(image_1CHW, view, seed, threshold, image["path"])
        if self.space is not None:
            answer["neighbours"] = self._neighbours(self.space, point_N, index)
        if self.maps is not None:
            answer["place"] = self.maps.places(point_N)
        return answer

    def _route(self, image_1CHW: torch.Tensor, threshold: float) -> tuple[dict[str, Any], torch.Tensor]:
        """Class, path and cost of an image, and its relaxed path."""
        predictor = self.predictor
        routing = predictor.route(image_1CHW, threshold=threshold)
        probability_K, path_N, point_N = (part[0] for part in routing)
        if not (probability_K.isfinite().all() and point_N.isfinite().all()):
            raise RefusedError(422, "The network computes NaN or infinity on this image; its weights may be damaged.")
        confidence, best = probability_K.topk(min(TOP, len(probability_K)))
        macs = float(predictor.table.path_macs(routing.path_BN)[0])
        return {
            "top": [
                {"label": label, "confidence": round(value, 6)}
                for label, value in zip(best.tolist(), confidence.tolist(), strict=True)
            ],
            "path": path_N.int().tolist(),
            # A static network has no routers.
            "run_probability": None
            if predictor.model.routers is None
            else [
                rounded(probability, threshold, runs=ran > 0.5)
                for probability, ran in zip(point_N.tolist(), path_N.tolist(), strict=True)
            ],
            "blocks_run": int(path_N.sum()),
            "macs": macs,
            "cost_share": macs / predictor.table.static_macs,
        }, point_N

    def _view(
        self, image_1CHW: torch.Tensor, view: View, seed: int, threshold: float, path: list[int]
    ) -> dict[str, Any]:
        view_1CHW = make_view(image_1CHW, view, seed=seed)
        answer, _ = self._route(view_1CHW, threshold)
        mean_C, std_C = self.predictor.mean_C, self.predictor.std_C
        bytes_CHW = view_1CHW[0] * std_C[:, None, None] + mean_C[:, None, None]
        answer["picture"] = _data_url(bytes_CHW.round().clamp(0, 255).to(torch.uint8))
        answer["name"] = view.value
        answer["differs"] = [
            k for k, (ran, ran_here) in enumerate(zip(path, answer["path"], strict=True)) if ran != ran_here
        ]
        return answer

    def _neighbours(self, space: RoutingSpace, point_N: torch.Tensor, index: int | None) -> list[dict[str, Any]]:
        return [
            {
                "index": neighbour.image,
                "distance": round(neighbour.distance, 4),
                "label": int(space.paths.label_T[neighbour.image]),
                **_routed(space.paths, neighbour.image),
            }
            for neighbour in space.nearest(point_N, NEIGHBOURS, exclude=index)
        ]


def rounded(probability: float, threshold: float, *, runs: bool) -> float:
    """A run probability in four digits, but never on the other side of the threshold than the decision."""
    value = round(probability, 4)
    if runs:
        return max(value, threshold)
    return value if value < threshold else math.nextafter(threshold, -math.inf)
