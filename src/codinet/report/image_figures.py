"""Figures of images: the easiest and hardest ones of a run, and images that share a path."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from codinet.report.drawing import FEW_TO_MANY, INK, Axes, Figure, panels, shorten, styled
from codinet.report.page import ReportFigure
from codinet.report.run_data import Run

TILE = 1.0  # side of the square for an image; the unit of the layout
TEXT = 0.36  # height of the text under an image


class Strip(NamedTuple):
    """A titled row of images; `path` is drawn beside the title."""

    title: str
    images_ICHW: torch.Tensor  # uint8
    captions: list[str]
    path: Sequence[int] | None = None


@styled
def draw_strips(rows: Sequence[Strip], *, columns: int = 8) -> Figure:
    """Strips of images below each other, each under its title and wrapped after `columns` images."""
    tops, height = [], 0.0
    for row in rows:
        tops.append(height)
        height += 0.45 + -(-len(row.captions) // columns) * (TILE + TEXT)
    scale = 6.8 / columns
    figure, [[axes]] = panels(1, 1, width=6.8, height=height * scale)
    for top, row in zip(tops, rows, strict=True):
        axes.text(0.02, top + 0.22, row.title, va="center", fontsize=8.5, fontweight="bold")
        if row.path is not None:
            _draw_path(axes, row.path, top + 0.12, columns)
        for index, (image_CHW, caption) in enumerate(zip(row.images_ICHW, row.captions, strict=True)):
            x = index % columns * TILE
            y = top + 0.42 + index // columns * (TILE + TEXT)
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


def _draw_path(axes: Axes, path: Sequence[int], top: float, columns: int) -> None:
    """Draw blocks as small squares at the right end of the title line, filled if they run."""
    side = min(0.2, 0.62 * columns / len(path))
    left = columns * TILE - side * len(path)
    for block, runs in enumerate(path):
        axes.fill(
            [left + (block + dx) * side for dx in (0.08, 0.92, 0.92, 0.08)],
            [top + dy * 0.2 for dy in (0, 0, 1, 1)],
            facecolor=FEW_TO_MANY(0.0) if runs else "none",
            edgecolor=FEW_TO_MANY(0.0) if runs else INK,
            linewidth=0.5,
        )


def _pixels(image_CHW: torch.Tensor) -> np.ndarray:
    rgb_CHW = image_CHW if len(image_CHW) == 3 else image_CHW[:1].expand(3, -1, -1)
    return rgb_CHW.permute(1, 2, 0).numpy()


def easiest_and_hardest(run: Run) -> ReportFigure:
    tensors = run.analysis.tensors
    blocks_T = run.paths.path_TN.long().sum(dim=1)
    few, many = int(blocks_T.min()), int(blocks_T.max())
    rows = [_strip(run, "Fewest blocks", tensors["easiest"]), _strip(run, "Most blocks", tensors["hardest"])]
    return ReportFigure(
        f"effort-{run.slug}",
        draw_strips(rows),
        f"Test images of {run.name} that run the fewest blocks (from {few}) and the most (up to {many}).",
        f"{run.name}: the easiest and the hardest images, by the number of blocks run. For the same number of blocks, "
        f"higher confidence counts as easier.{_wrong_words(rows)}",
    )


def shared_paths(run: Run) -> ReportFigure:
    rows, total = [], len(run.paths.label_T)
    for index, index_I in enumerate(run.analysis.tensors["shared"]):
        path_N = run.paths.path_TN[int(index_I[0])]
        count = int((run.paths.path_TN == path_N).all(dim=1).sum())
        title = f"path {index + 1}: {count:,} of {total:,} images, {int(path_N.sum())} blocks"
        rows.append(_strip(run, title, index_I, path_N.tolist()))
    titles = "; ".join(row.title for row in rows)
    return ReportFigure(
        f"sharing-{run.slug}",
        draw_strips(rows),
        f"Images of {run.name} that share a path, for its {len(rows)} most common paths. {titles}.",
        f"{run.name}: images that share a path, a row for each of the most common paths. Squares are blocks, filled if "
        f"they run.{_wrong_words(rows)}",
    )


def _wrong_words(rows: Sequence[Strip]) -> str:
    """Explains ✗ if it occurs."""
    wrong = any("✗" in caption for row in rows for caption in row.captions)
    return " A wrong prediction is written as class ✗ prediction." if wrong else ""


def _strip(run: Run, title: str, index_I: torch.Tensor, path: Sequence[int] | None = None) -> Strip:
    """The images with these indices (-1 for none), with their classes and, without a path, their numbers of blocks."""
    tensors, paths = run.analysis.tensors, run.paths
    index_I = index_I[index_I >= 0]
    captions = []
    for index in index_I.tolist():
        label, prediction = int(paths.label_T[index]), int(paths.prediction_T[index])
        name = shorten(run.classes[label], 14)
        if label != prediction:
            name = f"{shorten(run.classes[label], 8)} ✗ {shorten(run.classes[prediction], 8)}"
        captions.append(name if path else f"{name}\n{int(paths.path_TN[index].sum())} blocks")
    images_ICHW = tensors["shown_images"][torch.searchsorted(tensors["shown_index"], index_I)]
    return Strip(title, images_ICHW, captions, path)
