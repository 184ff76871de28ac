from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from codinet.config import ExtraConfig, RunConfig
from codinet.runs import RunFolder
from codinet.sweep.summary import Spread
from tools.results.columns import Row
from tools.results.overview import outcome
from tools.results.record import Record, make_record, read_records
from tools.results.render import render, render_figures

ROOT = Path(__file__).parents[3]
Make = Callable[..., Record]


def first_screen(records: list[Record]) -> str:
    """The text above the notes, as one line per paragraph."""
    return render(records).partition("## How to read")[0].replace("\n  ", " ").replace("-\n", "-")


def answer(records: list[Record], start: str) -> str | None:
    """The answer whose bold words start so; None if there is none."""
    return next((line for line in first_screen(records).splitlines() if line.startswith(f"- **{start}")), None)


def seeds(record: Make, method: str, *accuracies: float, **words: Any) -> list[Record]:
    made = enumerate(accuracies)
    return [record(method=method, seed=seed, accuracy=accuracy, **words) for seed, accuracy in made]


def trained(**extra: Any) -> Callable[[RunConfig], RunConfig]:
    return lambda config: replace(config, extra=ExtraConfig(**extra))


def test_the_figures_are_up_to_date() -> None:
    figures = render_figures(read_records(ROOT / "results"))
    assert list(figures) == ["images/results.svg", "images/methods.svg"]
    for place, svg in figures.items():
        assert (ROOT / "docs" / place).read_text() == svg, "run python -m tools.results render"


def test_the_order_of_records_does_not_matter() -> None:
    records = read_records(ROOT / "results")[::3]
    assert first_screen(records) == first_screen(records[::-1])
    assert render_figures(records) == render_figures(records[::-1])


# The standard deviation of (90, 91, 92) is 1.
@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (Spread(89.99, None, 1), "better"),
        (Spread(90.0, None, 1), "level"),  # as large as the standard deviation, not larger
        (Spread(92.0, None, 1), "level"),
        (Spread(92.01, None, 1), "worse"),
        (Spread(89.0, 2.0, 3), "level"),  # the larger one counts
        (Spread(88.99, 2.0, 3), "better"),
        (Spread(92.004, None, 1), "level"),  # 92.00 as shown
    ],
)
def test_outcome(record: Make, other: Spread, expected: str) -> None:
    assert outcome(Row("results", seeds(record, "codinet", 90.0, 91.0, 92.0), None, None), other) == expected


def test_pairs_are_counted(record: Make) -> None:
    records = [
        *(
            seeds(record, "vanilla", 90.0, 90.1, 90.2, budget=0.3)
            + seeds(record, "codinet", 91, 91.1, 91.2, budget=0.3)
        ),
        *(
            seeds(record, "vanilla", 90.0, 90.1, 90.2, budget=0.4)
            + seeds(record, "codinet", 90, 90.1, 90.3, budget=0.4)
        ),
        *(
            seeds(record, "vanilla", 91.0, 91.1, 91.2, budget=0.5)
            + seeds(record, "codinet", 90, 90.1, 90.2, budget=0.5)
        ),
        *(seeds(record, "vanilla", 90.0, 90.1, 90.2, budget=0.6) + seeds(record, "codinet", 91, 91.1, budget=0.6)),
    ]
    found = answer(records, "CoDiNet")
    assert found is not None
    assert "same recipe and budget: mixed.** 1 better, 1 level, 1 worse: " in found  # two seeds are not counted
    assert "-1.00 points at a budget of 0.5 (ResNet-110 on CIFAR-10); +1.00 points at a budget of 0.3" in found


@pytest.mark.parametrize(
    ("budgets_better", "budgets_level", "word"),
    [((0.3, 0.4), (), "better"), ((0.3, 0.4), (0.5,), "mostly better"), ((0.3,), (0.4,), "mixed")],
)
def test_the_answer_in_a_word(
    record: Make, budgets_better: tuple[float, ...], budgets_level: tuple[float, ...], word: str
) -> None:
    records = []
    for budget in (*budgets_better, *budgets_level):
        gain = 1 if budget in budgets_better else 0
        records += seeds(record, "vanilla", 90.0, 90.1, 90.2, budget=budget)
        records += seeds(record, "codinet", 90.0 + gain, 90.1 + gain, 90.2 + gain, budget=budget)
    found = answer(records, "CoDiNet")
    assert found is not None
    assert f"same recipe and budget: {word}.**" in found


