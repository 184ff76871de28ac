import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from codinet.errors import UserError
from codinet.sweep import Planned, Result, summarise
from codinet.sweep.fleet import Command, run
from codinet.sweep.summary import document, read_result

Figures = Callable[..., dict[str, Any]]


@pytest.fixture
def results(planned: list[Planned], figures: Figures) -> list[Result]:
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


def test_mean_and_spread_by_hand(results: list[Result]) -> None:
    low, high = summarise(results)
    assert (low.name, low.seeds) == ("resnet20-codinet-budget0.5", (0, 1))
    assert (low.figures["accuracy"].mean, low.figures["accuracy"].n) == (90.0, 2)
    assert low.figures["accuracy"].spread == pytest.approx(8**0.5)  # ((-2)² + 2²) / (2 - 1)
    assert low.figures["distinct_paths"].mean == 5.5
    assert (high.figures["accuracy"].mean, high.figures["accuracy"].spread) == (91.0, 0.0)
    assert high.figures["macs"].mean == 3e7
    assert low.on_front
    assert high.on_front


def test_a_single_run_has_no_spread_and_a_beaten_group_is_not_on_the_front(results: list[Result]) -> None:
    low, high = summarise([results[1], results[2]])
    assert low.figures["accuracy"].spread is None
    assert (low.on_front, high.on_front) == (True, False)
    assert summarise([]) == []


def test_the_document_holds_what_is_needed_to_believe_a_figure(results: list[Result]) -> None:
    content = json.loads(json.dumps(document(results, summarise(results), {"other": "why"})))
    first = content["runs"][0]
    assert (first["seed"], first["environment"], first["figures"]["accuracy"]) == (0, {"commit": "abc"}, 88.0)
    assert first["config"]["losses"]["budget"] == 0.5
    assert content["groups"][1]["figures"]["cost_share"] == {
        "mean": 0.75,
        "spread": pytest.approx(0.0707107, abs=1e-6),
        "n": 2,
    }
    assert content["failures"] == [{"name": "other", "reason": "why"}]


def test_a_damaged_evaluation_is_said(planned: list[Planned], fakes: Callable[..., tuple[Path, Command]]) -> None:
    out, command = fakes()
    run(out, planned[:1], command=command)
    (out / planned[0].name / "evaluation.json").write_text('{"accuracy": "high"}')
    with pytest.raises(UserError, match="holds no evaluation"):
        read_result(out, planned[0])
    assert "holds no evaluation" in run(out, planned[:1], command=command).failures[planned[0].name]
