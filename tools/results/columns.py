"""The columns of a table: a title, and the text of its cell for a row of runs. The last column holds remarks."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from codinet.analysis.augment import KINDS
from codinet.published import Published
from codinet.sweep.summary import Spread, spread_of
from codinet.thresholds import MISSED
from tools.results.paper_tables import COMPARED, ONE_PATH, ROUTING, TABLES, backbone_name, paper_paths, published_method
from tools.results.recipes import StaticBaseline, describe_recipe, epochs_of, paper_epochs
from tools.results.record import Record, feature_source

NONE = "–"


class Row(NamedTuple):
    """Runs that differ only in their seed, and what they are compared with."""

    table: str
    runs: list[Record]
    paper: Published | None
    baseline: StaticBaseline | None

    @property
    def first(self) -> Record:
        return self.runs[0]

    def mean(self, key: str) -> float:
        """The mean of a metric over the runs."""
        return spread_of([run[key] for run in self.runs]).mean

    @property
    def spread(self) -> Spread:
        """Mean and standard deviation of the accuracy."""
        return spread_of([run["accuracy"] for run in self.runs])

    @property
    def accuracy(self) -> float:
        """The mean accuracy, rounded as it is shown, so that remarks agree with the numbers next to them."""
        return round(self.mean("accuracy"), 2)


class Column(NamedTuple):
    title: str
    cell: Callable[[Row], str]
    is_text: bool = False  # text is aligned left, numbers right


def table_head(columns: Sequence[Column]) -> str:
    titles = " | ".join(column.title for column in columns)
    return f"| {titles} |\n|{''.join('---|' if column.is_text else '---:|' for column in columns)}\n"


def table_line(columns: Sequence[Column], row: Row) -> str:
    return f"| {' | '.join(column.cell(row) for column in columns)} |\n"


def budget_of(record: Record) -> str:
    """The budget or γ of a run."""
    if record["gamma"] is not None:
        return f"γ {record['gamma']:g}"
    return NONE if record["budget"] is None else f"{record['budget']:g}"


def metric(key: str, digits: int) -> Callable[[Row], str]:
    """A cell with the mean and standard deviation of a metric over seeds."""
    return lambda row: _spread(spread_of([run[key] for run in row.runs]), digits)


def _paper(key: str, digits: int) -> Callable[[Row], str]:
    """A cell with the paper's value."""

    def cell(row: Row) -> str:
        value = getattr(row.paper, key, None)
        return NONE if value is None else f"{value:.{digits}f}"

    return cell


def _analysis(value_of: Callable[[Record], float | None], digits: int) -> Callable[[Row], str]:
    """A cell with a metric of the analysis, which some runs may lack."""

    def cell(row: Row) -> str:
        values = [value_of(run["analysis"]) for run in row.runs if "analysis" in run]
        known = [value for value in values if value is not None]
        if not known:
            return NONE
        count = f" ({len(known)} of {len(values)})" if len(known) < len(values) else ""
        return _spread(spread_of(known), digits) + count

    return cell


def _percent_of_kind(kind: str) -> Callable[[Record], float | None]:
    def percent(analysis: Record) -> float | None:
        rate = analysis["same_path_kinds"].get(kind)
        return None if rate is None else 100 * rate

    return percent


def _paper_paths(key: str, digits: int, scale: float = 1) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        found = paper_paths(row.first)
        return NONE if found is None else f"{found[key] * scale:.{digits}f}"

    return cell


def _published(row: Row) -> str:
    found = published_method(row.first)
    if found is None:
        return NONE
    network = "" if found.backbone == backbone_name(row.first) else f" ({found.backbone})"
    return f"{found.accuracy:.2f} at {found.gmaccs:g} G{network}"


def _baseline(row: Row) -> str:
    if row.baseline is None:
        return NONE
    return f"{_spread(row.baseline.accuracy, 2)} ({row.baseline.name}, {row.baseline.cost_ratio:.2f} × MACs)"


def _spread(value: Spread, digits: int) -> str:
    return f"{value.mean:.{digits}f}" + ("" if value.spread is None else f" ± {value.spread:.{digits}f}")


def remarks(row: Row) -> list[str]:
    """Remarks on a row: a missed budget, collapsed routing, and how it compares with the paper and the baseline."""
    found = _budget_remarks(row)
    if row.first["method"] not in ONE_PATH and all(run["distinct_paths"] == 1 for run in row.runs):
        found.append("routing collapsed to one path")
    if row.paper is not None:
        found += _paper_remarks(row, row.paper)
        usual = paper_epochs(row.first["data"])
        if row.first["epochs"] < usual:
            found.append(f"{row.first['epochs']} epochs (paper: {usual})")
    if row.baseline is not None:
        gap = round(round(row.baseline.accuracy.mean, 2) - row.accuracy, 2)
        if gap > 0:
            ratio = f"{row.baseline.cost_ratio:.2f} × the MACs"
            found.append(f"a static {row.baseline.name} is **{gap:.2f} points more accurate** at {ratio}")
    return found


