"""docs/results.md from records: the same records give the same page, to the letter."""

from collections.abc import Sequence

from codinet.report.published import NAMES, Published, data_key
from codinet.results.recipe import deviations, epochs_of
from codinet.results.record import Record
from codinet.results.remarks import remarks
from codinet.results.tables import TABLES, sort_key
from codinet.sweep.summary import Spread, spread_of

NONE = "–"
HEAD = """# Results

What runs of this repository came to, each beside the paper's own figure. Written by `codinet results render` from
`results/*.json`, which `codinet results add RUNS` writes; not edited by hand.
"""
NOTHING = "No results have been measured yet.\n"
READING = """
- Every figure is of the test images after the last epoch (of the averaged weights, where a recipe averages them). No
  best epoch is picked, and runs that held training images back are left out.
- ± is the standard deviation over seeds, with their number in brackets.
- The cost share is of the static network's multiply-adds, routers counted in. “G” is the paper's unit: two per
  multiply-add on 32×32 networks, one on ImageNet's.
- Settings are those of `--preset paper`, but for what stands under “recipe”; its epochs are 250 + 20.
- A budget is called missed where a run is off by more than 0.02.
"""
COLUMNS = ("row", "recipe", "epochs", "budget", "accuracy, %", "paper", "cost share", "G", "paper", "paths", "paper")
LINE = f"| {' | '.join((*COLUMNS, 'remarks'))} |\n|---|---|---|{'---:|' * 8}---|\n"


def render(records: Sequence[Record]) -> str:
    """The whole page."""
    if not records:
        return f"{HEAD}\n{NOTHING}"
    parts = [HEAD, READING]
    for table in TABLES:
        standing = [record for record in records if table in record["tables"]]
        names = sorted({record["data"] for record in standing}, key=_data_order)
        parts += [_section(table, [record for record in standing if record["data"] == data]) for data in names]
    return "".join(parts)


def _data_order(data: str) -> tuple[int, str]:
    known = list(NAMES)
    return (known.index(data) if data in known else len(known), data)


def _section(name: str, records: list[Record]) -> str:
    table, data = TABLES[name], records[0]["data"]
    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in sorted(records, key=lambda record: (sort_key(record), record["seed"], record["name"])):
        key = (
            record["tables"][name],
            *deviations(record, table.axis),
            epochs_of(record),
            _budget(record),
            record["data_sha256"],
        )
        groups.setdefault(key, []).append(record)
    seen: list[Published | None] = [table.paper(group[0]) for group in groups.values()]
    rows = [_row(name, group, paper) for group, paper in zip(groups.values(), seen, strict=True)]
    text = f"\n## {table.title}: {NAMES.get(data, data)}\n\n{table.about}\n\n{LINE}" + "".join(rows)
    absent = [row for row in table.rows if row.data == data_key(data) and row not in seen]
    if absent:
        printed = "; ".join(dict.fromkeys(_printed(row) for row in absent))
        text += f"\nPrinted in the paper and not run here: {printed}.\n"
    return text + _made(records) + _commands([group[0] for group in groups.values()])


def _row(name: str, group: list[Record], paper: Published | None) -> str:
    def spread(key: str, digits: int) -> str:
        return _spread(spread_of([record[key] for record in group]), digits)

    first = group[0]
    cells = [
        first["tables"][name],
        ", ".join(deviations(first, TABLES[name].axis)) or "`paper`",
        epochs_of(first),
        _budget(first),
        f"{spread('accuracy', 2)} ({len(group)})",
        NONE if paper is None else f"{paper.accuracy:.2f}",
        spread("cost_share", 3),
        spread("paper_gmaccs", 3),
        NONE if paper is None or paper.gmaccs is None else f"{paper.gmaccs:.2f}",
        spread("distinct_paths", 0),
        NONE if paper is None or paper.paths is None else f"{paper.paths}",
        "; ".join(remarks(group, paper)) or NONE,
    ]
    return f"| {' | '.join(cells)} |\n"


def _budget(record: Record) -> str:
    if record["gamma"] is not None:
        return f"γ {record['gamma']:g}"
    return NONE if record["budget"] is None else f"{record['budget']:g}"


def _spread(value: Spread, digits: int) -> str:
    return f"{value.mean:.{digits}f}" + ("" if value.spread is None else f" ± {value.spread:.{digits}f}")


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
