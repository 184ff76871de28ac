"""Names beside points without names on top of each other: the first free place of a few around each point."""

from collections.abc import Sequence

import numpy as np

from codinet.report.style import INK, Axes

_NEAR, _FAR = (8.0,), (16.0, 26.0, 38.0, 52.0, 68.0)  # distances, in hundredths of an inch
_TURNS = [0, 8, 4, 12, 2, 6, 14, 10, 1, 7, 15, 9, 3, 5, 13, 11]  # sixteenths of a circle, best first


def place_labels(
    axes: Axes,
    xy: Sequence[tuple[float, float]],
    texts: Sequence[str],
    *,
    size_px: tuple[float, float],
    fontsize: float = 7.0,
) -> None:
    """Annotate points; `size_px` is the axes' size at 100 dots an inch, as nearly as the caller knows it."""
    points = _on_paper(axes, xy, size_px)
    taken: list[tuple[float, float, float, float]] = [(x - 4, y - 4, x + 4, y + 4) for x, y in points]
    for (x, y), where, text in zip(points, xy, texts, strict=True):
        width, height = 0.62 * fontsize * 100 / 72 * len(text), 1.2 * fontsize * 100 / 72
        best: tuple[float, float, int] = (_NEAR[0], 0.0, 1)
        fewest = np.inf
        for reach in (*_NEAR, *_FAR):
            for turn in _TURNS if reach > 10 else _TURNS[:8]:
                dx, dy = reach * np.cos(turn * np.pi / 8), reach * np.sin(turn * np.pi / 8)
                right = 0 if turn in (4, 12) else 1 if dx > 0 else -1
                box = _box(x + dx, y + dy, width, height, right)
                clashes = sum(_overlap(box, other) for other in taken) + _outside(box, size_px)
                if clashes + reach / 1e4 < fewest:
                    best, fewest = (dx, dy, right), clashes + reach / 1e4
        dx, dy, right = best
        taken.append(_box(x + dx, y + dy, width, height, right))
        side = {1: "left", -1: "right", 0: "center"}[right]
        far = np.hypot(dx, dy) > 12
        axes.annotate(
            text,
            where,
            xytext=(dx * 0.72, dy * 0.72),
            textcoords="offset points",
            ha=side,
            va="center",
            fontsize=fontsize,
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": INK, "alpha": 0.6} if far else None,
        )


def _on_paper(axes: Axes, xy: Sequence[tuple[float, float]], size_px: tuple[float, float]) -> np.ndarray:
    inside = axes.transAxes.inverted()
    return inside.transform(axes.transData.transform(np.asarray(xy, dtype=float).reshape(-1, 2))) * np.asarray(size_px)


def _box(x: float, y: float, width: float, height: float, right: int) -> tuple[float, float, float, float]:
    left = x if right > 0 else x - width if right < 0 else x - width / 2
    return left, y - height / 2, left + width, y + height / 2


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> float:
    return float(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3])


def _outside(box: tuple[float, float, float, float], size_px: tuple[float, float]) -> float:
    return 2.0 * (box[0] < 0 or box[1] < 0 or box[2] > size_px[0] or box[3] > size_px[1])
