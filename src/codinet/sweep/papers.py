"""The paper's tables and figures that need training, each as a plan of runs.

Printed costs become budgets (`share_of_static`), so a plan means the same on any hardware. The rows are those of
`codinet.published`. Our copy of the paper lacks the figures: where a figure shows points over costs, the plan uses the
costs of the trade-off table.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import Any

import torch

from codinet import published
from codinet.backbones import ARCHITECTURES, StrideOn
from codinet.config import RunConfig, flag_of
from codinet.cost import CostTable, block_costs
from codinet.create import create_model
from codinet.errors import UserError, unknown
from codinet.presets import PRESETS
from codinet.published import CODINET, STATIC, VANILLA, Published
from codinet.sweep.plan import METHODS, Grid, Overrides, PlannedRun, Row, method_of, plan_rows

PREFIX = "paper-"
GAMMAS = (0.01, 0.02, 0.04, 0.08, 0.10)
MARGINS = (0.25, 0.5, 0.75, 1.0)
CON, DIV = "vanilla + L_con", "vanilla + L_div"
_METHOD_OF_KIND = {STATIC: "static", VANILLA: "vanilla", CON: "con", DIV: "div", CODINET: "codinet"}
_GRID_AXES = ("arch", "method", "seed")  # the axes that may be given together with a paper plan
_ANALYZE, _REPORT, _FIGURE = "codinet analyze DIR/*/", "codinet report DIR/*/", "DIR/pareto.png"


@dataclass(frozen=True)
class Paper:
    """A table or figure of the paper."""

    makes: str
    rows: Callable[[RunConfig], list[Row]]  # from a recipe to configs without seeds
    source: str | None = "cifar10"  # None: an image folder given by the user
    then: str = "the sweep's own table"  # where to read the result


def plan_paper(
    name: str,
    grid: Grid | None = None,
    overrides: Overrides | None = None,
    *,
    recipe: str = "paper",
    data_path: str | None = None,
    gpu: bool = False,
) -> list[PlannedRun]:
    """Plan the runs of a table or figure of the paper.

    Runs on other data or another network than the paper's have no paper row to compare with.

    Args:
        name: A key of `PAPERS`.
        grid: Seeds multiply the runs. Methods select runs. Networks select runs too, but replace the network of a plan
            that has only one. Other axes are refused.
        overrides: Values for every run.
        recipe: The preset of all runs.
        data_path: Data to use instead of the plan's own. Plans for ImageNet require it.
        gpu: Whether to use the default batch size of a GPU.

    Returns:
        The runs, in the order of the paper's rows.
    """
    grid, overrides = grid or Grid(), overrides or Overrides()
    if name not in PAPERS:
        raise unknown("table or figure of the paper", name, PAPERS)
    paper = PAPERS[name]
    for axis in fields(grid):
        if axis.name not in _GRID_AXES and getattr(grid, axis.name):
            raise UserError(f"{name} sets {flag_of(axis.name)} itself; leave it out, or sweep a data set instead.")
    source = data_path or paper.source
    if source is None:
        raise UserError(f"{name} needs an image folder; give --data-path DIR.")
    rows = paper.rows(PRESETS[recipe](source))
    if data_path is not None and paper.source is not None:
        rows = [(config, None) for config, _ in rows]
    rows = _select_methods(name, _select_networks(name, rows, grid.arch), grid.method)
    return plan_rows([(overrides.apply(config), row) for config, row in rows], seeds=grid.seed, gpu=gpu)


def _select_networks(name: str, rows: list[Row], wanted: tuple[str, ...]) -> list[Row]:
    if not wanted:
        return rows
    present = list(dict.fromkeys(config.network.arch for config, _ in rows))
    if len(present) == 1 and set(wanted) != set(present):
        return [
            (replace(config, network=replace(config.network, arch=arch)), row if arch == present[0] else None)
            for arch in wanted
            for config, row in rows
        ]
    _require(name, "networks", wanted, present)
    return [(config, row) for config, row in rows if config.network.arch in wanted]


def _select_methods(name: str, rows: list[Row], wanted: tuple[str, ...]) -> list[Row]:
    if not wanted:
        return rows
    _require(name, "methods", wanted, list(dict.fromkeys(method_of(config) for config, _ in rows)))
    return [(config, row) for config, row in rows if method_of(config) in wanted]


def _require(name: str, what: str, wanted: tuple[str, ...], present: list[str]) -> None:
    missing = [value for value in wanted if value not in present]
    if missing:
        raise UserError(f"{name} has no run with {missing[0]}; its {what} are {', '.join(present)}.")


def share_of_static(gmaccs: float, arch: str, *, stride_on: StrideOn = "3x3") -> float:
    """A printed cost as a share of the static network's cost.

    Args:
        gmaccs: The cost in the paper's unit: two per multiply-add for 32×32 networks, one for ImageNet networks.
        arch: The network.
        stride_on: Which convolution of a bottleneck strides.

    Returns:
        The share, rounded to two digits because the paper prints no more.
    """
    table = static_table(arch, stride_on)
    return round(gmaccs / table.paper_gmaccs(table.static_macs), 2)


@cache
def static_table(arch: str, stride_on: StrideOn = "3x3") -> CostTable:
    """The cost table of a static network at the paper's image size and number of classes."""
    size = ARCHITECTURES[arch].image_size
    with torch.device("meta"):  # costs depend on shapes only
        model = create_model(arch, num_classes=10 if size == 32 else 1000, routed=False, stride_on=stride_on)
    return block_costs(model, (3, size, size))


