"""The tables of the page: their titles, the names of their rows, and the paper's row that each run is compared with.

Uses records (`tools.results.record`) and published rows only.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from codinet import published
from codinet.backbones import ARCHITECTURES
from codinet.methods import NAMES, method_named
from codinet.published import CODINET, STATIC, VANILLA, Published
from codinet.sweep.papers import share_of_static

ROUTING, COMPARED = "routing", "methods"  # the tables that show analyses
TEST_IMAGES = {"cifar10": 10_000, "cifar100": 10_000, "svhn": 26_032, "imagenet": 50_000}  # the paper's test sets
METHODS = {"static": STATIC, "vanilla": VANILLA, "con": "vanilla + L_con", "div": "vanilla + L_div", "codinet": CODINET}
METHODS |= {name: method_named(name).title for name in NAMES if name not in METHODS}
ONE_PATH = {"static"} | {name for name in NAMES if method_named(name).one_path}  # meant to have a single path


@dataclass(frozen=True)
class Table:
    """One kind of table. The page has one per data set."""

    title: str
    about: str
    axis: tuple[str, str] | None  # part and field of the config that its rows vary, besides network and method
    paper: Callable[[Mapping[str, Any]], Published | None]  # the paper's row for a record
    rows: tuple[Published, ...]  # all rows of the paper's table, on every data set


def label_of(table: str, record: Mapping[str, Any]) -> str:
    """The name of a record's row: network, method, and any setting that distinguishes rows of this table."""
    network, losses = record["config"]["network"], record["config"]["losses"]
    parts = [backbone_name(record), METHODS[record["method"]]]
    if record["method"] != "static":
        axis = TABLES[table].axis
        if axis == ("losses", "m_d"):
            parts.append(f"m_d = {losses['m_d']:g}")
        usual_router = method_named(record["method"]).routers[0] if record["method"] in NAMES else "fc"
        for field, usual in (("router", usual_router), ("relaxation", "gumbel")):
            if network[field] != usual or axis == ("network", field):
                parts.append(f"{field} {network[field]}")
    return ", ".join(parts)


def analysed_table(tables: Iterable[str], method: str) -> str | None:
    """The table for which a run of a method needs an analysis. Only one of them lists static runs."""
    needing = (ROUTING,) if method == "static" else (ROUTING, COMPARED)
    return next((table for table in needing if table in tables), None)


def backbone_name(record: Mapping[str, Any]) -> str:
    """The network of a record: `ResNet-32` for `resnet32`."""
    name = f"ResNet-{record['arch'].removeprefix('resnet')}"
    return f"{name}, pruned" if record["config"]["network"]["widths"] else name


