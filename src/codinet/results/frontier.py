"""Accuracy against cost: rows of this repository among what has been published. Works on rows and published figures."""

from collections.abc import Iterable, Sequence

from codinet.published import CIFAR, NAMES, PUBLISHED, STATIC, Published, data_key
from codinet.results.columns import NONE, Row, budget_of, figure
from codinet.results.recipe import epochs_of
from codinet.sweep.front import pareto
from codinet.sweep.summary import spread_of

TABLES = "results", "trade-off"  # whose rows are shown
PRINTED = 0.005  # costs are published to a hundredth: what is printed as 0.09 may be up to this much less
ABOUT = """The rows of the tables of results and of budgets (bold) among published ones, in the paper's unit. Published
networks that another one matches at no higher cost are left out. The last column compares with the most accurate
published network of that cost or less; costs are published to a hundredth, and count as equal to that."""
HEAD = "| G | accuracy, % | network | from | against the best published |\n|---:|---:|---|---|---:|\n"


def section(data: str, rows: Sequence[Row]) -> str:
    """The table of one data set; nothing where nothing is published."""
    known = [row for row in PUBLISHED if row.data == data_key(data) and row.gmaccs is not None]
    if not known or not rows:
        return ""
    theirs = [(_cost(row), 0, _printed_line(row)) for row in unbeaten(known)]
    ours = [(_gmaccs(row), 1, _own_line(row, known)) for row in rows]
    lines = "".join(line for *_, line in sorted(theirs + ours))
    return f"\n## Accuracy against cost: {NAMES.get(data, data)}\n\n{ABOUT}\n\n{HEAD}{lines}"


def unbeaten(rows: Iterable[Published]) -> list[Published]:
    """Those that no other is as cheap as and as accurate as, cheapest first; of equals, the one named first."""
    first: dict[tuple[float, float], Published] = {}
    for row in rows:
        first.setdefault((_cost(row), row.accuracy), row)
    points = list(first)
    return [first[points[place]] for place in pareto(points)]


def lead(gmaccs: float, accuracy: float, rows: Iterable[Published]) -> float | None:
    """Points above the best published row of that cost or less; None where none is as cheap."""
    cheap = [row.accuracy for row in rows if _cost(row) <= gmaccs + PRINTED]
    return accuracy - max(cheap) if cheap else None


def _own_line(row: Row, known: Sequence[Published]) -> str:
    accuracy = spread_of([run["accuracy"] for run in row.runs]).mean
    ahead = lead(_gmaccs(row), accuracy, known)
    name, budget = row.first["tables"][row.table], budget_of(row.first)
    cells = (
        *(f"{_gmaccs(row):.3f}", f"**{figure('accuracy', 2)(row)}**"),
        f"**{name}**" if budget == NONE else f"**{name} at {budget}**",
        f"here, {epochs_of(row.first)} epochs",
        NONE if ahead is None else f"{ahead:+.2f}",
    )
    return f"| {' | '.join(cells)} |\n"


def _printed_line(row: Published) -> str:
    own = row.source == CIFAR or row.kind == STATIC
    name = f"{row.backbone}, {row.kind}" if own else f"{row.method}, {row.backbone}"
    return f"| {row.gmaccs:g} | {row.accuracy:.2f} | {name} | {row.source} | {NONE} |\n"


def _gmaccs(row: Row) -> float:
    return spread_of([run["paper_gmaccs"] for run in row.runs]).mean


def _cost(row: Published) -> float:
    assert row.gmaccs is not None
    return row.gmaccs
