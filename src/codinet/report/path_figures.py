"""Figures of paths: which blocks run, how many paths there are, and what augmentation changes.

Each `draw_…` takes plain data and returns a figure; the function after it adds description and caption for a report.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from codinet.analysis.measures import KL_EDGES, accuracy_by_blocks, class_block_rates, histogram
from codinet.records import PathTable
from codinet.report.drawing import (
    FAINT,
    INK,
    RATES,
    Axes,
    Figure,
    colour_bar,
    colours_of,
    integer_ticks,
    legend_columns,
    panels,
    shorten,
    styled,
)
from codinet.report.page import ReportFigure
from codinet.report.run_data import Run, run_colours


@styled
def draw_run_rates(paths: PathTable, classes: Sequence[str], groups: Sequence[int]) -> Figure:
    """Heat map: the fraction of each class's images that run a block.

    Args:
        paths: The paths of the images.
        classes: Names of the classes; those without images stay blank.
        groups: Number of blocks in each group of the network; white lines separate the groups.
    """
    rate_KN = class_block_rates(paths, len(classes)).numpy()
    number, blocks = rate_KN.shape
    height = min(9.0, 1.3 + 0.22 * number)
    figure, [[axes]] = panels(1, 1, width=max(4.6, min(9.0, 2.2 + 0.28 * blocks)), height=height)
    image = axes.imshow(rate_KN, cmap=RATES, vmin=0, vmax=1, aspect="auto", interpolation="none")
    for border in np.cumsum(groups)[:-1]:
        axes.axvline(border - 0.5, color="white", linewidth=2.5)
    starts = np.cumsum([0, *groups[:-1]])
    for group, (start, length) in enumerate(zip(starts, groups, strict=True), start=1):
        axes.text(start + (length - 1) / 2, -0.62, f"group {group}", ha="center", va="bottom", fontsize=8)
    every = max(1, blocks // 18)
    axes.set_xticks(range(0, blocks, every), [str(block + 1) for block in range(0, blocks, every)])
    step = 1 if number <= 30 else max(1, number // 20)
    axes.set_yticks(range(0, number, step), [shorten(str(classes[k])) for k in range(0, number, step)])
    axes.set(xlabel="block", ylabel="class")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    colour_bar(figure, image, axes, "fraction of images that run it")
    return figure


def run_rates(run: Run) -> ReportFigure:
    rate_KN = class_block_rates(run.paths, len(run.classes))
    on, off = int((rate_KN.nan_to_num(1) == 1).all(dim=0).sum()), int((rate_KN.nan_to_num(0) == 0).all(dim=0).sum())
    blocks = rate_KN.shape[1]
    return ReportFigure(
        f"run-rates-{run.slug}",
        draw_run_rates(run.paths, run.classes, run.groups),
        f"Heat map of {len(run.classes)} classes by {blocks} blocks for {run.name}: {on} blocks run for every image, "
        f"{off} for none, and {blocks - on - off} depend on the image.",
        f"{run.name}: the fraction of each class's images that run a block. A column of one colour is a block that "
        "does not depend on the class; white lines separate the groups of the network.",
    )


@styled
def draw_blocks_run(runs: Mapping[str, PathTable], colours: Mapping[str, str] | None = None) -> Figure:
    """A panel per run: the number of images by blocks run (bars), and their accuracy (dots).

    Args:
        runs: The paths of each run.
        colours: The colour of each run. Default: by position.
    """
    colours = colours_of(runs, colours)
    columns = min(2, len(runs))
    rows = -(-len(runs) // columns)
    figure, axes_RC = panels(rows, columns, width=3.5 if columns > 1 else 4.8, height=2.3)
    for axes in axes_RC.flat[len(runs) :]:
        axes.set_visible(False)
    for axes, (name, paths) in zip(axes_RC.flat, runs.items(), strict=False):
        bins = accuracy_by_blocks(paths)
        blocks = [row["blocks"] for row in bins]
        axes.bar(blocks, [row["images"] for row in bins], color=colours[name], alpha=0.75, width=0.85)
        axes.set(title=shorten(name, 36), xlabel="blocks run", ylabel="images")
        integer_ticks(axes)
        axes.set_xlim(-0.6, paths.path_TN.shape[1] + 0.6)
        right = axes.twinx()
        accuracies = [row["accuracy"] for row in bins]
        # A dot on a bar stays visible because of its rim.
        right.plot(blocks, accuracies, "o", color=INK, markersize=5, markeredgecolor="white", markeredgewidth=0.8)
        right.set_ylabel("accuracy, % (dots)")
        low = min([90.0, *accuracies])
        right.set_ylim(low - 0.08 * (100 - low), 100 + 0.08 * (100 - low))  # a dot at 100 % is whole
        right.set_yticks([tick for tick in right.get_yticks() if low <= tick <= 100])
        right.spines["right"].set_visible(True)
    return figure


def blocks_run(runs: Sequence[Run]) -> ReportFigure:
    means = "; ".join(f"{run.name} {run.evaluation['mean_blocks']:.2f} on average" for run in runs)
    return ReportFigure(
        "blocks-run",
        draw_blocks_run({run.name: run.paths for run in runs}, run_colours(runs)),
        f"Histograms of blocks run per image, with the accuracy of each bar. {means}.",
        "How many blocks images run (bars), and the accuracy of these images (dots, right axis).",
    )


@styled
def draw_path_counts(
    distinct: Mapping[str, int], entropy: Mapping[str, float], colours: Mapping[str, str] | None = None
) -> Figure:
    """Bars: distinct paths, and the entropy of the distribution over them, of each run.

    Args:
        distinct: The number of distinct paths of each run.
        entropy: The entropy of each run, in bits.
        colours: The colour of each run. Default: by position.
    """
    names = list(distinct)
    bar_colours = list(colours_of(names, colours).values())
    figure, [[left, right]] = panels(1, 2, width=3.4, height=0.9 + 0.34 * len(names), sharey=True)
    charts: tuple[tuple[Axes, list[float], str, str], ...] = (
        (left, [float(distinct[name]) for name in names], "distinct paths", "{:.0f}"),
        (right, [entropy[name] for name in names], "path entropy, bits", "{:.2f}"),
    )
    for axes, values, title, form in charts:
        bars = axes.barh(range(len(names)), values, color=bar_colours, height=0.62)
        axes.bar_label(bars, labels=[form.format(value) for value in values], padding=3, fontsize=8)
        axes.set(title=title)
        axes.set_xlim(0, max([1e-9, *values]) * 1.2)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color=FAINT)
    integer_ticks(left)
    left.set_yticks(range(len(names)), [shorten(name, 30) for name in names])
    left.invert_yaxis()
    return figure


def path_counts(runs: Sequence[Run]) -> ReportFigure:
    distinct = {run.name: int(run.evaluation["distinct_paths"]) for run in runs}
    entropy = {run.name: float(run.evaluation["path_entropy"]) for run in runs}
    values = "; ".join(f"{name}: {distinct[name]} paths, {entropy[name]:.2f} bits" for name in distinct)
    return ReportFigure(
        "path-numbers",
        draw_path_counts(distinct, entropy, run_colours(runs)),
        f"Bars of distinct paths and path entropy. {values}.",
        "Distinct paths on the test set, and the entropy of the distribution of images over them. An entropy of b bits "
        "corresponds to 2^b equally common paths.",
    )


@styled
def draw_same_path(fractions: Mapping[str, Mapping[str, float]], colours: Mapping[str, str] | None = None) -> Figure:
    """Bars: the fraction of pairs (original, augmented) with the same path, by run and kind of augmentation.

    Args:
        fractions: The fraction of each kind of augmentation, by run.
        colours: The colour of each run. Default: by position.
    """
    names = list(fractions)
    colours = colours_of(names, colours)
    kinds = list(dict.fromkeys(kind for run in fractions.values() for kind in run))
    figure, [[axes]] = panels(1, 1, width=6.6, height=2.5)
    width = 0.84 / len(names)
    for index, name in enumerate(names):
        left = -0.42 + width * (index + 0.5)
        heights = [fractions[name].get(kind, float("nan")) for kind in kinds]
        bars = axes.bar(
            [i + left for i in range(len(kinds))], heights, width=width * 0.94, color=colours[name], label=name
        )
        if len(names) <= 4:
            axes.bar_label(bars, fmt=lambda value: f"{100 * value:.0f} %", fontsize=7.5, padding=1)
    axes.set_xticks(range(len(kinds)), kinds)
    axes.tick_params(axis="x", length=0)
    axes.set(ylabel="pairs with the same path", ylim=(0, 1.08))
    axes.grid(axis="y")
    if len(names) > 1:
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=legend_columns(names))
    return figure


def same_path(runs: Sequence[Run]) -> ReportFigure:
    fractions = {}
    for run in runs:
        consistency = run.analysis.figures["consistency"]
        kinds = {kind: values["mean"] for kind, values in consistency["same_path_kinds"].items()}
        fractions[run.name] = {**kinds, "overall": consistency["same_path"]}
    values = "; ".join(f"{name} {100 * kinds['overall']:.1f} % overall" for name, kinds in fractions.items())
    return ReportFigure(
        "same-path",
        draw_same_path(fractions, run_colours(runs)),
        f"Bars: the fraction of image pairs, original and augmented, with identical paths, by augmentation. {values}.",
        "Pairs of an image and its augmentation that run the same blocks. Each image gets one augmentation; the four "
        "kinds are equally frequent. A run with fewer paths has more such pairs by chance; one with a single path has "
        "only such pairs.",
    )


@styled
def draw_kl_histogram(kl: Mapping[str, torch.Tensor], colours: Mapping[str, str] | None = None) -> Figure:
    """Histogram of the KL divergence between predictions of original and augmented images, by run.

    Args:
        kl: The divergence of each image, by run.
        colours: The colour of each run. Default: by position.
    """
    bar_colours = list(colours_of(kl, colours).values())
    figure, [[axes]] = panels(1, 1, width=6.6, height=2.8)
    width = 0.84 / len(kl)
    labels = [f"{name}: mean {float(kl_T.double().mean()):.3g}" for name, kl_T in kl.items()]
    for index, (label, kl_T) in enumerate(zip(labels, kl.values(), strict=True)):
        left = -0.42 + width * (index + 0.5)
        heights = histogram(kl_T, KL_EDGES).tolist()
        axes.bar([i + left for i in range(len(heights))], heights, width=width, color=bar_colours[index], label=label)
    # An edge is labelled at the border between its two bins.
    names = ["0", *(f"{edge:g}" if index % 2 == 0 else "" for index, edge in enumerate(KL_EDGES[1:]))]
    axes.set_xticks([i - 0.5 for i in range(len(KL_EDGES))], names)
    axes.set(xlabel="KL divergence, nats (logarithmic except for the first bin)", ylabel="fraction of images")
    axes.grid(axis="y")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=legend_columns(labels))
    return figure


def kl_histogram(runs: Sequence[Run]) -> ReportFigure:
    means = "; ".join(f"{run.name} mean {run.analysis.figures['kl']['mean']:.3f}" for run in runs)
    return ReportFigure(
        "kl",
        draw_kl_histogram({run.name: run.analysis.tensors["kl"] for run in runs}, run_colours(runs)),
        f"Histogram of the KL divergence between predictions of original and augmented images, in nats. {means}.",
        "KL divergence from the prediction for an image to that for its augmentation. Further left is more consistent.",
    )
