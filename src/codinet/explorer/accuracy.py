"""Accuracy and cost at any threshold.

A network of the zoo comes with a curve, which is interpolated. Otherwise the run's network is measured on a sample of
the test images when a threshold is first asked for.
"""

import bisect
from collections.abc import Sequence
from typing import Any

import torch

from codinet.explorer.answers import Gallery
from codinet.predictor import Predictor
from codinet.run_reader import CurvePoint

WORK = 50e9  # multiply-adds of one measurement if all blocks run: 1 to 2 s on two cores
LEAST, MOST = 50, 1000  # images of a sample
BATCH = 50
DIGITS = 2  # of a threshold, as on the slider; so there are at most 101 measurements


class ThresholdAccuracy:
    """Accuracy at a threshold, from a curve or by measuring. `at` may run in any thread.

    Args:
        predictor: The run's network.
        gallery: Its test images, if they are here.
        curve: Points that were measured before; they are preferred if there are at least two.
    """

    def __init__(self, predictor: Predictor, gallery: Gallery | None, curve: Sequence[CurvePoint]) -> None:
        self._predictor, self._curve = predictor, curve if len(curve) > 1 else ()
        self._gallery = gallery if gallery is not None and gallery.complete else None
        self._measured: dict[float, CurvePoint] = {}
        self._sample: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def known(self) -> bool:
        """Whether there is a curve, or a test set to measure on."""
        routed = self._predictor.model.routers is not None
        return routed and (bool(self._curve) or self._gallery is not None)

    def at(self, threshold: float) -> dict[str, Any]:
        """Accuracy and cost at a threshold, which is rounded to two digits.

        Args:
            threshold: Run probability from which a block runs.

        Returns:
            A `CurvePoint` as JSON, and whether it is interpolated.
        """
        threshold = round(threshold, DIGITS)
        if self._curve:
            point, interpolated = interpolate(self._curve, threshold)
            return {**point._asdict(), "interpolated": interpolated}
        if threshold not in self._measured:
            self._measured[threshold] = self._measure(threshold)
        return {**self._measured[threshold]._asdict(), "interpolated": False}

    def _measure(self, threshold: float) -> CurvePoint:
        predictor, table = self._predictor, self._predictor.table
        if self._sample is None:
            self._sample = self._read()
        right, macs, number = 0, 0.0, len(self._sample[1])
        for images_BCHW, labels_B in zip(*(part.split(BATCH) for part in self._sample), strict=True):
            routing = predictor.route(predictor.normalise(images_BCHW), threshold=threshold)
            right += int((routing.probability_BK.argmax(dim=1) == labels_B).sum())
            macs += float(table.path_macs(routing.path_BN).sum())
        return CurvePoint(threshold, 100 * right / number, macs / number / table.static_macs, number)

    def _read(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Evenly spaced test images and their labels; fewer if the network is expensive."""
        gallery = self._gallery
        assert gallery is not None
        number = min(len(gallery), max(LEAST, min(MOST, int(WORK / self._predictor.table.static_macs))))
        indices = torch.linspace(0, len(gallery) - 1, number).round().long().tolist()
        images = [gallery.image(index) for index in indices]
        return torch.stack(images), torch.tensor([gallery.label(index) for index in indices])


def interpolate(curve: Sequence[CurvePoint], threshold: float) -> tuple[CurvePoint, bool]:
    """The point of a curve at a threshold, and whether it lies between two measured points."""
    place = bisect.bisect_left([point.threshold for point in curve], threshold)
    if place < len(curve) and curve[place].threshold == threshold:
        return curve[place], False
    if place in (0, len(curve)):
        return curve[min(place, len(curve) - 1)]._replace(threshold=threshold), True
    low, high = curve[place - 1], curve[place]
    weight = (threshold - low.threshold) / (high.threshold - low.threshold)
    accuracy, cost = (a + weight * (b - a) for a, b in zip(low[1:3], high[1:3], strict=True))
    return CurvePoint(threshold, accuracy, cost, min(low.n, high.n)), True