def sort_key(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """Sorts rows as in the paper: by network, method and settings, then from the highest cost to the lowest."""
    network, losses, extra = (record["config"][part] for part in ("network", "losses", "extra"))
    place = list(ARCHITECTURES).index(record["arch"]) if record["arch"] in ARCHITECTURES else len(ARCHITECTURES)
    settings = (network["router"] != "fc", network["router"], network["relaxation"], losses["m_d"])
    links = (bool(extra["start"]), bool(extra["teacher"]))
    cost = (-(record["budget"] or 0), record["gamma"] or 0)
    return (place, list(METHODS).index(record["method"]), *settings, *links, *cost)


def _uses_paper_routing(record: Mapping[str, Any]) -> bool:
    """Whether the network has the router and relaxation of the paper's tables."""
    network = record["config"]["network"]
    return record["method"] == "static" or (network["router"], network["relaxation"]) == ("fc", "gumbel")


def _row(rows: tuple[Published, ...], record: Mapping[str, Any]) -> Published | None:
    """The row with the record's data, network and method."""
    data = published.data_key(record["data"])
    if not _uses_paper_routing(record) or record["n"] != TEST_IMAGES.get(data):
        return None
    wanted = (data, backbone_name(record), METHODS[record["method"]])
    return next((row for row in rows if (row.data, row.backbone, row.kind) == wanted), None)


def _by_cost(record: Mapping[str, Any]) -> Published | None:
    """The row of the trade-off table with the record's cost, or with its weight γ."""
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


def _by_margin(record: Mapping[str, Any]) -> Published | None:
    setting = f"m_d = {record['config']['losses']['m_d']:.2f}"
    return _row(tuple(row for row in published.DIVERSITY_MARGINS if row.setting == setting), record)


def paper_paths(record: Mapping[str, Any]) -> dict[str, float] | None:
    """The paper's same-path rate and PCC; it reports them for ResNet-110 on CIFAR-10 only."""
    method = METHODS[record["method"]]
    setting = (published.data_key(record["data"]), backbone_name(record), record["n"])
    reported = setting == ("cifar10", "ResNet-110", TEST_IMAGES["cifar10"]) and method in published.PCC
    if not _uses_paper_routing(record) or not reported:
        return None
    return {"same_path": published.SAME_PATH[method], "pcc": published.PCC[method]}


def published_method(record: Mapping[str, Any]) -> Published | None:
    """The published row of a record's method on the same data: on the same network if there is one."""
    data, method = published.data_key(record["data"]), METHODS[record["method"]]
    rows = [row for row in (*published.RESULTS, *published.COMPARISON) if row.data == data and row.gmaccs is not None]
    rows = [row for row in rows if method in (row.kind, row.method)]
    same = [row for row in rows if row.backbone == backbone_name(record)]
    return next(iter(same or rows), None)


_IMAGENET = tuple(row for row in published.COMPARISON if row.data == "imagenet" and row.kind in (STATIC, CODINET))
_RESULTS = (*published.RESULTS, *_IMAGENET)

TABLES: dict[str, Table] = {
    "results": Table(
        "Static, vanilla routing and CoDiNet",
        "Compared with the paper's tables “Results on CIFAR-10/100” and “Results on SVHN” and its rows on ImageNet.",
        None,
        lambda record: _row(_RESULTS, record),
        _RESULTS,
    ),
    "ablation": Table(
        "Ablation of the losses",
        "Compared with the paper's table “Ablation Study of Routers”, which lists no costs.",
        None,
        lambda record: _row(published.ABLATIONS, record),
        published.ABLATIONS,
    ),
    "trade-off": Table(
        "Budgets",
        "Compared with the paper's table “The Efficiency and Accuracy Trade-off”, at the row of the same cost.",
        None,
        _by_cost,
        published.TRADE_OFFS,
    ),
    "margin": Table(
        "Diversity margin",
        "Compared with the paper's table “Analysis of the Margin of Diversity”.",
        ("losses", "m_d"),
        _by_margin,
        published.DIVERSITY_MARGINS,
    ),
    "routers": Table(
        "Routers",
        "The paper shows these in a figure without numbers. Our FC router is compared with the trade-off table where "
        "the costs match.",
        ("network", "router"),
        _by_cost,
        (),
    ),
    "relaxations": Table(
        "Relaxations",
        "The paper shows these in a figure without numbers. Our Gumbel-Softmax is compared with the trade-off table "
        "where the costs match.",
        ("network", "relaxation"),
        _by_cost,
        (),
    ),
    "starts": Table(
        "Does a static start help?",
        "The same short recipe with and without trained weights to start from, and with and without a teacher. Both "
        "are the static network of each seed, trained with the same recipe.",
        None,
        lambda record: None,
        (),
    ),
    COMPARED: Table(
        "Methods",
        "Every method of `--method`, trained from scratch with the same epochs, without a teacher, to the same budgets "
        "([what each one is](methods.md)). The best fixed path is a static network of the same cost and recipe, which "
        "routers have to beat. Same path: the percentage of test images that keep their path under augmentation. "
        "Swapped paths: the accuracy when every test image takes the path of another one. Published: accuracy and cost "
        "in the paper's unit, from longer trainings, and of another network where one is named.",
        None,
        lambda record: None,  # other networks and costs: `published_method`
        (),
    ),
    "photographs": Table(
        "Photographs",
        "9,469 training and 3,925 test photographs of ten ImageNet classes, trained from scratch with one recipe. "
        "These are **ten classes, not ImageNet**: the numbers cannot be compared with published ones.",
        None,
        lambda record: None,
        (),
    ),
    ROUTING: Table(
        "Routing behaviour",
        "Measured by `codinet analyze`. Same path: the percentage of test images that keep their path under "
        "augmentation, overall (each image is augmented in one of four ways) and for each way. A network with a single "
        "path always keeps it. PCC: the Pearson correlation, over pairs of images, between the similarity of their "
        "paths and the similarity of their features. The paper used features of a MoCo network trained on ImageNet "
        "and does not say which paths it used, so its PCC is not directly comparable. Swapped paths: the accuracy when "
        "every test image takes the path of another image, either any image or one of the same class, at the same mean "
        "cost. The drop in accuracy shows how much an image's own path matters.",
        None,
        lambda record: None,  # the paper reports these outside its tables: `paper_paths`
        (),
    ),
}
