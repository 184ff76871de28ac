"""Figures of the routing space: maps of relaxed paths, and path similarity against feature similarity.

All panels with the same kind of map have the same scale, as in the paper: a tight cluster looks tight. Each `draw_…`
takes plain data and returns a figure; `routing_space` and `similarity` add descriptions and captions for a report.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from codinet.report.drawing import (
    FAINT,
    FEW_TO_MANY,
    INK,
    Axes,
    Figure,
    colour,
    colour_bar,
    colours_of,
    hide_ticks,
    panels,
    shorten,
    styled,
)
from codinet.report.page import ReportFigure
from codinet.report.run_data import Run, row_names, run_colours

POINT = 5.0
MOST_COLOURS = 10  # classes or images with a colour of their own
HIGHLIGHTED = 5  # classes, as in the paper's figures: airplane, automobile, bird, cat, deer

Maps = dict[str, torch.Tensor]
"""Coordinates (E × 2) by the title of the map: PCA, and t-SNE if available."""


class Cloud(NamedTuple):
    """The images of a run in one or two maps, and the values that give their colours."""

    name: str
    maps: Maps
    label_E: torch.Tensor
    blocks_E: torch.Tensor  # expected number of blocks run


def routing_space(runs: Sequence[Run], suffix: str) -> list[ReportFigure]:
    """The maps coloured by class, by expected blocks and by image, and the paper's grid of classes.

    Args:
        runs: Runs on the same data set.
        suffix: Distinguishes the names of the figures from those of another data set.
    """
    clouds = [_cloud(run, name) for run, name in zip(runs, row_names(runs), strict=True)]
    classes, names = runs[0].classes, ", ".join(cloud.name for cloud in clouds)
    embedding = runs[0].analysis.figures["embedding"]
    views, groups = embedding["views"], embedding["groups"]
    view_maps = [_maps(run, "group_pca", "group_tsne") for run in runs]
    titles = list(dict.fromkeys(title for cloud in clouds for title in cloud.maps))
    rows = f", a row per run: {names}" if len(runs) > 1 else f" of {names}"
    scale = " All rows have the same scale." if len(runs) > 1 else ""
    coloured = _most_common(torch.cat([cloud.label_E for cloud in clouds]), MOST_COLOURS)
    rest = f" The {len(coloured)} most common classes are coloured, the others are grey." if _has_rest(clouds) else ""
    return [
        ReportFigure(
            f"space-class{suffix}",
            draw_by_class(clouds, classes),
            f"Maps ({' and '.join(titles)}) of {len(clouds[0].label_E):,} relaxed paths coloured by class{rows}.",
            "Relaxed paths, coloured by class: the probability that each block runs, one number per block. "
            f"{_map_words(titles)}{scale}{rest}",
        ),
        ReportFigure(
            f"space-blocks{suffix}",
            draw_by_blocks(clouds),
            f"The same maps coloured by the expected number of blocks run{rows}.",
            "The same maps, coloured by the expected number of blocks run: blue few, orange many.",
        ),
        ReportFigure(
            f"space-groups{suffix}",
            draw_augmented_views([cloud.name for cloud in clouds], view_maps, views),
            f"Maps of the relaxed paths of {views} augmentations of each of {groups} images, one colour per "
            f"image{rows}.",
            f"{views} augmentations of each of {groups} images. Dots of an image have the same colour"
            f"{'; ten colours repeat' if groups > MOST_COLOURS else ''}. Consistent routing keeps the dots of an image "
            "together.",
        ),
        ReportFigure(
            f"space-grid{suffix}",
            draw_class_grid(clouds, classes),
            f"Small maps, a column per class: this class is coloured, the others are grey{rows}.",
            f"One class at a time in the {_grid_map(clouds)} map: the column's class is coloured, all other images are "
            f"grey.{_first_classes(classes)}{scale}",
        ),
    ]


def _map_words(titles: Sequence[str]) -> str:
    words = {"PCA": "PCA preserves distances as well as two axes can", "t-SNE": "t-SNE preserves neighbours"}
    return "; ".join(words[title] for title in titles) + "."


def _first_classes(classes: Sequence[str]) -> str:
    if len(classes) <= HIGHLIGHTED:
        return ""
    return f" Only the first {HIGHLIGHTED} of {len(classes)} classes are shown, as in the paper's figures."


def _has_rest(clouds: Sequence[Cloud]) -> bool:
    """Whether there are more classes than colours."""
    return len(torch.cat([cloud.label_E for cloud in clouds]).unique()) > MOST_COLOURS


def _cloud(run: Run, name: str) -> Cloud:
    """The images of the run's t-SNE."""
    tensors = run.analysis.tensors
    chosen_E = tensors["tsne_index"]
    maps = {title: x[chosen_E] if title == "PCA" else x for title, x in _maps(run, "pca", "tsne").items()}
    return Cloud(name, maps, run.paths.label_T[chosen_E], tensors["expected_blocks"][chosen_E])


