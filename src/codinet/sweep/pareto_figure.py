"""The figure of a sweep: accuracy against cost, with the Pareto front as a line. Requires matplotlib."""

import re
from collections.abc import Sequence
from pathlib import Path

from codinet.backbones import ARCHITECTURES
from codinet.report.drawing import INK, Axes, Figure, colour, marker, panels, place_labels, save_figure, styled
from codinet.specs import slug
from codinet.sweep.plan import method_of
from codinet.sweep.summary import Group, images_of, pareto

ALT = "Accuracy against cost of a sweep's runs; a line joins the runs on the Pareto front."
MAX_LABELS = 16  # more would hide the points
_PER_MAC = {1: "one per multiply-add", 2: "two per multiply-add"}


def write_figure(out: Path, groups: Sequence[Group], title: str) -> None:
    """Write `pareto.svg` and `pareto.png` to the folder `out`."""
    save_figure(draw(groups, title), out, "pareto", ALT)


@styled
def draw(groups: Sequence[Group], title: str) -> Figure:
    """Draw accuracy over the cost share.

    Several networks get a second panel over absolute cost, because their shares refer to different static costs.
    """
    costs, label = _costs(groups)
    shares = [group.figures["cost_share"].mean for group in groups]
    networks = {group.config.network.arch for group in groups}
    width, height = 5.4, 4.2
    figure, axes_1P = panels(1, 1 if len(networks) == 1 else 2, width=width, height=height, sharey=True)
    first, *more = axes_1P[0]
    size_px = (width * 85, height * 75)
    _draw_panel(first, groups, shares, size_px)
    first.set(xlabel="cost, share of the static network's", ylabel=f"accuracy, % of the {images_of(groups)}")
    if more:
        _draw_panel(more[0], groups, costs, size_px)
        more[0].set(xlabel=label)
    else:
        static_cost = costs[0] / shares[0]
        to_cost, to_share = (lambda share: share * static_cost), (lambda cost: cost / static_cost)
        first.secondary_xaxis("top", functions=(to_cost, to_share)).set_xlabel(label)
    _draw_legend(first, groups)
    figure.suptitle(title, fontsize=9)
    return figure


def _costs(groups: Sequence[Group]) -> tuple[list[float], str]:
    """Costs in the paper's unit, or in MACs if the paper has several or none for the networks; and the axis label."""
    own = [ARCHITECTURES.get(group.config.network.arch) for group in groups]
    units = {network.paper_unit for network in own if network is not None}
    if len(units) != 1 or None in own:
        return [group.figures["macs"].mean / 1e9 for group in groups], f"cost, G MACs ({_PER_MAC[1]})"
    label = f"cost, G in the paper's unit ({_PER_MAC[units.pop()]})"
    return [group.figures["paper_gmaccs"].mean for group in groups], label


def _draw_panel(axes: Axes, groups: Sequence[Group], costs: Sequence[float], size_px: tuple[float, float]) -> None:
    networks = list(dict.fromkeys(group.config.network.arch for group in groups))
    series = _series(groups)
    points = [(cost, group.figures["accuracy"].mean) for cost, group in zip(costs, groups, strict=True)]
    front = pareto(points)
    axes.plot(*zip(*(points[index] for index in front), strict=True), "-", color=INK, linewidth=1, zorder=1)
    for (cost, accuracy), group, name in zip(points, groups, series, strict=True):
        shade = _colour(name, series)
        spread = group.figures["accuracy"].spread
        if spread is not None:
            axes.errorbar(cost, accuracy, yerr=spread, color=shade, linewidth=1, capsize=2, zorder=2)
        shape = marker(networks.index(group.config.network.arch))
        axes.scatter(cost, accuracy, s=36, color=shade, marker=shape, zorder=3)
    axes.grid()
    candidates = range(len(groups)) if len(groups) <= MAX_LABELS else front
    labels = [(points[index], text) for index in candidates if (text := _label(groups[index]))]
    place_labels(axes, [point for point, _ in labels], [text for _, text in labels], size_px=size_px)


def _label(group: Group) -> str:
    """A group's name without what the legend and the axis show."""
    network = group.config.network
    text = group.name.removeprefix(slug(network.arch))
    for word in (method_of(group.config), network.router, network.relaxation):
        text = text.replace(f"-{word}", "", 1)
    return re.sub(r"-budget[\d.]+(e-?\d+)?", "", text).strip("-")


def _series(groups: Sequence[Group]) -> list[str]:
    """The legend entry of each group: its method, and its router and relaxation if groups differ in them."""
    routed = [group.config.network for group in groups if group.config.network.routed]
    compared = [setting for setting in ("router", "relaxation") if len({getattr(net, setting) for net in routed}) > 1]
    names = []
    for group in groups:
        words = [getattr(group.config.network, setting) for setting in compared if group.config.network.routed]
        names.append(", ".join([method_of(group.config), *words]))
    return names


def _colour(name: str, series: Sequence[str]) -> str:
    return colour(list(dict.fromkeys(series)).index(name))


def _draw_legend(axes: Axes, groups: Sequence[Group]) -> None:
    series = _series(groups)
    for index, network in enumerate(dict.fromkeys(group.config.network.arch for group in groups)):
        axes.scatter([], [], s=36, color=INK, marker=marker(index), label=network)
    for name in dict.fromkeys(series):
        axes.scatter([], [], s=36, color=_colour(name, series), marker="o", label=name)
    axes.plot([], [], "-", color=INK, linewidth=1, label="Pareto front")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, fontsize=7.5, columnspacing=1.2)
