"""Figures of the routing space: where relaxed paths lie, by class, by expected blocks, by image.

All panels of a kind share their scale, as in the paper: a tight cloud looks tight.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from codinet.report.style import (
    FAINT,
    FEW_TO_MANY,
    INK,
    Axes,
    Figure,
    bare,
    colour,
    colour_bar,
    panels,
    shorten,
    styled,
)

POINT = 5.0
HIGHLIGHTED = 5  # classes of the paper's figures: airplane, automobile, bird, cat, deer


class Cloud(NamedTuple):
    """The same images in one or two maps (PCA, then t-SNE where there is one), and what to colour them by."""

    name: str
    maps: dict[str, torch.Tensor]  # title → coordinates (E × 2)
    label_E: torch.Tensor
    blocks_E: torch.Tensor  # expected number of blocks run


@styled
def by_class(clouds: Sequence[Cloud], classes: Sequence[str]) -> Figure:
    """A row a run: its maps, coloured by class; of more than ten classes, the ten most common."""
    figure, axes_RM, limits = _grid([cloud.maps for cloud in clouds], [cloud.name for cloud in clouds])
    coloured = _most_common(torch.cat([cloud.label_E for cloud in clouds]), 10)
    for cloud, axes_M in zip(clouds, axes_RM, strict=True):
        for (title, x_E2), axes in zip(cloud.maps.items(), axes_M, strict=False):
            _dots(axes, x_E2, FAINT)
            for place, label in enumerate(coloured):
                _dots(axes, x_E2[cloud.label_E == label], colour(place))
            _frame(axes, limits[title])
    dots = [
        axes_RM[0][0].scatter([], [], s=18, color=colour(place), label=str(classes[label]), linewidths=0)
        for place, label in enumerate(coloured)
    ]
    figure.legend(handles=dots, loc="outside lower center", ncols=5, columnspacing=1.2, handletextpad=0.2)
    return figure


@styled
def by_blocks(clouds: Sequence[Cloud]) -> Figure:
    """A row a run: its maps, coloured by the expected number of run blocks (the paper's blue to red)."""
    figure, axes_RM, limits = _grid([cloud.maps for cloud in clouds], [cloud.name for cloud in clouds])
    low = min(float(cloud.blocks_E.min()) for cloud in clouds)
    high = max(float(cloud.blocks_E.max()) for cloud in clouds)
    drawn = None
    for cloud, axes_M in zip(clouds, axes_RM, strict=True):
        for (title, x_E2), axes in zip(cloud.maps.items(), axes_M, strict=False):
            drawn = axes.scatter(
                *x_E2.T.numpy(),
                c=cloud.blocks_E.numpy(),
                cmap=FEW_TO_MANY,
                vmin=low,
                vmax=max(high, low + 1e-6),
                s=POINT,
                linewidths=0,
                rasterized=True,
            )
            _frame(axes, limits[title])
    colour_bar(figure, drawn, axes_RM.ravel().tolist(), "expected number of run blocks")
    return figure


@styled
def augmentation_groups(names: Sequence[str], maps: Sequence[dict[str, torch.Tensor]], views: int) -> Figure:
    """A row a run: augmentations of the same image in the same colour (colours repeat over the images)."""
    figure, axes_RM, limits = _grid(maps, names)
    for run_maps, axes_M in zip(maps, axes_RM, strict=True):
        for (title, x_G2), axes in zip(run_maps.items(), axes_M, strict=False):
            group_G = np.arange(len(x_G2)) // views
            # Neighbouring hues and two lightnesses: 150 groups cannot all be told apart, neighbours should be.
            colours = [colour(int(group * 7) % 10) for group in group_G]
            axes.scatter(*x_G2.T.numpy(), c=colours, s=POINT, linewidths=0, rasterized=True)
            _frame(axes, limits[title])
    return figure


@styled
def classes_in_rows(clouds: Sequence[Cloud], classes: Sequence[str]) -> Figure:
    """The paper's grid: a row a run (say, one m_d each), a column a class, that class over all the others."""
    number = min(HIGHLIGHTED, len(classes))
    title = "t-SNE" if all("t-SNE" in cloud.maps for cloud in clouds) else "PCA"
    figure, axes_RK = panels(len(clouds), number, width=1.45, height=1.5)
    limit = _limit([cloud.maps[title] for cloud in clouds])
    for row, cloud in enumerate(clouds):
        for label in range(number):
            axes, x_E2 = axes_RK[row][label], cloud.maps[title]
            _dots(axes, x_E2, FAINT, size=2.0, alpha=0.35)
            _dots(axes, x_E2[cloud.label_E == label], colour(label), size=4.0)
            _frame(axes, limit)
            if row == 0:
                axes.set_title(str(classes[label]))
        axes_RK[row][0].set_ylabel(shorten(cloud.name, 22))
    return figure


def _grid(
    maps: Sequence[dict[str, torch.Tensor]], names: Sequence[str]
) -> tuple[Figure, np.ndarray, dict[str, np.ndarray]]:
    """A row a run, a column a map; panels of a map that a run lacks stay empty and say so."""
    titles = list(dict.fromkeys(title for run_maps in maps for title in run_maps))
    size = 3.2 if len(titles) > 1 else 4.2
    figure, axes_RM = panels(len(maps), len(titles), width=size, height=size * 0.86)
    for row, (name, run_maps) in enumerate(zip(names, maps, strict=True)):
        for column, title in enumerate(titles):
            axes = axes_RM[row][column]
            if row == 0:
                axes.set_title(title)
            if column == 0:
                axes.set_ylabel(shorten(name, 40))
            if title not in run_maps:
                axes.text(0.5, 0.5, f"no {title}:\nfewer than three distinct paths", ha="center", va="center")
                axes.set(xlim=(0, 1), ylim=(0, 1))
                bare(axes)
    limits = {title: _limit([run_maps[title] for run_maps in maps if title in run_maps]) for title in titles}
    return figure, axes_RM, limits


def _limit(maps: Sequence[torch.Tensor]) -> np.ndarray:
    """Half the side of a square about the middle of any of the maps that holds all of it."""
    spans = [float((x_E2.max(dim=0).values - x_E2.min(dim=0).values).max()) for x_E2 in maps]
    return np.array(max([*spans, 1e-3]) / 2 * 1.06)


def _frame(axes: Axes, half: np.ndarray) -> None:
    """The same scale in every panel, about the panel's own middle."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    axes.set(xlim=((left + right) / 2 - half, (left + right) / 2 + half))
    axes.set(ylim=((bottom + top) / 2 - half, (bottom + top) / 2 + half))
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(INK)
    axes.spines[:].set_alpha(0.4)
    bare(axes)


def _dots(axes: Axes, x_E2: torch.Tensor, shade: str, *, size: float = POINT, alpha: float = 0.8) -> None:
    x_E, y_E = x_E2.T.numpy()
    axes.scatter(x_E, y_E, color=shade, s=size, alpha=alpha, linewidths=0, rasterized=True)


def _most_common(label_E: torch.Tensor, most: int) -> list[int]:
    counts = torch.bincount(label_E)
    chosen = counts.argsort(descending=True, stable=True)[:most]
    return sorted(int(label) for label in chosen if counts[label] > 0)
