from collections.abc import Callable
from dataclasses import replace

import pytest

from codinet.config import RunConfig
from codinet.results.record import Record
from codinet.results.render import render


def pairs(page: str) -> list[list[str]]:
    """The cells of every pair on the page."""
    _, _, rest = page.partition("## CoDiNet against vanilla routing: CIFAR-10")
    lines = rest.partition("\n## ")[0].splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ResNet")]


def runs(record: Callable[..., Record], vanilla: list[float], codinet: list[float], **words: object) -> list[Record]:
    return [
        record("results", "ablation", method=method, seed=seed, accuracy=accuracy, **words)
        for method, found in (("vanilla", vanilla), ("codinet", codinet))
        for seed, accuracy in enumerate(found)
    ]


# Standard deviations by hand: of (90, 91, 92) 1, of (91.5, 91.5, 91.5) 0, of (92.4, 93, 93.6) 0.6.
@pytest.mark.parametrize(
    ("vanilla", "codinet", "ahead", "verdict"),
    [
        ([90.0, 91.0, 92.0], [92.4, 93.0, 93.6], "+2.00", "**ahead** by more than the spread"),
        ([92.4, 93.0, 93.6], [90.0, 91.0, 92.0], "-2.00", "**behind** by more than the spread"),
        ([90.0, 91.0, 92.0], [91.5, 91.5, 91.5], "+0.50", "within the spread"),
        ([90.0, 91.0, 92.0], [92.0, 92.0, 92.0], "+1.00", "within the spread"),  # as large as it, and not larger
        ([90.0], [93.0], "+3.00", "a single run each"),
        ([90.0, 91.0], [93.0], "+2.50", "a single run of one"),
    ],
)
def test_a_difference_is_held_against_the_larger_spread(
    record: Callable[..., Record], vanilla: list[float], codinet: list[float], ahead: str, verdict: str
) -> None:
    (cells,) = pairs(render(runs(record, vanilla, codinet)))
    assert cells[-2:] == [ahead, verdict]


def longer(config: RunConfig) -> RunConfig:
    return replace(config, schedule=replace(config.schedule, epochs=300))


def wider(config: RunConfig) -> RunConfig:
    return replace(config, losses=replace(config.losses, m_d=0.75))


@pytest.mark.parametrize("other", [{"budget": 0.4}, {"config": longer}])
def test_runs_of_another_budget_or_recipe_are_no_pair(record: Callable[..., Record], other: dict[str, object]) -> None:
    one, two = runs(record, [90.0], [93.0]), runs(record, [90.0], [93.0], **other)
    assert not pairs(render([one[0], two[1]]))
    assert len(pairs(render([*one, *two]))) == 2


def test_each_weight_of_the_losses_on_paths_is_held_against_the_same_vanilla_routing(
    record: Callable[..., Record],
) -> None:
    made = [*runs(record, [90.0], [93.0]), record(accuracy=92.0, config=wider)]
    assert [(cells[1], cells[-2]) for cells in pairs(render(made))] == [
        ("`paper`", "+3.00"),
        ("`paper`, m_d 0.75", "+2.00"),
    ]


def test_budgets_fall_and_a_pair_of_two_tables_stands_once(record: Callable[..., Record]) -> None:
    made = [*runs(record, [90.0], [93.0], budget=0.3), *runs(record, [90.0], [93.0], budget=0.5)]
    assert [cells[3] for cells in pairs(render(made))] == ["0.5", "0.3"]
