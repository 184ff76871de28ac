"""What the numbers of a row say, in words: where it falls short of the paper, its budget, or a static network."""

from collections.abc import Mapping, Sequence
from typing import Any

from codinet.published import Published
from codinet.results.equal_cost import Rival
from codinet.results.recipe import paper_epochs
from codinet.sweep.summary import spread_of
from codinet.thresholds import MISSED


def remarks(records: Sequence[Mapping[str, Any]], paper: Published | None, rival: Rival | None = None) -> list[str]:
    """Of runs that differ in their seed alone."""
    found = [*_budget(records)]
    if records[0]["method"] != "static" and all(record["distinct_paths"] == 1 for record in records):
        found.append("routing collapsed to one path")
    if paper is not None:
        found += _against(records, paper)
        usual = paper_epochs(records[0]["data"])
        if records[0]["epochs"] < usual:
            found.append(f"{records[0]['epochs']} epochs where the paper's recipe has {usual}")
    return found if rival is None else [*found, *_against_static(records, rival)]


def _budget(records: Sequence[Mapping[str, Any]]) -> list[str]:
    budget = records[0]["budget"]
    if budget is None:
        return []
    gaps = [record["cost_share"] - budget for record in records]
    missed = [gap for gap in gaps if abs(gap) > MISSED]
    if not missed:
        return []
    worst = max(missed, key=abs)
    who = "" if len(records) == 1 else f"{len(missed)} of {len(records)} runs: "
    return [f"**{who}budget missed** by {worst:+.3f} of the static cost"]


def _against(records: Sequence[Mapping[str, Any]], paper: Published) -> list[str]:
    gap = round(shown_accuracy(records) - paper.accuracy, 2)
    if gap < 0:
        words = [f"**falls short** of the paper by {-gap:.2f} points"]
    else:
        words = ["as accurate as the paper" if gap == 0 else f"{gap:.2f} points above the paper"]
    if paper.gmaccs is not None:
        cost = round(spread_of([record["paper_gmaccs"] for record in records]).mean, 2) - paper.gmaccs
        if abs(cost) < 0.005:
            words[0] += " at its cost"
        else:
            words[0] += f" for {abs(cost):.2f} G {'more' if cost > 0 else 'less'}"
    if paper.paths is not None and paper.paths > 1:
        paths = spread_of([record["distinct_paths"] for record in records]).mean
        if paths < paper.paths:
            words.append(f"{paths:.0f} paths where the paper has {paper.paths}")
    return words


def _against_static(records: Sequence[Mapping[str, Any]], rival: Rival) -> list[str]:
    gap = round(shown_accuracy(rival.runs) - shown_accuracy(records), 2)
    if gap <= 0:
        return []
    return [f"a static {rival.name} is **{gap:.2f} points more accurate** for {rival.share:.2f} of the MACs"]


def shown_accuracy(records: Sequence[Mapping[str, Any]]) -> float:
    """Rounded as it is shown, so that the words agree with the figures beside them."""
    return round(spread_of([record["accuracy"] for record in records]).mean, 2)
