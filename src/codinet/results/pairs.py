"""CoDiNet against vanilla routing: rows that differ in the losses on paths alone. Works on rows."""

from collections.abc import Sequence
from typing import NamedTuple

from codinet.published import NAMES
from codinet.results.columns import Row, budget_of, figure
from codinet.results.recipe import deviations, epochs_of, told
from codinet.results.remarks import shown_accuracy
from codinet.results.tables import backbone, sort_key
from codinet.sweep.summary import spread_of

TABLES = "results", "ablation", "trade-off"  # whose rows are compared
ABOUT = """What the losses on paths bring: runs of one budget and one recipe, with them and without. The spread is the
larger of the two standard deviations; a single run has none, and its difference says little."""
TITLES = ("network", "CoDiNet's recipe", "epochs", "budget", "vanilla, %", "paths", "CoDiNet, %", "paths", "ahead", "")
HEAD = f"| {' | '.join(TITLES)} |\n|---|---|---|---:|---:|---:|---:|---:|---:|---|\n"


class Pair(NamedTuple):
    vanilla: Row
    codinet: Row

    @property
    def ahead(self) -> float:
        """By how many points CoDiNet is, of the figures as they are shown."""
        return round(shown_accuracy(self.codinet.runs) - shown_accuracy(self.vanilla.runs), 2)

    @property
    def verdict(self) -> str:
        spreads = [spread_of([run["accuracy"] for run in row.runs]).spread for row in self]
        known = [spread for spread in spreads if spread is not None]
        if len(known) < len(spreads):
            return "a single run" + (" each" if not known else " of one")
        if abs(self.ahead) <= max(known):
            return "within the spread"
        return f"**{'ahead' if self.ahead > 0 else 'behind'}** by more than the spread"


def section(data: str, rows: Sequence[Row]) -> str:
    """The table of one data set; nothing where there is no such pair."""
    pairs = pairs_of(rows)
    if not pairs:
        return ""
    lines = "".join(_line(pair) for pair in pairs)
    return f"\n## CoDiNet against vanilla routing: {NAMES.get(data, data)}\n\n{ABOUT}\n\n{HEAD}{lines}"


def pairs_of(rows: Sequence[Row]) -> list[Pair]:
    """Every CoDiNet with the vanilla routing of its settings: networks as in other tables, budgets falling."""
    vanilla = {_settings(row): row for row in rows if row.first["method"] == "vanilla"}
    codinet = sorted((row for row in rows if row.first["method"] == "codinet"), key=lambda row: sort_key(row.first))
    return [Pair(vanilla[_settings(row)], row) for row in codinet if _settings(row) in vanilla]


def _settings(row: Row) -> tuple[object, ...]:
    """All but the losses on paths, which vanilla routing makes no use of."""
    first = {**row.first, "method": "vanilla"}
    network = first["config"]["network"]
    who = first["arch"], network["router"], network["relaxation"], first["data_sha256"]
    return (*who, *deviations(first), epochs_of(first), budget_of(first))


def _line(pair: Pair) -> str:
    first, paths = pair.codinet.first, figure("distinct_paths", 0)
    cells = [backbone(first["arch"]), told(first), epochs_of(first), budget_of(first)]
    for row in pair:
        cells += [f"{figure('accuracy', 2)(row)} ({len(row.runs)})", paths(row)]
    return f"| {' | '.join([*cells, f'{pair.ahead:+.2f}', pair.verdict])} |\n"
