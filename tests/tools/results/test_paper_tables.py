"""Which row of the paper a run is compared with."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from codinet.config import RunConfig
from codinet.runs import RunFolder
from tools.results.paper_tables import TABLES
from tools.results.record import Record, make_record

Make = Callable[..., Path]


@pytest.fixture
def record(make_run: Make) -> Callable[..., Record]:
    def make(table: str, **words: Any) -> Record:
        return make_record(RunFolder.open(make_run("one", **words)), [table])

    return make


def accuracy(table: str, record: Record) -> float | None:
    row = TABLES[table].paper(record)
    return None if row is None else row.accuracy


def arch(name: str) -> Callable[[RunConfig], RunConfig]:
    return lambda config: replace(config, network=replace(config.network, arch=name))


def losses(**values: Any) -> Callable[[RunConfig], RunConfig]:
    return lambda config: replace(config, losses=replace(config.losses, **values))


def network(**values: Any) -> Callable[[RunConfig], RunConfig]:
    return lambda config: replace(config, network=replace(config.network, **values))


@pytest.mark.parametrize(
    ("table", "words", "printed"),
    [
        ("results", {}, 94.47),
        ("results", {"method": "static"}, 93.60),
        ("results", {"method": "vanilla"}, 93.66),
        ("results", {"method": "con"}, None),
        ("results", {"config": arch("resnet32")}, 92.48),
        ("results", {"config": arch("resnet74")}, 93.61),
        ("results", {"config": arch("resnet56")}, None),
        ("results", {"config": network(router="rnn")}, None),
        ("results", {"config": lambda config: replace(config, source="cifar100")}, 72.9),
        ("results", {"config": lambda config: replace(config, source="svhn"), "n": 26_032}, 94.28),
        ("results", {"n": 500}, None),  # a part of the test images is not the paper's test set
        ("ablation", {"method": "con"}, 92.88),
        ("ablation", {"method": "div"}, 91.34),
        ("ablation", {"method": "div", "config": arch("resnet32")}, None),
        ("trade-off", {"method": "static"}, 93.60),
        ("trade-off", {"budget": 0.57}, 94.47),
        ("trade-off", {"budget": 0.53}, 94.30),
        ("trade-off", {"budget": 0.43}, 93.94),
        ("trade-off", {"budget": 0.4}, 93.71),
        ("trade-off", {"budget": 0.2}, 92.45),
        ("trade-off", {"budget": 0.7}, None),
        ("trade-off", {"budget": None, "config": losses(gamma=0.08)}, 93.71),
        ("trade-off", {"budget": None, "config": losses(gamma=0.1)}, 92.45),
        ("trade-off", {"method": "vanilla"}, None),
        ("margin", {"config": losses(m_d=0.25)}, 93.12),
        ("margin", {"config": losses(m_d=0.5)}, 94.47),
        ("margin", {"config": losses(m_d=1.0)}, 92.46),
        ("margin", {"config": losses(m_d=0.6)}, None),
        ("routers", {}, 94.47),
        ("routers", {"config": network(router="cnn")}, None),
        ("relaxations", {"config": network(relaxation="straight-through")}, None),
    ],
)
def test_accuracy_of_the_papers_row(
    record: Callable[..., Record], table: str, words: dict[str, Any], printed: float | None
) -> None:
    assert accuracy(table, record(table, **words)) == printed


@pytest.mark.parametrize(
    ("table", "words", "label"),
    [
        ("results", {"method": "vanilla"}, "ResNet-110, vanilla routing"),
        ("results", {"config": network(router="rnn")}, "ResNet-110, CoDiNet, router rnn"),
        ("routers", {}, "ResNet-110, CoDiNet, router fc"),
        ("relaxations", {}, "ResNet-110, CoDiNet, relaxation gumbel"),
        ("margin", {"config": losses(m_d=0.25)}, "ResNet-110, CoDiNet, m_d = 0.25"),
        ("margin", {"method": "static"}, "ResNet-110, static"),
    ],
)
def test_a_rows_name(record: Callable[..., Record], table: str, words: dict[str, Any], label: str) -> None:
    assert record(table, **words)["tables"] == {table: label}
