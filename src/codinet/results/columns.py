"""The columns of tables: what stands over each, and what a row of runs puts into it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from codinet.analysis.augment import KINDS
from codinet.published import Published
from codinet.results import routing
from codinet.results.equal_cost import Rival
from codinet.results.recipe import epochs_of, told
from codinet.results.record import Record
from codinet.results.remarks import remarks
from codinet.results.tables import TABLES, paper_paths
from codinet.sweep.summary import Spread, spread_of

NONE = "–"


class Row(NamedTuple):
    """Runs that differ in their seed alone, and what they are held against."""

    table: str
    runs: list[Record]
    paper: Published | None
    rival: Rival | None

    @property
    def first(self) -> Record:
        return self.runs[0]


class Column(NamedTuple):
    title: str
    cell: Callable[[Row], str]
    words: bool = False  # which stand left


def head(columns: Sequence[Column]) -> str:
    titles = " | ".join(column.title for column in columns)
    return f"| {titles} |\n|{''.join('---|' if column.words else '---:|' for column in columns)}\n"


def line(columns: Sequence[Column], row: Row) -> str:
    return f"| {' | '.join(column.cell(row) for column in columns)} |\n"


def budget_of(record: Record) -> str:
    if record["gamma"] is not None:
        return f"γ {record['gamma']:g}"
    return NONE if record["budget"] is None else f"{record['budget']:g}"


def figure(key: str, digits: int) -> Callable[[Row], str]:
    """Mean and spread over seeds."""
    return lambda row: _spread(spread_of([run[key] for run in row.runs]), digits)


def _printed(key: str, digits: int) -> Callable[[Row], str]:
    """What the paper has in its column."""

    def cell(row: Row) -> str:
        value = getattr(row.paper, key, None)
        return NONE if value is None else f"{value:.{digits}f}"

    return cell


def _analysed(value_of: Callable[[Record], float | None], digits: int) -> Callable[[Row], str]:
    """A figure of the analysis, which not every run need have."""

    def cell(row: Row) -> str:
        values = [value_of(run["analysis"]) for run in row.runs]
        known = [value for value in values if value is not None]
        if not known:
            return NONE
        some = f" ({len(known)} of {len(values)})" if len(known) < len(values) else ""
        return _spread(spread_of(known), digits) + some

    return cell


def _percent_of_kind(kind: str) -> Callable[[Record], float | None]:
    def percent(analysis: Record) -> float | None:
        share = analysis["same_path_kinds"].get(kind)
        return None if share is None else 100 * share

    return percent


def _paper_paths(key: str, digits: int, scale: float = 1) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        found = paper_paths(row.first)
        return NONE if found is None else f"{found[key] * scale:.{digits}f}"

    return cell


def _rival(row: Row) -> str:
    if row.rival is None:
        return NONE
    return f"{_spread(row.rival.accuracy, 2)} ({row.rival.name}, {row.rival.share:.2f} of the MACs)"


def _spread(value: Spread, digits: int) -> str:
    return f"{value.mean:.{digits}f}" + ("" if value.spread is None else f" ± {value.spread:.{digits}f}")


_RUN = (
    Column("row", lambda row: row.first["tables"][row.table], words=True),
    Column("recipe", lambda row: told(row.first, TABLES[row.table].axis), words=True),
    Column("epochs", lambda row: epochs_of(row.first), words=True),
    Column("budget", lambda row: budget_of(row.first)),
    Column("accuracy, %", lambda row: f"{figure('accuracy', 2)(row)} ({len(row.runs)})"),
)
_COST, _PATHS = Column("cost share", figure("cost_share", 3)), Column("paths", figure("distinct_paths", 0))
_END = (
    Column("static of equal cost", _rival),
    Column("remarks", lambda row: "; ".join(remarks(row.runs, row.paper, row.rival)) or NONE, words=True),
)
_USUAL = (
    *_RUN,
    Column("paper", _printed("accuracy", 2)),
    _COST,
    Column("G", figure("paper_gmaccs", 3)),
    Column("paper", _printed("gmaccs", 2)),
    _PATHS,
    Column("paper", _printed("paths", 0)),
    *_END,
)
_ROUTING = (
    *_RUN,
    _COST,
    _PATHS,
    Column("images", lambda row: f"{row.first['analysis']['images']:,}"),
    Column("same path, %", _analysed(lambda analysis: 100 * analysis["same_path"], 1)),
    Column("paper", _paper_paths("same_path", 1, 100)),
    *(Column(f"{kind}, %", _analysed(_percent_of_kind(kind), 1)) for kind in KINDS),
    Column("PCC, relaxed paths", _analysed(lambda analysis: analysis["pcc_relaxed"], 3)),
    Column("PCC, hard paths", _analysed(lambda analysis: analysis["pcc_hard"], 3)),
    Column("paper", _paper_paths("pcc", 3)),
    Column("features", lambda row: routing.source_of(row.first), words=True),
    Column("accuracy with another image's path, %", _analysed(lambda analysis: analysis.get("swapped_any"), 2)),
    Column("… of its class, %", _analysed(lambda analysis: analysis.get("swapped_class"), 2)),
    *_END,
)


def columns_of(table: str) -> tuple[Column, ...]:
    return _ROUTING if table == routing.NAME else _USUAL
