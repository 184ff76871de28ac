"""Which static network a routed row is held against."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from codinet.config import ExtraConfig, RunConfig
from codinet.results.equal_cost import Rival, rival_of
from codinet.results.recipe import differing
from codinet.results.record import Record

Settings = Callable[[RunConfig], RunConfig]


def settings(arch: str = "resnet56", ema: float = 0.0, **schedule: Any) -> Settings:
    return lambda config: replace(
        config,
        network=replace(config.network, arch=arch),
        schedule=replace(config.schedule, **schedule),
        extra=ExtraConfig(ema=ema),
    )


@pytest.fixture
def static(record: Callable[..., Record]) -> Callable[..., Record]:
    """A static run; `settings` are its network and recipe."""

    def make(macs: float = 1e8, *, seed: int = 0, accuracy: float = 93.0, **words: Any) -> Record:
        return record(method="static", macs=macs, seed=seed, accuracy=accuracy, config=settings(**words))

    return make


@pytest.fixture
def routed(record: Callable[..., Record]) -> Callable[..., Record]:
    def make(macs: float = 1e8, *, seed: int = 0, **words: Any) -> Record:
        return record(macs=macs, seed=seed, config=settings("resnet110", **words))

    return make


def told(rival: Rival | None) -> tuple[str, float]:
    assert rival is not None
    return rival.name, rival.share


@pytest.mark.parametrize(("macs", "near"), [(1.25e8, True), (0.8e8, True), (1.26e8, False), (0.79e8, False)])
def test_a_factor_of_a_quarter_more_either_way(
    static: Callable[..., Record], routed: Callable[..., Record], macs: float, near: bool
) -> None:
    assert (rival_of([routed()], [static(macs)]) is not None) == near


def test_the_nearest_by_ratio_is_taken(static: Callable[..., Record], routed: Callable[..., Record]) -> None:
    """By difference the first of the two would be nearer."""
    statics = [static(0.8e8, arch="resnet44"), static(1.22e8, arch="resnet74")]
    assert told(rival_of([routed()], statics)) == ("ResNet-74", 1.22)
    assert told(rival_of([routed()], [*statics, static(0.95e8)])) == ("ResNet-56", 0.95)


def test_costs_are_means_over_seeds(static: Callable[..., Record], routed: Callable[..., Record]) -> None:
    rows = [routed(0.9e8, seed=0), routed(1.1e8, seed=1)]
    statics = [static(accuracy=accuracy, seed=seed) for seed, accuracy in enumerate((92.0, 94.0))]
    rival = rival_of(rows, statics)
    assert told(rival) == ("ResNet-56", 1.0)
    assert rival is not None
    assert (rival.accuracy.mean, rival.accuracy.n) == (93.0, 2)


def test_the_same_depth_is_held_to_the_same_factor(
    static: Callable[..., Record], routed: Callable[..., Record]
) -> None:
    assert rival_of([routed()], [static(1.75e8, arch="resnet110")]) is None
    assert told(rival_of([routed()], [static(1.2e8, arch="resnet110")])) == ("ResNet-110", 1.2)


def test_of_several_recipes_the_rows_own(static: Callable[..., Record], routed: Callable[..., Record]) -> None:
    """A more accurate recipe does not count where one is nearer to the row's."""
    statics = [
        static(accuracy=95.0, epochs=60, lr=0.4, schedule="cosine"),
        static(accuracy=93.0, epochs=30, lr=0.4),
        static(accuracy=94.0, epochs=60, lr=0.2),
        static(accuracy=93.5, epochs=60, lr=0.3),
    ]
    row = routed(epochs=60, lr=0.4)
    assert [differing(run, row) for run in statics] == [1, 1, 1, 1]
    first = rival_of([row], statics)
    same = rival_of([row], [*statics, static(accuracy=90.0, epochs=60, lr=0.4)])
    assert first is not None
    assert same is not None
    assert (first.accuracy.mean, same.accuracy.mean) == (95.0, 90.0)
    assert rival_of([row], statics[::-1]) == first


def test_settings_that_a_static_run_does_not_use_are_not_compared(
    static: Callable[..., Record], routed: Callable[..., Record]
) -> None:
    """Nor what is no setting: its network, its seed."""
    row = routed(epochs=60, ema=0.9)
    assert differing(static(epochs=60, ema=0.9, finetune=3, finetune_lr=0.5, seed=7), row) == 0
    assert differing(static(epochs=50), row) == 2


def test_a_static_row_has_none(static: Callable[..., Record]) -> None:
    one, other = static(), static(arch="resnet44")
    assert rival_of([one], [one, other]) is None


def test_routed_rows_and_other_data_are_none(static: Callable[..., Record], routed: Callable[..., Record]) -> None:
    row = routed()
    others = [routed(seed=1), {**static(), "data": "svhn"}, {**static(), "data_sha256": "e" * 64}]
    assert rival_of([row], others) is None
