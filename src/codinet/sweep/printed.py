"""From rows that the paper prints to runs: the network and method of a row, its cost as a budget.

The rows are those of `codinet.report.published`. Each function takes a recipe on some data and returns
configs without their seeds, each with the row that it should come to, where there is one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from codinet import published
from codinet.config import RunConfig
from codinet.published import CODINET, STATIC, VANILLA, Published
from codinet.sweep.methods import METHODS
from codinet.sweep.shares import share_of_static

Row = tuple[RunConfig, Published | None]
GAMMAS = (0.01, 0.02, 0.04, 0.08, 0.10)
MARGINS = (0.25, 0.5, 0.75, 1.0)
CON, DIV = "vanilla + L_con", "vanilla + L_div"
_METHODS = {STATIC: "static", VANILLA: "vanilla", CON: "con", DIV: "div", CODINET: "codinet"}


def run_of(base: RunConfig, row: Published, *, cost_of: Published | None = None, **losses: Any) -> Row:
    """The run of a printed row, at its own cost, at another row's, or with a fixed gamma."""
    network = replace(base.network, arch=f"resnet{row.backbone.removeprefix('ResNet-')}")
    if "gamma" not in losses:
        gmaccs = (cost_of or row).gmaccs
        assert gmaccs is not None, row
        losses["budget"] = share_of_static(gmaccs, network.arch, stride_on=network.stride_on)
    losses = {"budget": None, "gamma": None, **losses}
    config = replace(base, network=network, losses=replace(base.losses, **losses))
    return METHODS[_METHODS[row.kind]](config), row


def results(base: RunConfig, *, data: str) -> list[Row]:
    return [run_of(base, row) for row in published.RESULTS if row.data == data]


def methods_of_110(base: RunConfig, *, kinds: Sequence[str]) -> list[Row]:
    """ResNet-110 on CIFAR-10. The ablation prints no costs: they are those of the table of results."""
    rows = []
    for kind in kinds:
        cost_of = _find(published.RESULTS, kind if kind in (STATIC, VANILLA) else CODINET)
        rows.append(run_of(base, _find(published.ABLATIONS, kind), cost_of=cost_of))
    return rows


def _find(rows: Iterable[Published], kind: str) -> Published:
    return next(row for row in rows if (row.data, row.kind, row.backbone) == ("cifar10", kind, "ResNet-110"))


def trade_off_by_gamma(base: RunConfig) -> list[Row]:
    """Fixed weights, the letter of the paper; what cost they lead to depends on the unit of c_k, not printed."""
    rows = zip(GAMMAS, published.TRADE_OFFS, strict=True)
    return [*methods_of_110(base, kinds=(STATIC,)), *(run_of(base, row, gamma=gamma) for gamma, row in rows)]


def trade_off_by_cost(base: RunConfig) -> list[Row]:
    """Budgets at the costs that the paper's weights led to."""
    return [*methods_of_110(base, kinds=(STATIC,)), *(run_of(base, row) for row in published.TRADE_OFFS)]


def margins(base: RunConfig, *, values: Sequence[float] = MARGINS) -> list[Row]:
    rows = zip(MARGINS, published.DIVERSITY_MARGINS, strict=True)
    return [run_of(base, row, m_d=m_d) for m_d, row in rows if m_d in values]


def comparison(base: RunConfig, *, data: str) -> list[Row]:
    """The rows of the comparison that are not quoted from others."""
    return [run_of(base, row) for row in published.COMPARISON if row.data == data and row.kind in (STATIC, CODINET)]


def imagenet(base: RunConfig) -> list[Row]:
    # The printed 3.86 is the network that strides on its 1×1 convolutions; 100 + 10 epochs is our reading.
    base = replace(base, network=replace(base.network, stride_on="1x1"), data=replace(base.data, image_size=224))
    if base.schedule.epochs == 250:
        base = replace(base, schedule=replace(base.schedule, epochs=100, finetune=10))
    return comparison(base, data="imagenet")


def comparison_over_costs(base: RunConfig) -> list[Row]:
    return [*comparison(base, data="cifar10"), *trade_off_by_cost(base)[1:]]


def over_costs(base: RunConfig, *, field: str, values: Sequence[str], paper: bool) -> list[Row]:
    """CoDiNet-110 at every cost of the trade-off, for each value of a setting of the network, the paper's first."""
    found: list[Row] = []
    for value in values:
        changed: dict[str, Any] = {field: value}
        recipe = replace(base, network=replace(base.network, **changed))
        for row in published.TRADE_OFFS:
            config, _ = run_of(recipe, row)
            found.append((config, row if paper and value == values[0] else None))
    return found
