"""Renders docs/results.md and its figure from records. The same records always give the same page and figure.

The page begins with a first screen (`overview`) and notes on how to read the rest: accuracy against cost, CoDiNet
against vanilla routing, and the tables of `paper_tables.TABLES`. Each of these repeats for every data set.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from codinet.errors import UserError
from codinet.published import CIFAR, NAMES, PUBLISHED, STATIC, Published, data_key
from codinet.sweep.summary import pareto
from tools.results.best_points import ALT, DATA, METHODS_ALT, Points, best_points, method_points, points_svg
from tools.results.columns import NONE, Row, budget_of, columns_of, metric, table_head, table_line
from tools.results.overview import FIGURE, METHODS_FIGURE, outcome, overview
from tools.results.paper_tables import COMPARED, TABLES, analysed_table, backbone_name, sort_key
from tools.results.recipes import SIMILAR_COST, data_of, describe_recipe, deviations, epochs_of, find_baseline
from tools.results.record import Record, feature_source

HEAD = "# Results\n"
EMPTY = "There are no results yet.\n"
NOTES = f"""
## How to read this page

Results of this repository's runs, compared with the paper. `python -m tools.results render` writes this page from
`results/*.json`; do not edit it by hand. `python -m tools.results add RUNS` adds runs. The [log](log.md) explains
shortfalls and what was tried.

- All numbers are measured on the test images after the last epoch, with the averaged weights if the recipe averages
  them. No best epoch is selected, and runs with --holdout are excluded.
- ± is the standard deviation over seeds; the number of seeds is in parentheses.
- The cost share is the fraction of the static network's multiply-adds, routers included. “G” is the paper's unit: two
  per multiply-add for networks on 32×32 images, one for ImageNet networks.
- “Recipe” names the closest preset (`paper`: the paper's, 250 + 20 epochs; `best`: our own; `imagenet`: the paper's for
  ImageNet networks) and every setting that differs from it.
- A budget is missed if a run's cost share is off by more than 0.02.
- “Static network of similar cost” is the alternative to routing: the static network closest in MACs on the same data,
  within a factor of {SIMILAR_COST}, trained with the recipe most similar to the row's.