def _maps(run: Run, pca: str, tsne: str) -> Maps:
    tensors = run.analysis.tensors
    return {"PCA": tensors[pca]} | ({"t-SNE": tensors[tsne]} if tsne in tensors else {})


@styled
def draw_by_class(clouds: Sequence[Cloud], classes: Sequence[str]) -> Figure:
    """A row per run: its maps, coloured by class; with more than ten classes, only the ten most common."""
    figure, axes_RM, limits = _grid([cloud.maps for cloud in clouds], [cloud.name for cloud in clouds])
    coloured = _most_common(torch.cat([cloud.label_E for cloud in clouds]), MOST_COLOURS)
    for cloud, axes_M in zip(clouds, axes_RM, strict=True):
        for (title, x_E2), axes in zip(cloud.maps.items(), axes_M, strict=False):
            _dots(axes, x_E2, FAINT)
            for index, label in enumerate(coloured):
                _dots(axes, x_E2[cloud.label_E == label], colour(index))
            _frame(axes, limits[title])
    dots = [
        axes_RM[0][0].scatter([], [], s=18, color=colour(index), label=str(classes[label]), linewidths=0)
        for index, label in enumerate(coloured)
    ]
    figure.legend(handles=dots, loc="outside lower center", ncols=5, columnspacing=1.2, handletextpad=0.2)
    return figure


