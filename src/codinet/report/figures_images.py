"""Figures of images: strips with a line of text under each. Knows nothing of why they were chosen."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from codinet.report.style import FEW_TO_MANY, INK, Axes, Figure, panels, styled

TILE = 1.0  # everything is laid out in tiles; images keep their proportions inside one
TEXT = 0.36


class Strip(NamedTuple):
    """A titled row of images; `path` is drawn beside the title, run blocks filled."""

    title: str
    images_ICHW: torch.Tensor  # uint8
    captions: list[str]
    path: Sequence[int] | None = None


@styled
def strips(rows: Sequence[Strip], *, columns: int = 8) -> Figure:
    """Each strip under its title, wrapped after `columns` images."""
    heads, height = [], 0.0
    for row in rows:
        heads.append(height)
        height += 0.45 + -(-len(row.captions) // columns) * (TILE + TEXT)
    scale = 6.8 / columns
    figure, [[axes]] = panels(1, 1, width=6.8, height=height * scale)
    for top, row in zip(heads, rows, strict=True):
        axes.text(0.02, top + 0.22, row.title, va="center", fontsize=8.5, fontweight="bold")
        if row.path is not None:
            _path(axes, row.path, top + 0.12, columns)
        for place, (image_CHW, caption) in enumerate(zip(row.images_ICHW, row.captions, strict=True)):
            x = place % columns * TILE
            y = top + 0.42 + place // columns * (TILE + TEXT)
            inset = 0.03
            axes.imshow(
                _pixels(image_CHW),
                extent=(x + inset, x + TILE - inset, y + TILE - inset, y + inset),
                interpolation="none",
            )
            axes.text(x + TILE / 2, y + TILE + 0.02, caption, ha="center", va="top", fontsize=7)
    axes.set(xlim=(0, columns * TILE), ylim=(height, 0), aspect="equal")
    axes.axis("off")
    return figure


def _path(axes: Axes, path: Sequence[int], top: float, columns: int) -> None:
    """Blocks as small squares at the right end of the title's line."""
    side = min(0.2, 0.62 * columns / len(path))
    left = columns * TILE - side * len(path)
    for block, ran in enumerate(path):
        axes.fill(
            [left + (block + dx) * side for dx in (0.08, 0.92, 0.92, 0.08)],
            [top + dy * 0.2 for dy in (0, 0, 1, 1)],
            facecolor=FEW_TO_MANY(0.0) if ran else "none",
            edgecolor=FEW_TO_MANY(0.0) if ran else INK,
            linewidth=0.5,
        )


def _pixels(image_CHW: torch.Tensor) -> np.ndarray:
    colours = image_CHW if len(image_CHW) == 3 else image_CHW[:1].expand(3, -1, -1)
    return colours.permute(1, 2, 0).numpy()