"""

FRONTIER_TABLES = "results", "trade-off"
FRONTIER_NOTES = """Our rows from the main and budget tables (bold) among published results, in the paper's unit. A
published network is left out if another one is at least as accurate at the same or a lower cost. The last column is the
difference to the most accurate published network of the same or a lower cost. Published costs have two decimals, and
costs that agree to that precision count as equal."""
FRONTIER_HEAD = "| G | accuracy, % | network | source | vs. best published |\n|---:|---:|---|---|---:|\n"
ROUNDING = 0.005  # published costs have two decimals, so one printed as 0.09 may be this much lower

PAIR_TABLES = "results", "ablation", "trade-off"
PAIR_NOTES = """The effect of the path losses: runs with the same budget and recipe, with and without them. A difference
counts if it is larger than both standard deviations. A single run has no standard deviation, so its difference means
little."""
_PAIR_TITLES = ("network", "CoDiNet's recipe", "epochs", "budget", "vanilla, %", "paths", "CoDiNet, %", "paths")
PAIR_HEAD = f"| {' | '.join(_PAIR_TITLES)} | difference |  |\n|---|---|---|---:|---:|---:|---:|---:|---:|---|\n"


def render(records: Sequence[Record]) -> str:
    """Renders the whole page."""
    if not records:
        return f"{HEAD}\n{EMPTY}"
    data_sets = sorted({record["data"] for record in records}, key=_data_order)
    parts = [HEAD, _overview(data_sets, records), NOTES]
    parts += [_frontier_section(data, _distinct_rows(FRONTIER_TABLES, data, records)) for data in data_sets]
    parts += [_pair_section(data, _distinct_rows(PAIR_TABLES, data, records)) for data in data_sets]
    parts += [_table_section(table, data, _rows(table, data, records)) for table in TABLES for data in data_sets]
    return "".join(parts)


def render_figures(records: Sequence[Record]) -> dict[str, str]:
    """Renders the figures as SVG, by their places relative to the page; those without any points are left out."""
    methods = method_points(_rows(COMPARED, DATA, records))
    drawn = {FIGURE: (_points(records), ALT), METHODS_FIGURE: (methods, METHODS_ALT)}
    return {place: points_svg(points, alt) for place, (points, alt) in drawn.items() if points}


def _overview(data_sets: Iterable[str], records: Sequence[Record]) -> str:
    rows = [row for data in data_sets for row in _distinct_rows(PAIR_TABLES, data, records)]
    return overview(rows, _pairs(rows), _points(records))


def _points(records: Sequence[Record]) -> Points:
    return best_points(_distinct_rows(FRONTIER_TABLES, DATA, records), best_published(_known(DATA)))


def _data_order(data: str) -> tuple[int, str]:
    known = list(NAMES)
    return (known.index(data) if data in known else len(known), data)


def _rows(table: str, data: str, records: Sequence[Record]) -> list[Row]:
    """The rows of a table for one data set: runs that differ only in their seed share a row."""
    listed = [record for record in records if table in record["tables"] and record["data"] == data]
    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in sorted(listed, key=lambda record: (sort_key(record), record["seed"], record["name"])):
        groups.setdefault(_group_key(table, record), []).append(record)
    for runs in groups.values():
        for one, other in pairwise(runs):
            if one["seed"] == other["seed"]:
                raise UserError(f"{one['name']} and {other['name']} are the same training; remove one of the files.")
    has_own_baseline = table == COMPARED  # the row of the best fixed path
    return [
        Row(table, runs, TABLES[table].paper(runs[0]), None if has_own_baseline else find_baseline(runs, records))
        for runs in groups.values()
    ]


def _group_key(table: str, record: Record) -> tuple[object, ...]:
    recipe = (*deviations(record, TABLES[table].axis), epochs_of(record), budget_of(record), data_of(record))
    shown = analysed_table((table,), record["method"])
    analysis = (feature_source(record), record["analysis"]["images"]) if shown else ()
    return (record["tables"][table], *recipe, *analysis)


def _distinct_rows(tables: Sequence[str], data: str, records: Sequence[Record]) -> list[Row]:
    """The rows of several tables; the same runs may be listed in two of them."""
    rows = [row for table in tables for row in _rows(table, data, records)]
    return list({tuple(run["name"] for run in row.runs): row for row in rows}.values())


def _title(title: str, data: str) -> str:
    return f"\n## {title}: {NAMES.get(data, data)}\n\n"


# Accuracy against cost


def _frontier_section(data: str, rows: Sequence[Row]) -> str:
    known = _known(data)
    if not known or not rows:
        return ""
    published = [(_cost(row), 0, _published_line(row)) for row in best_published(known)]
    ours = [(row.mean("paper_gmaccs"), 1, _own_line(row, known)) for row in rows]
    lines = "".join(line for *_, line in sorted(published + ours))
    return f"{_title('Accuracy against cost', data)}{FRONTIER_NOTES}\n\n{FRONTIER_HEAD}{lines}"


def _known(data: str) -> list[Published]:
    return [row for row in PUBLISHED if row.data == data_key(data) and row.gmaccs is not None]


def best_published(rows: Iterable[Published]) -> list[Published]:
    """The rows on the Pareto front of accuracy and cost, cheapest first; among equal rows, the first."""
    first: dict[tuple[float, float], Published] = {}
    for row in rows:
        first.setdefault((_cost(row), row.accuracy), row)
    points = list(first)
    return [first[points[place]] for place in pareto(points)]


def lead(gmaccs: float, accuracy: float, rows: Iterable[Published]) -> float | None:
    """The difference to the most accurate published row of the same or a lower cost; None if there is none."""
    cheap = [row.accuracy for row in rows if _cost(row) <= gmaccs + ROUNDING]
    return accuracy - max(cheap) if cheap else None


def _own_line(row: Row, known: Sequence[Published]) -> str:
    gmaccs, budget = row.mean("paper_gmaccs"), budget_of(row.first)
    difference = lead(gmaccs, row.mean("accuracy"), known)
    name = row.first["tables"][row.table] + ("" if budget == NONE else f" at {budget}")
    source = f"ours, {epochs_of(row.first)} epochs"
    versus = NONE if difference is None else f"{difference:+.2f}"
    return f"| {gmaccs:.3f} | **{metric('accuracy', 2)(row)}** | **{name}** | {source} | {versus} |\n"


def _published_line(row: Published) -> str:
    from_paper = row.source == CIFAR or row.kind == STATIC
    name = f"{row.backbone}, {row.kind}" if from_paper else f"{row.method}, {row.backbone}"
    return f"| {row.gmaccs:g} | {row.accuracy:.2f} | {name} | {row.source} | {NONE} |\n"


def _cost(row: Published) -> float:
    assert row.gmaccs is not None
    return row.gmaccs


# CoDiNet against vanilla routing


def _pair_section(data: str, rows: Sequence[Row]) -> str:
    lines = [_pair_line(*pair) for pair in _pairs(rows)]
    if not lines:
        return ""
    return f"{_title('CoDiNet against vanilla routing', data)}{PAIR_NOTES}\n\n{PAIR_HEAD}{''.join(lines)}"


def _pairs(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """The vanilla row and the CoDiNet row of the same settings, for every CoDiNet row that has one."""
    vanilla = {_pair_key(row): row for row in rows if row.first["method"] == "vanilla"}
    codinet = sorted((row for row in rows if row.first["method"] == "codinet"), key=lambda row: sort_key(row.first))
    return [(vanilla[_pair_key(row)], row) for row in codinet if _pair_key(row) in vanilla]


def _pair_key(row: Row) -> tuple[object, ...]:
    """All settings except the path losses, which vanilla routing does not use."""
    record = {**row.first, "method": "vanilla"}
    network = record["config"]["network"]
    setup = record["arch"], network["router"], network["relaxation"], data_of(record)
    return (*setup, *deviations(record), epochs_of(record), budget_of(record))


def _pair_line(vanilla: Row, codinet: Row) -> str:
    first, paths = codinet.first, metric("distinct_paths", 0)
    cells = [backbone_name(first), describe_recipe(first), epochs_of(first), budget_of(first)]
    for row in (vanilla, codinet):
        cells += [f"{metric('accuracy', 2)(row)} ({len(row.runs)})", paths(row)]
    difference = round(codinet.accuracy - vanilla.accuracy, 2)  # of the numbers as shown
    return f"| {' | '.join([*cells, f'{difference:+.2f}', _verdict(vanilla, codinet)])} |\n"


def _verdict(vanilla: Row, codinet: Row) -> str:
    seeds = [len(row.runs) > 1 for row in (vanilla, codinet)]
    if not all(seeds):
        return "only one run of one method" if any(seeds) else "one run each"
    found = outcome(codinet, vanilla.spread)
    return "within the standard deviation" if found == "level" else f"**{found}** by more than the standard deviation"


# The tables


def _table_section(name: str, data: str, rows: list[Row]) -> str:
    """A table with its description, the paper's rows that are missing, and how its runs were made."""
    if not rows:
        return ""
    table, columns = TABLES[name], columns_of(name)
    text = f"{_title(table.title, data)}{table.about}\n\n{table_head(columns)}"
    text += "".join(table_line(columns, row) for row in rows)
    shown = [row.paper for row in rows]
    absent = [row for row in table.rows if row.data == data_key(data) and row not in shown]
    if absent:
        text += f"\nIn the paper but not run here: {'; '.join(dict.fromkeys(map(_name_published, absent)))}.\n"
    return text + _provenance([run for row in rows for run in row.runs]) + _commands([row.first for row in rows])


