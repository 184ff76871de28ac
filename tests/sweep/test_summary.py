import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codinet.config import DataConfig
from codinet.errors import UserError
from codinet.runs import RunWriter
from codinet.sweep import PlannedRun, Result, pareto, summarise
from codinet.sweep.summary import read_result, to_document
from codinet.sweep.workers import Command, run

Figures = Callable[..., dict[str, Any]]
Points = list[tuple[float, float]]
POINTS = st.lists(st.tuples(st.integers(0, 9).map(float), st.integers(0, 9).map(float)), max_size=12)


@pytest.fixture
def results(planned: list[PlannedRun], figures: Figures) -> list[Result]:
    """Budget 0.5 with 88 and 92 % at 20 M MACs, budget 0.7 with 91 and 91 % at 28 and 32 M."""
    found = [
        figures(accuracy=88.0, distinct_paths=4),
        figures(accuracy=92.0, distinct_paths=7),
        figures(accuracy=91.0, macs=2.8e7, cost_share=0.7),
        figures(accuracy=91.0, macs=3.2e7, cost_share=0.8),
    ]
    return [
        Result(plan.name, plan.group, plan.config, figure, {"commit": "abc"})
        for plan, figure in zip(planned, found, strict=True)
    ]


def test_mean_and_spread_computed_by_hand(results: list[Result]) -> None:
    low, high = summarise(results)
    assert (low.name, low.seeds) == ("resnet20-codinet-budget0.5", (0, 1))
    assert (low.figures["accuracy"].mean, low.figures["accuracy"].n) == (90.0, 2)
    assert low.figures["accuracy"].spread == pytest.approx(8**0.5)  # ((-2)² + 2²) / (2 - 1)
    assert low.figures["distinct_paths"].mean == 5.5
    assert (high.figures["accuracy"].mean, high.figures["accuracy"].spread) == (91.0, 0.0)
    assert high.figures["macs"].mean == 3e7
    assert low.on_front
    assert high.on_front


def test_held_out_images_replace_the_test_images(planned: list[PlannedRun], fakes: Callable[..., Any]) -> None:
    plan = replace(planned[0], config=replace(planned[0].config, data=DataConfig(holdout=8)))
    out, command = fakes(runs=[plan])
    with pytest.raises(UserError, match="lacks the figures of the held-out images"):
        run(out, [plan], command=command) and read_result(out, plan)
    folder = RunWriter.open(out / plan.name)
    held_out = dict.fromkeys(folder.load_evaluation(), 1) | {"accuracy": 80.0, "n": 8, "loss": 9.0, "held_loss": 1.25}
    folder.keep_metrics([{"epoch": 1, **held_out, "accuracy": 70.0}, {"epoch": 2, **held_out}])
    result = read_result(out, plan)
    assert result.figures == {**dict.fromkeys(folder.load_evaluation(), 1), "accuracy": 80.0, "n": 8, "loss": 1.25}
    document = to_document([result], summarise([result]), {})
    assert document["units"]["accuracy"] == "percent of the held-out images"


def test_a_single_run_has_no_spread_and_a_dominated_group_is_not_on_the_front(results: list[Result]) -> None:
    low, high = summarise([results[1], results[2]])
    assert low.figures["accuracy"].spread is None
    assert (low.on_front, high.on_front) == (True, False)
    assert summarise([]) == []


def test_the_document_holds_configs_seeds_environments_and_failures(results: list[Result]) -> None:
    content = json.loads(json.dumps(to_document(results, summarise(results), {"other": "why"})))
    first = content["runs"][0]
    assert (first["seed"], first["environment"], first["figures"]["accuracy"]) == (0, {"commit": "abc"}, 88.0)
    assert first["config"]["losses"]["budget"] == 0.5
    assert content["groups"][1]["figures"]["cost_share"] == {
        "mean": 0.75,
        "spread": pytest.approx(0.0707107, abs=1e-6),
        "n": 2,
    }
    assert content["failures"] == [{"name": "other", "reason": "why"}]


def test_a_damaged_evaluation_is_reported(
    planned: list[PlannedRun], fakes: Callable[..., tuple[Path, Command]]
) -> None:
    out, command = fakes()
    run(out, planned[:1], command=command)
    (out / planned[0].name / "evaluation.json").write_text('{"accuracy": "high"}')
    with pytest.raises(UserError, match="is not an evaluation"):
        read_result(out, planned[0])
    assert "is not an evaluation" in run(out, planned[:1], command=command).failures[planned[0].name]


def dominates(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[0] and one[1] >= other[1] and one != other


@given(POINTS)
def test_the_front_is_exactly_the_points_that_no_other_dominates(points: Points) -> None:
    expected = [place for place, point in enumerate(points) if not any(dominates(other, point) for other in points)]
    assert sorted(pareto(points)) == expected


@given(POINTS)
def test_accuracy_rises_with_cost_along_the_front(points: Points) -> None:
    front = [points[place] for place in pareto(points)]
    assert front == sorted(front)
    assert [accuracy for _, accuracy in front] == sorted(accuracy for _, accuracy in front)


@given(POINTS, st.randoms())
def test_the_front_does_not_depend_on_the_order_of_points(points: Points, rng: random.Random) -> None:
    mixed = rng.sample(points, len(points))
    assert [points[place] for place in pareto(points)] == [mixed[place] for place in pareto(mixed)]


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ([], []),
        ([(0.5, 90.0)], [0]),
        ([(0.5, 90.0), (0.5, 90.0)], [0, 1]),  # equal points
        ([(0.5, 90.0), (0.5, 91.0), (0.6, 91.0)], [1]),
        ([(0.57, 94.47), (1.0, 93.60), (0.59, 93.66), (0.2, 92.45)], [3, 0]),  # from the paper
    ],
)
def test_fronts_computed_by_hand(points: Points, front: list[int]) -> None:
    assert pareto(points) == front
