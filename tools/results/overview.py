"""The first screen of docs/results.md: the questions, short answers, one figure and one small table.

Every number is computed from the rows that `render` makes. This module reads no files and does not group runs.
"""

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from codinet.commands.printing import counted
from codinet.published import NAMES
from codinet.sweep.summary import Spread, spread_of
from tools.results.best_points import ALT, LIMITS, Points, points_table
from tools.results.columns import Row, budget_of
from tools.results.paper_tables import METHODS, analysed_table, backbone_name
from tools.results.recipes import trained_alike

Pair = tuple[Row, Row]  # vanilla routing and CoDiNet with the same settings
FIGURE, METHODS_FIGURE = "images/results.svg", "images/methods.svg"  # relative to the page
SEEDS = 3  # the answers count networks with at least so many
QUESTION = """Does a network that decides per image which blocks to run beat a static network of the same cost? And do
CoDiNet's path losses help over vanilla routing, which has the same routers without these losses? The answers count
routed networks with {seeds} seeds or more, on {data}. “Level” means that the difference is at most the larger standard
deviation.
"""
FIGURE_NOTES = f"""Our most accurate networks and published ones on CIFAR-10, up to {LIMITS[-1]:g} G. Bars are standard
deviations; our points without one are single runs. The table has the most accurate point of each kind up to a given
cost. Points are picked by test accuracy, and recipes and seeds differ within a row, so a small difference means little.
A longer table has [every network](#accuracy-against-cost-cifar-10).
"""
_HELP = {(True, True): "trained weights to start from and a teacher", (True, False): "trained weights to start from"}
_HELP |= {(False, True): "a teacher", (False, False): "neither trained weights to start from nor a teacher"}


def overview(rows: Iterable[Row], pairs: Iterable[Pair], points: Points) -> str:
    """The first screen; empty if there is nothing to show.

    Args:
        rows: The rows of all data sets.
        pairs: All pairs among them.
        points: The points of the figure.
    """
    every = [row for row in rows if row.first["method"] in ("vanilla", "codinet")]
    routed = [row for row in every if len(row.runs) >= SEEDS]
    counted_pairs = [pair for pair in pairs if all(len(row.runs) >= SEEDS for row in pair)]
    found = _against_static(routed), _trained_alike(every), _against_vanilla(counted_pairs), _swapped(routed)
    answers = [text for text in found if text]
    data = " and ".join(dict.fromkeys(map(_data_name, routed)))
    text = ""
    if answers:
        text += f"\n{_wrap(QUESTION.format(seeds=SEEDS, data=data))}\n"
        text += "".join(_wrap(f"- {answer}", indent="  ") for answer in answers)
    if points:
        text += f"\n![{ALT}]({FIGURE})\n\n{_wrap(FIGURE_NOTES)}\n{points_table(points)}"
    return text


def outcome(row: Row, other: Spread) -> str:
    """Whether a row is better than another accuracy, level or worse, judged by the numbers as shown."""
    difference = round(row.accuracy - round(other.mean, 2), 2)
    if abs(difference) <= max(row.spread.spread or 0, other.spread or 0):
        return "level"
    return "better" if difference > 0 else "worse"


def _against_static(routed: Iterable[Row]) -> str:
    compared = [(row, base, outcome(row, base.accuracy)) for row in routed if (base := row.baseline) is not None]
    if not compared:
        return ""
    groups: dict[str, list[str]] = {}
    for row, _, found in compared:
        groups.setdefault(_help(row.first), []).append(found)
    words = {_in_a_word(found) for found in groups.values()}
    answer = words.pop() if len(words) == 1 else "it depends on the training"
    counts = " ".join(f"With {name}: {_counts(found)}." for name, found in sorted(groups.items(), reverse=True))
    statics = [base for _, base, _ in compared]
    trained = " or ".join(sorted({_help(base.runs[0]) for base in statics}))
    ratios, runs = [base.cost_ratio for base in statics], [len(base.runs) for base in statics]
    seeds = counted(min(runs), "seed") + (" or more" if max(runs) > min(runs) else "")
    costs = f"{min(ratios):.2f} to {max(ratios):.2f} times the MACs"
    text = f"**Routing against a static network of the same cost: {answer}.** {counts} "
    text += f"The static networks have {costs} and {seeds} each. They were trained with {trained}."
    unequal = any(_help(row.first) != _help(base.runs[0]) for row, base, _ in compared)
    return text + (" So routing is not the only difference." if unequal else "")


