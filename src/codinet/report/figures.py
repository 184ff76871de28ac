"""Figures of how blocks and paths are used. Each function takes data and returns a `Figure`."""

from collections.abc import Mapping, Sequence

import numpy as np

from codinet.analysis.usage import by_blocks_run, class_block_rates
from codinet.records import PathTable
from codinet.report.style import FAINT, RATES, Figure, colour, colour_bar, panels, shorten, styled, whole_numbers


@styled
def run_rates(paths: PathTable, classes: Sequence[str], stages: Sequence[int]) -> Figure:
    """Class × block: the share of a class's images that run a block; white lines part the stages."""
    rate_KN = class_block_rates(paths, len(classes)).numpy()  # a class without images stays blank
    number, blocks = rate_KN.shape
    height = min(9.0, 1.3 + 0.22 * number)
    figure, [[axes]] = panels(1, 1, width=max(4.6, min(9.0, 2.2 + 0.28 * blocks)), height=height)
    drawn = axes.imshow(rate_KN, cmap=RATES, vmin=0, vmax=1, aspect="auto", interpolation="none")
    for border in np.cumsum(stages)[:-1]:
        axes.axvline(border - 0.5, color="white", linewidth=2.5)
    starts = np.cumsum([0, *stages[:-1]])
    for stage, (start, length) in enumerate(zip(starts, stages, strict=True), start=1):
        axes.text(start + (length - 1) / 2, -0.62, f"stage {stage}", ha="center", va="bottom", fontsize=8)
    every = max(1, blocks // 18)
    axes.set_xticks(range(0, blocks, every), [str(block + 1) for block in range(0, blocks, every)])
    step = 1 if number <= 30 else max(1, number // 20)
    axes.set_yticks(range(0, number, step), [shorten(str(classes[k])) for k in range(0, number, step)])
    axes.set(xlabel="block", ylabel="class")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    colour_bar(figure, drawn, axes, "share of images that run it")
    return figure


@styled
def blocks_run(runs: Mapping[str, PathTable]) -> Figure:
    """A panel a run: how many images run how many blocks (bars), and the accuracy among them (dots)."""
    columns = min(2, len(runs))
    rows = -(-len(runs) // columns)
    figure, axes_RC = panels(rows, columns, width=3.5 if columns > 1 else 4.8, height=2.3)
    for place, axes in enumerate(axes_RC.flat):
        axes.set_visible(place < len(runs))
    for place, (axes, (name, paths)) in enumerate(zip(axes_RC.flat, runs.items(), strict=False)):
        rows_found = by_blocks_run(paths)
        blocks = [row["blocks"] for row in rows_found]
        axes.bar(blocks, [row["images"] for row in rows_found], color=colour(place), alpha=0.75, width=0.85)
        axes.set(title=shorten(name, 36), xlabel="blocks run", ylabel="images")
        whole_numbers(axes)
        axes.set_xlim(-0.6, paths.path_TN.shape[1] + 0.6)
        right = axes.twinx()
        accuracies = [row["accuracy"] for row in rows_found]
        right.plot(blocks, accuracies, "o", color=colour(place + 1), markersize=4, markeredgewidth=0)
        right.set_ylabel("accuracy, % (dots)")
        right.set_ylim(min(90.0, *accuracies) - 2 if len(accuracies) > 1 else min(90.0, accuracies[0] - 2), 101)
        right.spines["right"].set_visible(True)
    return figure


@styled
def path_numbers(distinct: Mapping[str, int], entropy: Mapping[str, float]) -> Figure:
    """Distinct paths and the entropy of their distribution, a bar a run."""
    names = list(distinct)
    figure, [[left, right]] = panels(1, 2, width=3.4, height=0.9 + 0.34 * len(names), sharey=True)
    bars: tuple[tuple, ...] = (
        (left, [float(distinct[name]) for name in names], "distinct paths", "{:.0f}"),
        (right, [entropy[name] for name in names], "path entropy, bits", "{:.2f}"),
    )
    for axes, values, title, form in bars:
        drawn = axes.barh(range(len(names)), values, color=[colour(place) for place in range(len(names))], height=0.62)
        axes.bar_label(drawn, labels=[form.format(value) for value in values], padding=3, fontsize=8)
        axes.set(title=title)
        axes.set_xlim(0, max(1e-9, *values) * 1.2 if len(values) > 1 else max(values[0], 1e-9) * 1.2)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color=FAINT)
    whole_numbers(left)
    left.set_yticks(range(len(names)), [shorten(name, 30) for name in names])
    left.invert_yaxis()
    return figure