def _row(base: RunConfig, row: Published, *, cost_of: Published | None = None, **losses: Any) -> Row:
    """The run of a printed row, at its own cost, at the cost of another row, or with a fixed gamma."""
    network = replace(base.network, arch=f"resnet{row.backbone.removeprefix('ResNet-')}")
    if "gamma" not in losses:
        gmaccs = (cost_of or row).gmaccs
        assert gmaccs is not None, row
        losses["budget"] = share_of_static(gmaccs, network.arch, stride_on=network.stride_on)
    losses = {"budget": None, "gamma": None, **losses}
    config = replace(base, network=network, losses=replace(base.losses, **losses))
    return METHODS[_METHOD_OF_KIND[row.kind]](config), row


def _results(base: RunConfig, *, data: str) -> list[Row]:
    return [_row(base, row) for row in published.RESULTS if row.data == data]


def _resnet110(base: RunConfig, *, kinds: Sequence[str]) -> list[Row]:
    """ResNet-110 on CIFAR-10. The ablation prints no costs, so they are taken from the table of results."""
    rows = []
    for kind in kinds:
        cost_of = _find(published.RESULTS, kind if kind in (STATIC, VANILLA) else CODINET)
        rows.append(_row(base, _find(published.ABLATIONS, kind), cost_of=cost_of))
    return rows


def _find(rows: Iterable[Published], kind: str) -> Published:
    return next(row for row in rows if (row.data, row.kind, row.backbone) == ("cifar10", kind, "ResNet-110"))


def _trade_off_by_gamma(base: RunConfig) -> list[Row]:
    """Fixed weights as in the paper. The resulting cost depends on the unit of c_k, which the paper does not state."""
    rows = zip(GAMMAS, published.TRADE_OFFS, strict=True)
    return [*_resnet110(base, kinds=(STATIC,)), *(_row(base, row, gamma=gamma) for gamma, row in rows)]


def _trade_off_by_cost(base: RunConfig) -> list[Row]:
    """Budgets at the costs that the paper's weights led to."""
    return [*_resnet110(base, kinds=(STATIC,)), *(_row(base, row) for row in published.TRADE_OFFS)]


def _margins(base: RunConfig, *, values: Sequence[float] = MARGINS) -> list[Row]:
    rows = zip(MARGINS, published.DIVERSITY_MARGINS, strict=True)
    return [_row(base, row, m_d=m_d) for m_d, row in rows if m_d in values]


def _comparison(base: RunConfig, *, data: str) -> list[Row]:
    """The paper's own rows of the comparison, without those it quotes."""
    return [_row(base, row) for row in published.COMPARISON if row.data == data and row.kind in (STATIC, CODINET)]


def _imagenet(base: RunConfig) -> list[Row]:
    # The printed cost of 3.86 is that of the network that strides on its 1×1 convolutions. The paper does not state
    # the epochs; 100 + 10 is our interpretation.
    base = replace(base, network=replace(base.network, stride_on="1x1"), data=replace(base.data, image_size=224))
    if base.schedule.epochs == 250:
        base = replace(base, schedule=replace(base.schedule, epochs=100, finetune=10))
    return _comparison(base, data="imagenet")


def _comparison_over_costs(base: RunConfig) -> list[Row]:
    return [*_comparison(base, data="cifar10"), *_trade_off_by_cost(base)[1:]]


def _over_costs(base: RunConfig, *, setting: str, values: Sequence[str], paper: bool) -> list[Row]:
    """CoDiNet-110 at every cost of the trade-off, for each value of a network setting; the paper's value is first."""
    rows: list[Row] = []
    for value in values:
        changed: dict[str, Any] = {setting: value}
        recipe = replace(base, network=replace(base.network, **changed))
        for row in published.TRADE_OFFS:
            config, _ = _row(recipe, row)
            rows.append((config, row if paper and value == values[0] else None))
    return rows


