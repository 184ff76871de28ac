"""Figures of what augmentation changes, and of similar images on similar paths."""

import math
from collections.abc import Mapping, Sequence

import torch

from codinet.analysis.consistency import KL_EDGES, shares
from codinet.report.style import INK, Figure, colour, legend_columns, panels, shorten, styled


@styled
def kl_histogram(kl: Mapping[str, torch.Tensor]) -> Figure:
    """Share of images by KL divergence between the predictions of original and augmented; runs side by side."""
    figure, [[axes]] = panels(1, 1, width=6.6, height=2.8)
    width = 0.84 / len(kl)
    labels = [f"{name}: mean {float(kl_T.double().mean()):.3g}" for name, kl_T in kl.items()]
    for place, (label, kl_T) in enumerate(zip(labels, kl.values(), strict=True)):
        left = -0.42 + width * (place + 0.5)
        heights = shares(kl_T, KL_EDGES).tolist()
        axes.bar([i + left for i in range(len(heights))], heights, width=width, color=colour(place), label=label)
    # Bars stand between edges, so each edge is named at the border of its two bins.
    names = ["0", *(f"{edge:g}" if place % 2 == 0 else "" for place, edge in enumerate(KL_EDGES[1:]))]
    axes.set_xticks([i - 0.5 for i in range(len(KL_EDGES))], names)
    axes.set(xlabel="KL divergence, nats (logarithmic but for the first bin)", ylabel="share of images")
    axes.grid(axis="y")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=legend_columns(labels))
    return figure


@styled
def same_path(shares_of: Mapping[str, Mapping[str, float]]) -> Figure:
    """Share of pairs original and augmented with the very same path, by kind of augmentation and overall."""
    names = list(shares_of)
    kinds = list(dict.fromkeys(kind for run in shares_of.values() for kind in run))
    figure, [[axes]] = panels(1, 1, width=6.6, height=2.5)
    width = 0.84 / len(names)
    for place, name in enumerate(names):
        left = -0.42 + width * (place + 0.5)
        heights = [shares_of[name].get(kind, float("nan")) for kind in kinds]
        bars = axes.bar(
            [i + left for i in range(len(kinds))], heights, width=width * 0.94, color=colour(place), label=name
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


@styled
def similarity(
    pairs: Mapping[str, tuple[torch.Tensor, torch.Tensor]], notes: Mapping[str, str], *, columns: int = 2
) -> Figure:
    """A panel a run: feature similarity against path similarity of pairs; the dotted line is equality."""
    columns = min(columns, len(pairs))
    rows = -(-len(pairs) // columns)
    figure, axes_RC = panels(rows, columns, width=3.3 if columns > 1 else 4.2, height=3.1)
    for axes in axes_RC.flat[len(pairs) :]:
        axes.set_visible(False)
    low_path, low_feature = (_floor([pair[side] for pair in pairs.values()]) for side in (0, 1))
    for place, (name, (path_P, feature_P)) in enumerate(pairs.items()):
        axes = axes_RC.flat[place]
        axes.scatter(feature_P, path_P, s=4, alpha=0.35, color=colour(place), linewidths=0, rasterized=True)
        axes.plot([-1, 1], [-1, 1], ":", color=INK, linewidth=1)
        axes.set(xlim=(low_feature, 1.02), ylim=(low_path, 1.02), xlabel="feature similarity", ylabel="path similarity")
        axes.set_title(f"{shorten(name, 36)}\n{notes[name]}")
    return figure


def _floor(columns: Sequence[torch.Tensor]) -> float:
    """A round number below every value, and far enough below 1 that a cloud at the top has a height."""
    least = min((float(values.min()) for values in columns if len(values)), default=0.0)
    return min(0.8, math.floor(least * 10) / 10)