def _name_published(row: Published) -> str:
    return f"{row.backbone}, {row.kind}" + (f", {row.setting}" if row.setting else "") + f" ({row.accuracy:.2f} %)"


def _provenance(records: list[Record]) -> str:
    """Devices, commits and versions of a table's runs, and their total training time."""

    def distinct(values: list[str | None]) -> str:
        return ", ".join(sorted({value or "unknown" for value in values}))

    times = [record["wall_s"] for record in records]
    known = [seconds for seconds in times if seconds is not None]
    training = f"; {_duration(sum(known))} of training" if known else ""
    if known and len(known) < len(times):
        training += f" (known for {len(known)} of {len(times)} runs)"
    return (
        f"\nDevices: {distinct([record['device'] for record in records])}. "
        f"Commits: {distinct([record['commit'] for record in records])}. "
        f"torch: {distinct([record['versions'].get('torch') for record in records])}. "
        f"Runs: {len(records)}{training}.\n"
    )


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{seconds / 60:.1f} minutes"


def _commands(firsts: list[Record]) -> str:
    """The command that reproduces the first run of each row."""
    lines = "\n".join(dict.fromkeys(record["command"] for record in firsts))
    return f"\n<details><summary>Commands</summary>\n\n```bash\n{lines}\n```\n\n</details>\n"