def _trained_alike(routed: Iterable[Row]) -> str:
    """Rows next to a static network with the same teacher, settings and number of epochs, most accurate first."""
    texts = []
    for row in sorted(routed, key=lambda row: (_data_name(row), -row.accuracy)):
        base = row.baseline
        if base is None or not row.first["config"]["extra"]["teacher"] or not trained_alike(base.runs[0], row.first):
            continue
        network = f"{backbone_name(row.first)}, {METHODS[row.first['method']]} at {budget_of(row.first)}"
        texts.append(
            f"{network}, has {row.accuracy:.2f} % on {_data_name(row)}, and the static {base.name} "
            f"{base.accuracy.mean:.2f} % at {base.cost_ratio:.2f} times the MACs"
        )
    start = "**With the same teacher, settings and epochs as a static network**, single runs included:"
    return f"{start} {'; '.join(texts)}." if texts else ""


def _against_vanilla(pairs: Sequence[Pair]) -> str:
    if not pairs:
        return ""
    found = [outcome(codinet, vanilla.spread) for vanilla, codinet in pairs]
    changed = [_difference(pair) for pair, word in zip(pairs, found, strict=True) if word != "level"]
    text = f"**CoDiNet against vanilla routing, same recipe and budget: {_in_a_word(found)}.** {_counts(found)}"
    return text + (f": {'; '.join(changed)}." if changed else ".")


def _difference(pair: Pair) -> str:
    vanilla, codinet = pair
    where = f"{backbone_name(codinet.first)} on {_data_name(codinet)}"
    return f"{codinet.accuracy - vanilla.accuracy:+.2f} points at a budget of {budget_of(codinet.first)} ({where})"


def _swapped(routed: Iterable[Row]) -> str:
    """What each method loses if images swap their paths: the median over rows of the mean over seeds."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in routed:
        analysed = [run for run in row.runs if analysed_table(run["tables"], run["method"])]
        runs = [run for run in analysed if run["analysis"].get("swapped_any") is not None]
        if runs:
            lost = spread_of([run["accuracy"] - run["analysis"]["swapped_any"] for run in runs]).mean
            found.setdefault(METHODS[row.first["method"]], []).append((lost, row.mean("distinct_paths")))
    texts = []
    for method, values in found.items():
        count = counted(len(values), "network")
        lost, paths = (median(column) for column in zip(*values, strict=True))
        texts.append(f"{method} loses {lost:.1f} points and has {paths:.0f} paths (medians of {count})")
    start = "**How much the choice per image matters.** If every image takes the path of another image,"
    return f"{start} {'; '.join(texts)}." if texts else ""


def _in_a_word(outcomes: Sequence[str]) -> str:
    top, count = Counter(outcomes).most_common(1)[0]
    return top if count == len(outcomes) else f"mostly {top}" if 2 * count > len(outcomes) else "mixed"


def _counts(outcomes: Sequence[str]) -> str:
    return ", ".join(f"{outcomes.count(word)} {word}" for word in ("better", "level", "worse"))


def _help(record: Mapping[str, Any]) -> str:
    """What a training had besides images and labels."""
    extra = record["config"]["extra"]
    return _HELP[bool(extra["start"]), bool(extra["teacher"])]


def _data_name(row: Row) -> str:
    data: str = row.first["data"]
    return NAMES.get(data, data)


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False) + "\n"