def test_static_networks_of_the_same_cost(record: Make) -> None:
    """The starts and teachers of both sides are told, because they are not equal."""
    static = record(method="static", accuracy=92.0, config=trained(teacher="t"), macs=2.4e8)
    scratch = seeds(record, "vanilla", 91.0, 91.1, 91.2)
    helped = seeds(record, "codinet", 93.0, 93.1, 93.2, config=trained(start="s", teacher="t"))
    found = answer([static, *scratch, *helped], "Routing")
    assert found == (
        "- **Routing against a static network of the same cost: it depends on the training.** "
        "With trained weights to start from and a teacher: 1 better, 0 level, 0 worse. "
        "With neither trained weights to start from nor a teacher: 0 better, 0 level, 1 worse. "
        "The static networks have 0.96 to 0.96 times the MACs and 1 seed each. They were trained with a teacher. "
        "So routing is not the only difference."
    )
    found = answer(
        [{**static, "config": scratch[0]["config"] | {"network": static["config"]["network"]}}, *scratch], "R"
    )
    assert found is not None
    assert "cost: worse.** With neither" in found
    assert "not the only difference" not in found


def test_static_networks_that_were_trained_alike(record: Make) -> None:
    """They count with one run, too, if nothing but the routing differs."""

    def taught(epochs: int, **extra: Any) -> Callable[[RunConfig], RunConfig]:
        def change(config: RunConfig) -> RunConfig:
            config = trained(teacher="t", distill=0.5, **extra)(config)
            return replace(config, schedule=replace(config.schedule, epochs=epochs))

        return change

    routed = record(method="codinet", accuracy=93.0, config=taught(200), epochs=200, finetune=16)
    static = {"method": "static", "macs": 2.4e8, "epochs": 216, "finetune": 0}
    alike = record(accuracy=94.0, config=taught(216), **static)
    network, _, _ = alike["tables"]["results"].partition(",")
    assert answer([routed, alike], "With the same") == (
        "- **With the same teacher, settings and epochs as a static network**, single runs included: ResNet-110, "
        f"CoDiNet at {routed['budget']:g}, has 93.00 % on CIFAR-10, and the static {network} 94.00 % at "
        f"{2.4e8 / routed['macs']:.2f} times the MACs."
    )
    for other in (taught(200), taught(216, cutout=8), trained()):
        assert answer([routed, record(accuracy=94.0, config=other, **static)], "With the same") is None


def test_swapped_paths(make_run: Callable[..., Path], analyse: Callable[..., Path]) -> None:
    def made(method: str, budget: float, swapped: float, paths: int) -> list[Record]:
        words = {"method": method, "budget": budget, "accuracy": 94.0, "distinct_paths": paths}
        runs = [make_run(f"{method}-{budget}-{seed}", seed=seed, **words) for seed in range(3)]
        tables = ["results", "routing"]
        return [make_record(RunFolder.open(analyse(run, swapped=(swapped, 94.0))), tables) for run in runs]

    codinet = [*made("codinet", 0.3, 90.0, 50), *made("codinet", 0.4, 91.0, 70), *made("codinet", 0.5, 93.5, 300)]
    assert answer([*codinet, *made("vanilla", 0.3, 93.9, 4)], "How much") == (
        "- **How much the choice per image matters.** If every image takes the path of another image, vanilla routing "
        "loses 0.1 points and has 4 paths (medians of 1 network); CoDiNet loses 3.0 points and has 70 paths (medians "
        "of 3 networks)."
    )


def test_without_seeds_there_are_no_answers(record: Make) -> None:
    screen = first_screen([record(method="vanilla"), record(), record(method="static")])
    assert "Does a network" not in screen
    assert "(images/results.svg)" in screen


def test_other_data_has_no_figure(record: Make) -> None:
    digits = [{**made, "data": "digits"} for made in seeds(record, "codinet", 94.0, 94.1, 94.2)]
    assert first_screen(digits).strip() == "# Results"
    assert render_figures(digits) == {}
