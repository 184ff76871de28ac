"""What one would take in a routed network's place: the static network of nearly the same cost."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from codinet.results.recipe import deviations, differing, epochs_of
from codinet.results.tables import Found, backbone
from codinet.sweep.summary import Spread, spread_of

FACTOR = 1.25  # how far apart, either way, two costs may lie and be called equal


@dataclass(frozen=True)
class Rival:
    """Static runs that differ in their seed alone, held against a routed row."""

    runs: Sequence[Found]
    share: float  # of the row's MACs

    @property
    def name(self) -> str:
        return backbone(self.runs[0]["arch"])

    @property
    def accuracy(self) -> Spread:
        return spread_of([run["accuracy"] for run in self.runs])

    @property
    def distance(self) -> float:
        """By how much the dearer of the two exceeds the cheaper; 1 where they cost the same."""
        return max(self.share, 1 / self.share)


def rival_of(row: Sequence[Found], records: Iterable[Found]) -> Rival | None:
    """The nearest in cost among the static runs of the row's data, if it is near enough; of its recipes, the row's."""
    first = row[0]
    if first["method"] == "static":
        return None
    macs = _macs(row)
    rivals = [Rival(runs, _macs(runs) / macs) for runs in _static(records, _data(first))]
    near = [rival for rival in rivals if rival.distance <= FACTOR]
    if not near:
        return None
    nearest = min(near, key=lambda rival: rival.distance)
    recipes = [rival for rival in near if rival.name == nearest.name]
    return min(recipes, key=lambda rival: (differing(rival.runs[0], first), -rival.accuracy.mean))


def _static(records: Iterable[Found], data: tuple[str, str]) -> list[list[Found]]:
    """Static runs on the data, those together that differ in their seed alone; the order of records does not matter."""
    groups: dict[tuple[str, ...], list[Found]] = {}
    for record in sorted(records, key=lambda record: (record["seed"], record["name"])):
        if record["method"] == "static" and _data(record) == data:
            key = (record["arch"], *deviations(record), epochs_of(record))
            groups.setdefault(key, []).append(record)
    return list(groups.values())


def _data(record: Found) -> tuple[str, str]:
    return record["data"], record["data_sha256"]


def _macs(runs: Sequence[Found]) -> float:
    return spread_of([run["macs"] for run in runs]).mean
