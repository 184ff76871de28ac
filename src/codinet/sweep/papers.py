"""The paper's tables and figures that come from training, each as the plan of runs that would produce it.

Printed costs become budgets (`shares`), so a plan means the same on any hardware. The paper's pictures are
not in our copy of it: where a figure shows points over costs, the costs are those of its trade-off table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from codinet.config import RunConfig
from codinet.published import CODINET, STATIC, VANILLA
from codinet.sweep import printed
from codinet.sweep.printed import CON, DIV, Row

ANALYZE, REPORT = "codinet analyze DIR/*/", "codinet report DIR/*/"
PREFIX = "paper-"


@dataclass(frozen=True)
class Paper:
    """A table or figure of the paper."""

    makes: str
    rows: Callable[[RunConfig], list[Row]]
    source: str | None = "cifar10"  # None: an image folder that the user names
    then: str = "the sweep's own table"  # what it is read off


_of_110 = printed.methods_of_110
_relaxations = partial(printed.over_costs, field="relaxation", values=("gumbel", "straight-through"))
_routers = partial(printed.over_costs, field="router", values=("fc", "cnn", "rnn"))

PAPERS: dict[str, Paper] = {
    "paper-table-tradeoff": Paper("Table 2: accuracy and cost over γ, ResNet-110", printed.trade_off_by_gamma),
    "paper-table-tradeoff-budgets": Paper(
        "Table 2 by its costs: budgets at what the paper's γ led to", printed.trade_off_by_cost
    ),
    "paper-table-ablation": Paper(
        "Table 3: routers, L_con and L_div, ResNet-110", partial(_of_110, kinds=(STATIC, VANILLA, CON, DIV, CODINET))
    ),
    "paper-table-svhn": Paper("Table 4: results on SVHN", partial(printed.results, data="svhn"), "svhn"),
    "paper-table-cifar10": Paper(
        "Table 5: results on CIFAR-10, ResNet-32/74/110", partial(printed.results, data="cifar10")
    ),
    "paper-table-cifar100": Paper(
        "Table 5: results on CIFAR-100, ResNet-32/74/110", partial(printed.results, data="cifar100"), "cifar100"
    ),
    "paper-table-comparison-cifar10": Paper(
        "Table 6: the paper's own rows of the comparison", partial(printed.comparison, data="cifar10")
    ),
    "paper-table-comparison-imagenet": Paper(
        "Table 7: the paper's own rows of the comparison, ResNet-50/101", printed.imagenet, None
    ),
    "paper-table-margin": Paper("Table 8: paths and accuracy over m_d, ResNet-110", printed.margins),
    "paper-table-pcc": Paper(
        "Table 9: correlation of path and image similarity (the static run gives the features)",
        partial(_of_110, kinds=(STATIC, VANILLA, CODINET)),
        then=f"{ANALYZE} --static DIR/resnet110-static-seed0",
    ),
    "paper-figure-constraints": Paper(
        "Figure 6: paths by t-SNE without losses, with L_con, with both",
        partial(_of_110, kinds=(VANILLA, CON, CODINET)),
        then=REPORT,
    ),
    "paper-figure-margin": Paper(
        "Figure 7: paths by t-SNE, one row per m_d", partial(printed.margins, values=(0.25, 0.5, 0.75)), then=REPORT
    ),
    "paper-figure-comparison-cifar10": Paper(
        "Figure 8a: accuracy against cost on CIFAR-10",
        printed.comparison_over_costs,
        then="DIR/pareto.png, or " + REPORT,
    ),
    "paper-figure-comparison-imagenet": Paper(
        "Figure 8b: accuracy against cost on ImageNet", printed.imagenet, None, then="DIR/pareto.png, or " + REPORT
    ),
    "paper-figure-kl": Paper(
        "Figure 9: KL divergence of predictions, image against augmentation; pairs with one path",
        partial(_of_110, kinds=(VANILLA, CON, CODINET)),
        then=REPORT,
    ),
    "paper-figure-augmentations": Paper(
        "Figure 10: paths of ten augmentations of 150 images", partial(_of_110, kinds=(CODINET,)), then=REPORT
    ),
    "paper-figure-paths": Paper(
        "Figure 11: relaxed paths by t-SNE, by blocks run", partial(_of_110, kinds=(VANILLA, CODINET)), then=REPORT
    ),
    "paper-figure-correlation": Paper(
        "Figure 12: path similarity over image similarity (the static run gives the features)",
        partial(_of_110, kinds=(STATIC, VANILLA, CODINET)),
        then=REPORT,
    ),
    "paper-figure-relaxation-cifar10": Paper(
        "Figure 13a: the two relaxations over costs, CIFAR-10", partial(_relaxations, paper=True), then="DIR/pareto.png"
    ),
    "paper-figure-relaxation-cifar100": Paper(
        "Figure 13b: the two relaxations over costs, CIFAR-100",
        partial(_relaxations, paper=False),
        "cifar100",
        then="DIR/pareto.png",
    ),
    "paper-figure-routers-cifar10": Paper(
        "Figure 14a: the three routers over costs, CIFAR-10", partial(_routers, paper=True), then="DIR/pareto.png"
    ),
    "paper-figure-routers-cifar100": Paper(
        "Figure 14b: the three routers over costs, CIFAR-100",
        partial(_routers, paper=False),
        "cifar100",
        then="DIR/pareto.png",
    ),
}