_relaxations = partial(_over_costs, setting="relaxation", values=("gumbel", "straight-through"))
_routers = partial(_over_costs, setting="router", values=("fc", "cnn", "rnn"))

PAPERS: dict[str, Paper] = {
    "paper-table-tradeoff": Paper("Table 2: accuracy and cost over γ, ResNet-110", _trade_off_by_gamma),
    "paper-table-tradeoff-budgets": Paper(
        "Table 2 by its costs: budgets at what the paper's γ led to", _trade_off_by_cost
    ),
    "paper-table-ablation": Paper(
        "Table 3: routers, L_con and L_div, ResNet-110", partial(_resnet110, kinds=(STATIC, VANILLA, CON, DIV, CODINET))
    ),
    "paper-table-svhn": Paper("Table 4: results on SVHN", partial(_results, data="svhn"), "svhn"),
    "paper-table-cifar10": Paper("Table 5: results on CIFAR-10, ResNet-32/74/110", partial(_results, data="cifar10")),
    "paper-table-cifar100": Paper(
        "Table 5: results on CIFAR-100, ResNet-32/74/110", partial(_results, data="cifar100"), "cifar100"
    ),
    "paper-table-comparison-cifar10": Paper(
        "Table 6: the paper's own rows of the comparison", partial(_comparison, data="cifar10")
    ),
    "paper-table-comparison-imagenet": Paper(
        "Table 7: the paper's own rows of the comparison, ResNet-50/101", _imagenet, None
    ),
    "paper-table-margin": Paper("Table 8: paths and accuracy over m_d, ResNet-110", _margins),
    "paper-table-pcc": Paper(
        "Table 9: correlation of path and image similarity (the static run gives the features)",
        partial(_resnet110, kinds=(STATIC, VANILLA, CODINET)),
        then=f"{_ANALYZE} --static DIR/resnet110-static-seed0",
    ),
    "paper-figure-constraints": Paper(
        "Figure 6: paths by t-SNE without losses, with L_con, with both",
        partial(_resnet110, kinds=(VANILLA, CON, CODINET)),
        then=_REPORT,
    ),
    "paper-figure-margin": Paper(
        "Figure 7: paths by t-SNE, one row per m_d", partial(_margins, values=(0.25, 0.5, 0.75)), then=_REPORT
    ),
    "paper-figure-comparison-cifar10": Paper(
        "Figure 8a: accuracy against cost on CIFAR-10",
        _comparison_over_costs,
        then=f"{_FIGURE}, or {_REPORT}",
    ),
    "paper-figure-comparison-imagenet": Paper(
        "Figure 8b: accuracy against cost on ImageNet", _imagenet, None, then=f"{_FIGURE}, or {_REPORT}"
    ),
    "paper-figure-kl": Paper(
        "Figure 9: KL divergence of predictions, image against augmentation; pairs with one path",
        partial(_resnet110, kinds=(VANILLA, CON, CODINET)),
        then=_REPORT,
    ),
    "paper-figure-augmentations": Paper(
        "Figure 10: paths of ten augmentations of 150 images", partial(_resnet110, kinds=(CODINET,)), then=_REPORT
    ),
    "paper-figure-paths": Paper(
        "Figure 11: relaxed paths by t-SNE, by blocks run", partial(_resnet110, kinds=(VANILLA, CODINET)), then=_REPORT
    ),
    "paper-figure-correlation": Paper(
        "Figure 12: path similarity over image similarity (the static run gives the features)",
        partial(_resnet110, kinds=(STATIC, VANILLA, CODINET)),
        then=_REPORT,
    ),
    "paper-figure-relaxation-cifar10": Paper(
        "Figure 13a: the two relaxations over costs, CIFAR-10", partial(_relaxations, paper=True), then=_FIGURE
    ),
    "paper-figure-relaxation-cifar100": Paper(
        "Figure 13b: the two relaxations over costs, CIFAR-100",
        partial(_relaxations, paper=False),
        "cifar100",
        then=_FIGURE,
    ),
    "paper-figure-routers-cifar10": Paper(
        "Figure 14a: the three routers over costs, CIFAR-10", partial(_routers, paper=True), then=_FIGURE
    ),
    "paper-figure-routers-cifar100": Paper(
        "Figure 14b: the three routers over costs, CIFAR-100",
        partial(_routers, paper=False),
        "cifar100",
        then=_FIGURE,
    ),
}