@styled
def draw_by_blocks(clouds: Sequence[Cloud]) -> Figure:
    """A row per run: its maps, coloured by the expected number of blocks run."""
    figure, axes_RM, limits = _grid([cloud.maps for cloud in clouds], [cloud.name for cloud in clouds])
    low = min(float(cloud.blocks_E.min()) for cloud in clouds)
    high = max(float(cloud.blocks_E.max()) for cloud in clouds)
    points = None
    for cloud, axes_M in zip(clouds, axes_RM, strict=True):
        for (title, x_E2), axes in zip(cloud.maps.items(), axes_M, strict=False):
            points = axes.scatter(
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
    colour_bar(figure, points, axes_RM.ravel().tolist(), "expected number of blocks run")
    return figure


@styled
def draw_augmented_views(names: Sequence[str], maps: Sequence[Maps], views: int) -> Figure:
    """A row per run: `views` consecutive points are augmentations of one image and have the same colour."""
    figure, axes_RM, limits = _grid(maps, names)
    for run_maps, axes_M in zip(maps, axes_RM, strict=True):
        for (title, x_V2), axes in zip(run_maps.items(), axes_M, strict=False):
            # Consecutive images get different colours.
            colours = [colour(int(image * 7) % MOST_COLOURS) for image in np.arange(len(x_V2)) // views]
            axes.scatter(*x_V2.T.numpy(), c=colours, s=POINT, linewidths=0, rasterized=True)
            _frame(axes, limits[title])
    return figure


@styled
def draw_class_grid(clouds: Sequence[Cloud], classes: Sequence[str]) -> Figure:
    """The paper's grid: a row per run, a column per class, with this class in colour and the others in grey."""
    number = min(HIGHLIGHTED, len(classes))
    title = _grid_map(clouds)
    figure, axes_RK = panels(len(clouds), number, width=1.45, height=1.5)
    limit = _half_side([cloud.maps[title] for cloud in clouds])
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


def _grid_map(clouds: Sequence[Cloud]) -> str:
    """The map that the grid of classes shows: t-SNE if every run has it."""
    return "t-SNE" if all("t-SNE" in cloud.maps for cloud in clouds) else "PCA"


def _grid(maps: Sequence[Maps], names: Sequence[str]) -> tuple[Figure, np.ndarray, dict[str, float]]:
    """A figure with a row per run and a column per map, and the limit of each map; missing maps are marked."""
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
                axes.text(
                    0.5, 0.5, f"no {title}: not computed, or\nfewer than three distinct paths", ha="center", va="center"
                )
                axes.set(xlim=(0, 1), ylim=(0, 1))
                hide_ticks(axes)
    limits = {title: _half_side([run_maps[title] for run_maps in maps if title in run_maps]) for title in titles}
    return figure, axes_RM, limits


def _half_side(maps: Sequence[torch.Tensor]) -> float:
    """Half the side of a square that is large enough for each of the maps."""
    spans = [float((x_E2.max(dim=0).values - x_E2.min(dim=0).values).max()) for x_E2 in maps]
    return max([*spans, 1e-3]) / 2 * 1.06


def _frame(axes: Axes, half: float) -> None:
    """Set the limits to a square about the middle of the panel."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    axes.set(xlim=((left + right) / 2 - half, (left + right) / 2 + half))
    axes.set(ylim=((bottom + top) / 2 - half, (bottom + top) / 2 + half))
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(INK)
    axes.spines[:].set_alpha(0.4)
    hide_ticks(axes)


def _dots(axes: Axes, x_E2: torch.Tensor, shade: str, *, size: float = POINT, alpha: float = 0.8) -> None:
    x_E, y_E = x_E2.T.numpy()
    axes.scatter(x_E, y_E, color=shade, s=size, alpha=alpha, linewidths=0, rasterized=True)


def _most_common(label_E: torch.Tensor, limit: int) -> list[int]:
    counts = torch.bincount(label_E)
    chosen = counts.argsort(descending=True, stable=True)[:limit]
    return sorted(int(label) for label in chosen if counts[label] > 0)


@styled
def draw_similarity(
    pairs: Mapping[str, tuple[torch.Tensor, torch.Tensor]],
    notes: Mapping[str, str],
    colours: Mapping[str, str] | None = None,
) -> Figure:
    """A panel per run: scatter of feature similarity and path similarity; on the dotted line they are equal.

    Args:
        pairs: (path similarity, feature similarity) of pairs of images, by run.
        notes: The second line of each title, by run.
        colours: The colour of each run. Default: by position.
    """
    colours = colours_of(pairs, colours)
    columns = min(2, len(pairs))
    rows = -(-len(pairs) // columns)
    figure, axes_RC = panels(rows, columns, width=3.3 if columns > 1 else 4.2, height=3.1)
    for axes in axes_RC.flat[len(pairs) :]:
        axes.set_visible(False)
    low_path, low_feature = (_lower_limit([pair[side] for pair in pairs.values()]) for side in (0, 1))
    for index, (name, (path_P, feature_P)) in enumerate(pairs.items()):
        axes = axes_RC.flat[index]
        axes.scatter(feature_P, path_P, s=4, alpha=0.35, color=colours[name], linewidths=0, rasterized=True)
        axes.plot([-1, 1], [-1, 1], ":", color=INK, linewidth=1)
        axes.set(xlim=(low_feature, 1.02), ylim=(low_path, 1.02), xlabel="feature similarity", ylabel="path similarity")
        axes.set_title(f"{shorten(name, 36)}\n{notes[name]}")
    return figure


def similarity(runs: Sequence[Run]) -> ReportFigure:
    pairs, notes = {}, {}
    for run in runs:
        correlation, tensors = run.analysis.figures["correlation"], run.analysis.tensors
        pairs[run.name] = tensors["pair_path"], tensors["pair_feature"]
        pcc = correlation["pcc_relaxed"]
        notes[run.name] = "PCC undefined: paths never vary" if pcc is None else f"PCC {pcc:.3f} (relaxed paths)"
    values = "; ".join(f"{name}: {note}" for name, note in notes.items())
    correlations = [run.analysis.figures["correlation"] for run in runs]
    over = dict.fromkeys(f"{found['which_pairs']} ({found['pairs']:,})" for found in correlations)
    drawn, features = [len(path_P) for path_P, _ in pairs.values()], _feature_words(runs)
    return ReportFigure(
        "similarity",
        draw_similarity(pairs, notes, run_colours(runs)),
        f"Scatter of feature similarity and path similarity of pairs of images. {values}.",
        f"Cosine similarity of relaxed paths against that of features, for {_numbers(drawn)} random pairs. PCC: "
        f"Pearson correlation over {' or '.join(over)}. Features: {features}.",
    )


def _numbers(values: Iterable[int]) -> str:
    return " or ".join(f"{value:,}" for value in sorted(set(values)))


def _feature_words(runs: Sequence[Run]) -> str:
    """Where the features of the runs come from, once if it is the same for all."""
    sources = {run.name: str(run.analysis.figures["correlation"]["features"]) for run in runs}
    if len(set(sources.values())) == 1:
        return next(iter(sources.values()))
    return "; ".join(f"{name}: {source}" for name, source in sources.items())


def _lower_limit(columns: Sequence[torch.Tensor]) -> float:
    """A round number below every value, at most 0.8 so that the axis is not too short."""
    least = min((float(values.min()) for values in columns if len(values)), default=0.0)
    return min(0.8, math.floor(least * 10) / 10)