def _budget_remarks(row: Row) -> list[str]:
    budget = row.first["budget"]
    if budget is None:
        return []
    missed = [gap for run in row.runs if abs(gap := run["cost_share"] - budget) > MISSED]
    if not missed:
        return []
    count = "" if len(row.runs) == 1 else f" in {len(missed)} of {len(row.runs)} runs"
    return [f"**budget missed**{count} by {max(missed, key=abs):+.3f} of the static cost"]


def _paper_remarks(row: Row, paper: Published) -> list[str]:
    gap = round(row.accuracy - paper.accuracy, 2)
    if gap < 0:
        found = [f"**{-gap:.2f} points below** the paper"]
    else:
        found = ["as accurate as the paper" if gap == 0 else f"{gap:.2f} points above the paper"]
    if paper.gmaccs is not None:
        cost = round(row.mean("paper_gmaccs"), 2) - paper.gmaccs
        if abs(cost) < 0.005:
            found[0] += " at the same cost"
        else:
            found[0] += f" at {abs(cost):.2f} G {'more' if cost > 0 else 'less'}"
    if paper.paths is not None and paper.paths > 1:
        paths = row.mean("distinct_paths")
        if paths < paper.paths:
            found.append(f"{paths:.0f} paths (paper: {paper.paths})")
    return found


_RUN = (
    Column("network", lambda row: row.first["tables"][row.table], is_text=True),
    Column("recipe", lambda row: describe_recipe(row.first, TABLES[row.table].axis), is_text=True),
    Column("epochs", lambda row: epochs_of(row.first), is_text=True),
    Column("budget", lambda row: budget_of(row.first)),
    Column("accuracy, %", lambda row: f"{metric('accuracy', 2)(row)} ({len(row.runs)})"),
)
_COST, _PATHS = Column("cost share", metric("cost_share", 3)), Column("paths", metric("distinct_paths", 0))
_GMACCS = Column("G", metric("paper_gmaccs", 3))
_SAME_PATH = Column("same path, %", _analysis(lambda analysis: 100 * analysis["same_path"], 1))
_SWAPPED = Column("accuracy with swapped paths, %", _analysis(lambda analysis: analysis.get("swapped_any"), 2))
_REMARKS = Column("remarks", lambda row: "; ".join(remarks(row)) or NONE, is_text=True)
_END = (Column("static network of similar cost", _baseline), _REMARKS)
_USUAL = (
    *_RUN,
    Column("paper", _paper("accuracy", 2)),
    _COST,
    _GMACCS,
    Column("paper", _paper("gmaccs", 2)),
    _PATHS,
    Column("paper", _paper("paths", 0)),
    *_END,
)
_ROUTING = (
    *_RUN,
    _COST,
    _PATHS,
    Column("images", lambda row: f"{row.first['analysis']['images']:,}"),
    _SAME_PATH,
    Column("paper", _paper_paths("same_path", 1, 100)),
    *(Column(f"{kind}, %", _analysis(_percent_of_kind(kind), 1)) for kind in KINDS),
    Column("PCC, relaxed paths", _analysis(lambda analysis: analysis["pcc_relaxed"], 3)),
    Column("PCC, hard paths", _analysis(lambda analysis: analysis["pcc_hard"], 3)),
    Column("paper", _paper_paths("pcc", 3)),
    Column("features", lambda row: feature_source(row.first), is_text=True),
    _SWAPPED,
    Column("swapped within the class, %", _analysis(lambda analysis: analysis.get("swapped_class"), 2)),
    *_END,
)
_COMPARED = (
    *(column for column in _RUN if column.title != "recipe"),
    _COST,
    _GMACCS,
    _PATHS,
    _SAME_PATH,
    _SWAPPED,
    Column("published", _published, is_text=True),
    _REMARKS,
)
_UNPUBLISHED = (*_RUN, _COST, _GMACCS, _PATHS, *_END)


def columns_of(table: str) -> tuple[Column, ...]:
    others = {ROUTING: _ROUTING, COMPARED: _COMPARED, **dict.fromkeys(("photographs", "starts"), _UNPUBLISHED)}
    return others.get(table, _USUAL)
