"""The front of accuracy over cost. Numbers only."""

import math
from collections.abc import Sequence


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Places of the (cost, accuracy) points that no other beats, cheapest first.

    A point is beaten by one that costs no more and is no less accurate, and better in one of the two; equal
    points do not beat each other.
    """
    order = sorted(range(len(points)), key=lambda place: (points[place][0], -points[place][1]))
    kept: list[int] = []
    best = (math.inf, -math.inf)  # the last point kept
    for place in order:
        if points[place][1] > best[1] or tuple(points[place]) == best:
            kept.append(place)
            best = (points[place][0], points[place][1])
    return kept
