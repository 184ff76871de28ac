"""The tables that results stand in, what a row of each is called, and which row of the paper it is held against.

Works on records (`record.Record`) and published rows alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from codinet import published
from codinet.backbones import ARCHITECTURES
from codinet.published import CODINET, STATIC, VANILLA, Published
from codinet.sweep.shares import share_of_static

Found = Mapping[str, Any]  # a record

TEST_IMAGES = {"cifar10": 10_000, "cifar100": 10_000, "svhn": 26_032, "imagenet": 50_000}  # what the paper tests on
METHODS = {"static": STATIC, "vanilla": VANILLA, "con": "vanilla + L_con", "div": "vanilla + L_div", "codinet": CODINET}


@dataclass(frozen=True)
class Table:
    """One kind of table; there is one of it for each data set."""

    title: str
    about: str
    axis: tuple[str, str] | None  # part and field of the config that its rows differ in, beside network and method
    paper: Callable[[Found], Published | None]
    rows: tuple[Published, ...]  # all that the paper prints, on any data set


def label_of(table: str, record: Found) -> str:
    """Network, method, and what else tells rows of this table apart."""
    network, losses = record["config"]["network"], record["config"]["losses"]
    words = [backbone(record["arch"]), METHODS[record["method"]]]
    if record["method"] != "static":
        axis = TABLES[table].axis
        if axis == ("losses", "m_d"):
            words.append(f"m_d = {losses['m_d']:g}")
        for field, usual in (("router", "fc"), ("relaxation", "gumbel")):
            if network[field] != usual or axis == ("network", field):
                words.append(f"{field} {network[field]}")
    return ", ".join(words)


def backbone(arch: str) -> str:
    return f"ResNet-{arch.removeprefix('resnet')}"


def sort_key(record: Found) -> tuple[Any, ...]:
    """Rows in the order of the paper: networks, methods, settings, then falling costs."""
    network, losses = record["config"]["network"], record["config"]["losses"]
    place = list(ARCHITECTURES).index(record["arch"]) if record["arch"] in ARCHITECTURES else len(ARCHITECTURES)
    settings = (network["router"] != "fc", network["router"], network["relaxation"], losses["m_d"])
    return (place, list(METHODS).index(record["method"]), *settings, -(record["budget"] or 0), record["gamma"] or 0)


def _usual(record: Found) -> bool:
    """Whether the network routes as the paper's does in all tables."""
    network = record["config"]["network"]
    return record["method"] == "static" or (network["router"], network["relaxation"]) == ("fc", "gumbel")


def _row(rows: tuple[Published, ...], record: Found) -> Published | None:
    """The row of the same data, network and method."""
    data = published.data_key(record["data"])
    if not _usual(record) or record["n"] != TEST_IMAGES.get(data):
        return None
    wanted = (data, backbone(record["arch"]), METHODS[record["method"]])
    return next((row for row in rows if (row.data, row.backbone, row.kind) == wanted), None)


def _by_cost(record: Found) -> Published | None:
    """CoDiNet at one of the costs, or with one of the weights, of the trade-off table."""
    if record["method"] == "static":
        return _row(_RESULTS, record)
    for row in published.TRADE_OFFS:
        if _row((row,), record) is None or row.gmaccs is None:
            continue
        share = share_of_static(row.gmaccs, record["arch"])
        if record["budget"] is not None and abs(record["budget"] - share) < 0.006:
            return row
        if record["gamma"] is not None and row.setting == f"γ = {record['gamma']:.2f}":
            return row
    return None


def _by_margin(record: Found) -> Published | None:
    setting = f"m_d = {record['config']['losses']['m_d']:.2f}"
    return _row(tuple(row for row in published.DIVERSITY_MARGINS if row.setting == setting), record)


def paper_paths(record: Found) -> dict[str, float] | None:
    """What the paper measured of paths under augmentation and beside features: on CIFAR-10, with ResNet-110."""
    method = METHODS[record["method"]]
    here = (published.data_key(record["data"]), record["arch"], record["n"])
    if not _usual(record) or here != ("cifar10", "resnet110", TEST_IMAGES["cifar10"]) or method not in published.PCC:
        return None
    return {"same_path": published.SAME_PATH[method], "pcc": published.PCC[method]}


_IMAGENET = tuple(row for row in published.COMPARISON if row.data == "imagenet" and row.kind in (STATIC, CODINET))
_RESULTS = (*published.RESULTS, *_IMAGENET)

TABLES: dict[str, Table] = {
    "results": Table(
        "Static, vanilla routing and CoDiNet",
        "The paper's tables “Results on CIFAR-10/100”, “Results on SVHN” and its own rows on ImageNet.",
        None,
        lambda record: _row(_RESULTS, record),
        _RESULTS,
    ),
    "ablation": Table(
        "The losses, one by one",
        "The paper's table “Ablation Study of Routers”, which prints no costs.",
        None,
        lambda record: _row(published.ABLATIONS, record),
        published.ABLATIONS,
    ),
    "trade-off": Table(
        "Budgets",
        "The paper's table “The Efficiency and Accuracy Trade-off”; a budget is held against the row of its cost.",
        None,
        _by_cost,
        published.TRADE_OFFS,
    ),
    "margin": Table(
        "The margin of diversity",
        "The paper's table “Analysis of the Margin of Diversity”.",
        ("losses", "m_d"),
        _by_margin,
        published.DIVERSITY_MARGINS,
    ),
    "routers": Table(
        "Routers",
        "The paper draws these in a figure and prints no numbers; at the costs of its trade-off table, its FC router "
        "is held against that.",
        ("network", "router"),
        _by_cost,
        (),
    ),
    "relaxations": Table(
        "Relaxations",
        "The paper draws these in a figure and prints no numbers; at the costs of its trade-off table, its "
        "Gumbel-Softmax is held against that.",
        ("network", "relaxation"),
        _by_cost,
        (),
    ),
    "routing": Table(
        "How paths follow images",
        "From `codinet analyze`. Same path: the share of test images that keep their path when they are augmented, "
        "each in one of four ways, then the same for each way; a network with one path always keeps it. PCC: the "
        "correlation, over pairs of images, of how similar their paths are with how similar their features are. The "
        "paper took features of an ImageNet MoCo and does not say which paths, so its PCC does not measure the same. "
        "Another image's path: the accuracy when the test images swap their paths, with any other or with one of the "
        "same class, at the same mean cost; what is lost is what an image's own path is worth.",
        None,
        lambda record: None,  # what it prints of these is no row of a table: `paper_paths`
        (),
    ),
}
