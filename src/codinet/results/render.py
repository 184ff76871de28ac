"""docs/results.md from records: the same records give the same page, to the letter."""

from collections.abc import Sequence

from codinet.published import NAMES, Published, data_key
from codinet.results import frontier, pairs, routing
from codinet.results.columns import Row, budget_of, columns_of, head, line
from codinet.results.equal_cost import FACTOR, rival_of
from codinet.results.recipe import deviations, epochs_of
from codinet.results.record import Record
from codinet.results.tables import TABLES, sort_key

HEAD = """# Results

What runs of this repository came to, each beside the paper's own figure. Written by `codinet results render` from
`results/*.json`, which `codinet results add RUNS` writes; not edited by hand. Why rows fall short, and what was tried,
is in the [log](log.md).
"""
NOTHING = "No results have been measured yet.\n"
READING = f"""
- Every figure is of the test images after the last epoch (of the averaged weights, where a recipe averages them). No
  best epoch is picked, and runs that held training images back are left out.
- ± is the standard deviation over seeds, with their number in brackets.
- The cost share is of the static network's multiply-adds, routers counted in. “G” is the paper's unit: two per
  multiply-add on 32×32 networks, one on ImageNet's.
- “Recipe” names the preset whose settings are nearest (`paper` is the paper's, of 250 + 20 epochs; `best` our own), and
  every setting that is another.
- A budget is called missed where a run is off by more than 0.02.
- “Static of equal cost” is what one would take instead: the static network nearest in MACs on the same data, within a
  factor of {FACTOR}, by the recipe most like the row's.
"""


def render(records: Sequence[Record]) -> str:
    """The whole page."""
    if not records:
        return f"{HEAD}\n{NOTHING}"
    parts = [HEAD, READING]
    names = sorted({record["data"] for record in records}, key=_data_order)
    for data in names:
        parts.append(frontier.section(data, _rows_once(frontier.TABLES, data, records)))
    for data in names:
        parts.append(pairs.section(data, _rows_once(pairs.TABLES, data, records)))
    for table in TABLES:
        for data in names:
            parts.append(_section(table, data, _rows(table, data, records)))
    return "".join(parts)


def _rows(table: str, data: str, records: Sequence[Record]) -> list[Row]:
    """The rows of a table for one data set."""
    standing = [record for record in records if table in record["tables"] and record["data"] == data]
    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in sorted(standing, key=lambda record: (sort_key(record), record["seed"], record["name"])):
        groups.setdefault(_key(table, record), []).append(record)
    return [Row(table, runs, TABLES[table].paper(runs[0]), rival_of(runs, records)) for runs in groups.values()]


def _rows_once(tables: Sequence[str], data: str, records: Sequence[Record]) -> list[Row]:
    """Of several tables; the same runs may be a row of two."""
    rows = [row for table in tables for row in _rows(table, data, records)]
    return list({tuple(run["name"] for run in row.runs): row for row in rows}.values())


def _data_order(data: str) -> tuple[int, str]:
    known = list(NAMES)
    return (known.index(data) if data in known else len(known), data)


def _section(name: str, data: str, rows: list[Row]) -> str:
    """A table with what it is about, and how it was made; nothing where it has no rows."""
    if not rows:
        return ""
    table, columns = TABLES[name], columns_of(name)
    text = f"\n## {table.title}: {NAMES.get(data, data)}\n\n{table.about}\n\n{head(columns)}"
    text += "".join(line(columns, row) for row in rows)
    seen = [row.paper for row in rows]
    absent = [row for row in table.rows if row.data == data_key(data) and row not in seen]
    if absent:
        printed = "; ".join(dict.fromkeys(_printed(row) for row in absent))
        text += f"\nPrinted in the paper and not run here: {printed}.\n"
    return text + _made([run for row in rows for run in row.runs]) + _commands([row.first for row in rows])


def _key(name: str, record: Record) -> tuple[object, ...]:
    """Equal for runs that differ in their seed alone."""
    told = (record["tables"][name], *deviations(record, TABLES[name].axis), epochs_of(record), budget_of(record))
    measured = (routing.source_of(record), record["analysis"]["images"]) if name == routing.NAME else ()
    return (*told, record["data_sha256"], *measured)


def _printed(row: Published) -> str:
    return f"{row.backbone}, {row.kind}" + (f", {row.setting}" if row.setting else "") + f" ({row.accuracy:.2f} %)"


def _made(records: list[Record]) -> str:
    """Where a table's runs were made, and how long they took together."""

    def all_of(values: list[str | None]) -> str:
        return ", ".join(sorted({value or "unknown" for value in values}))

    times = [record["wall_s"] for record in records]
    known = [seconds for seconds in times if seconds is not None]
    took = f"; {_time(sum(known))} of training" if known else ""
    if known and len(known) < len(times):
        took += f" in the {len(known)} of {len(times)} runs that noted it"
    return (
        f"\nDevices: {all_of([record['device'] for record in records])}. "
        f"Commits: {all_of([record['commit'] for record in records])}. "
        f"torch: {all_of([record['versions'].get('torch') for record in records])}. "
        f"Runs: {len(records)}{took}.\n"
    )


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{seconds / 60:.1f} minutes"


def _commands(firsts: list[Record]) -> str:
    """How each row's first run is made again."""
    lines = "\n".join(dict.fromkeys(record["command"] for record in firsts))
    return f"\n<details><summary>Commands</summary>\n\n```\n{lines}\n```\n\n</details>\n"
