"""The picture of a sweep: accuracy against cost, the groups that nothing beats joined. Needs matplotlib."""

import re
from collections.abc import Sequence
from pathlib import Path

from codinet import files
from codinet.backbones import ARCHITECTURES
from codinet.report import svg
from codinet.report.labels import place_labels
from codinet.report.style import INK, Axes, Figure, colour, marker, panels, styled
from codinet.sweep.front import pareto
from codinet.sweep.methods import method_of
from codinet.sweep.summary import Group

ALT = "Accuracy on the test set against cost of a sweep's runs; the runs that no other beats are joined by a line."
MOST_NAMES = 16  # more would hide the points
_PER_MAC = {1: "one per multiply-add", 2: "two per multiply-add"}


def write_picture(out: Path, groups: Sequence[Group], title: str) -> None:
    """`pareto.svg` and `pareto.png` in the folder."""
    figure = draw(groups, title)
    files.write(out / "pareto.svg", svg.standalone(svg.draw(figure), ALT).encode())
    files.write(out / "pareto.png", svg.png(figure))


@styled
def draw(groups: Sequence[Group], title: str) -> Figure:
    """One panel over shares of the static cost; with several networks, whose shares differ, one over costs too."""
    costs, label = _costs(groups)
    shares = [group.figures["cost_share"].mean for group in groups]
    networks = {group.config.network.arch for group in groups}
    width, height = 5.4, 4.2
    figure, axes_1P = panels(1, 1 if len(networks) == 1 else 2, width=width, height=height, sharey=True)
    first, *more = axes_1P[0]
    size_px = (width * 85, height * 75)
    _panel(first, groups, shares, size_px)
    first.set(xlabel="cost, share of the static network's", ylabel="accuracy, % of the test images")
    if more:
        _panel(more[0], groups, costs, size_px)
        more[0].set(xlabel=label)
    else:
        whole = costs[0] / shares[0]
        above = first.secondary_xaxis("top", functions=(lambda share: share * whole, lambda cost: cost / whole))
        above.set_xlabel(label)
    _legend(first, groups)
    figure.suptitle(title, fontsize=9)
    return figure


def _costs(groups: Sequence[Group]) -> tuple[list[float], str]:
    """Costs in the paper's unit, or in MACs where networks of both its units stand side by side."""
    units = {ARCHITECTURES[group.config.network.arch].paper_unit for group in groups}
    if len(units) > 1:
        return [group.figures["macs"].mean / 1e9 for group in groups], f"cost, G MACs ({_PER_MAC[1]})"
    label = f"cost, G in the paper's unit ({_PER_MAC[units.pop()]})"
    return [group.figures["paper_gmaccs"].mean for group in groups], label


def _panel(axes: Axes, groups: Sequence[Group], costs: Sequence[float], size_px: tuple[float, float]) -> None:
    networks = list(dict.fromkeys(group.config.network.arch for group in groups))
    series = _series(groups)
    points = [(cost, group.figures["accuracy"].mean) for cost, group in zip(costs, groups, strict=True)]
    front = pareto(points)
    axes.plot(*zip(*(points[place] for place in front), strict=True), "-", color=INK, linewidth=1, zorder=1)
    for (cost, accuracy), group, kind in zip(points, groups, series, strict=True):
        look = _look(kind, series)
        spread = group.figures["accuracy"].spread
        if spread is not None:
            axes.errorbar(cost, accuracy, yerr=spread, color=look, linewidth=1, capsize=2, zorder=2)
        shape = marker(networks.index(group.config.network.arch))
        axes.scatter(cost, accuracy, s=36, color=look, marker=shape, zorder=3)
    axes.grid()
    shown = range(len(groups)) if len(groups) <= MOST_NAMES else front
    named = [(points[place], text) for place in shown if (text := _label(groups[place]))]
    place_labels(axes, [point for point, _ in named], [text for _, text in named], size_px=size_px)


def _label(group: Group) -> str:
    """What is left of a group's name once legend and axis have said their part."""
    network = group.config.network
    text = group.name.removeprefix(network.arch)
    for word in (method_of(group.config), network.router, network.relaxation):
        text = text.replace(f"-{word}", "", 1)
    return re.sub(r"-budget[\d.]+(e-?\d+)?", "", text).strip("-")


def _series(groups: Sequence[Group]) -> list[str]:
    """What a group is drawn as: its method, and its router and relaxation where these are compared."""
    routed = [group.config.network for group in groups if group.config.network.routed]
    compared = [field for field in ("router", "relaxation") if len({getattr(one, field) for one in routed}) > 1]
    found = []
    for group in groups:
        words = [getattr(group.config.network, field) for field in compared if group.config.network.routed]
        found.append(", ".join([method_of(group.config), *words]))
    return found


def _look(kind: str, series: Sequence[str]) -> str:
    return colour(list(dict.fromkeys(series)).index(kind))


def _legend(axes: Axes, groups: Sequence[Group]) -> None:
    series = _series(groups)
    for place, network in enumerate(dict.fromkeys(group.config.network.arch for group in groups)):
        axes.scatter([], [], s=36, color=INK, marker=marker(place), label=network)
    for kind in dict.fromkeys(series):
        axes.scatter([], [], s=36, color=_look(kind, series), marker="o", label=kind)
    axes.plot([], [], "-", color=INK, linewidth=1, label="beaten by none")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, fontsize=7.5, columnspacing=1.2)
