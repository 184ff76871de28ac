"""Which static network a routed row is compared with."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from codinet.config import ExtraConfig, RunConfig, ScheduleConfig
from codinet.presets import imagenet
from tools.results.recipes import StaticBaseline, count_differences, describe_recipe, find_baseline
from tools.results.record import Record

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


def name_and_ratio(baseline: StaticBaseline | None) -> tuple[str, float]:
    assert baseline is not None
    return baseline.name, baseline.cost_ratio


@pytest.mark.parametrize(("macs", "near"), [(1.25e8, True), (0.8e8, True), (1.26e8, False), (0.79e8, False)])
def test_costs_within_a_factor_of_1_25_are_similar(
    static: Callable[..., Record], routed: Callable[..., Record], macs: float, near: bool
) -> None:
    assert (find_baseline([routed()], [static(macs)]) is not None) == near


def test_the_nearest_by_ratio(static: Callable[..., Record], routed: Callable[..., Record]) -> None:
    """By difference the first of the two would be nearer."""
    statics = [static(0.8e8, arch="resnet44"), static(1.22e8, arch="resnet74")]
    assert name_and_ratio(find_baseline([routed()], statics)) == ("ResNet-74", 1.22)
    assert name_and_ratio(find_baseline([routed()], [*statics, static(0.95e8)])) == ("ResNet-56", 0.95)


def test_costs_are_means_over_seeds(static: Callable[..., Record], routed: Callable[..., Record]) -> None:
    rows = [routed(0.9e8, seed=0), routed(1.1e8, seed=1)]
    statics = [static(accuracy=accuracy, seed=seed) for seed, accuracy in enumerate((92.0, 94.0))]
    baseline = find_baseline(rows, statics)
    assert name_and_ratio(baseline) == ("ResNet-56", 1.0)
    assert baseline is not None
    assert (baseline.accuracy.mean, baseline.accuracy.n) == (93.0, 2)


def test_the_factor_applies_to_the_same_network_too(
    static: Callable[..., Record], routed: Callable[..., Record]
) -> None:
    assert find_baseline([routed()], [static(1.75e8, arch="resnet110")]) is None
    assert name_and_ratio(find_baseline([routed()], [static(1.2e8, arch="resnet110")])) == ("ResNet-110", 1.2)


def test_the_most_similar_recipe_wins(static: Callable[..., Record], routed: Callable[..., Record]) -> None:
    """Even if another recipe is more accurate."""
    statics = [
        static(accuracy=95.0, epochs=60, lr=0.4, schedule="cosine"),
        static(accuracy=93.0, epochs=30, lr=0.4),
        static(accuracy=94.0, epochs=60, lr=0.2),
        static(accuracy=93.5, epochs=60, lr=0.3),
    ]
    row = routed(epochs=60, lr=0.4)
    assert [count_differences(run, row) for run in statics] == [1, 1, 1, 1]
    first = find_baseline([row], statics)
    same = find_baseline([row], [*statics, static(accuracy=90.0, epochs=60, lr=0.4)])
    assert first is not None
    assert same is not None
    assert (first.accuracy.mean, same.accuracy.mean) == (95.0, 90.0)
    assert find_baseline([row], statics[::-1]) == first


def test_unused_settings_are_not_compared(static: Callable[..., Record], routed: Callable[..., Record]) -> None:
    """Nor are the network and the seed."""
    row = routed(epochs=60, ema=0.9)
    assert count_differences(static(epochs=60, ema=0.9, finetune=3, finetune_lr=0.5, seed=7), row) == 0
    assert count_differences(static(epochs=50), row) == 2


def test_static_rows_have_no_baseline(static: Callable[..., Record]) -> None:
    one, other = static(), static(arch="resnet44")
    assert find_baseline([one], [one, other]) is None


def test_no_baseline_from_pruned_routed_runs_or_other_data(
    static: Callable[..., Record], routed: Callable[..., Record]
) -> None:
    row = routed()
    pruned = static()
    pruned["config"]["network"]["widths"] = [8] * 15
    others = [pruned, routed(seed=1), {**static(), "data": "svhn"}, {**static(), "data_sha256": "e" * 64}]
    assert find_baseline([row], others) is None


def test_imagenet_networks_have_a_preset_of_their_own(record: Callable[..., Record]) -> None:
    def cosine(_base: RunConfig) -> RunConfig:
        config = imagenet("photos")
        schedule = replace(config.schedule, schedule="cosine", milestones=ScheduleConfig.milestones)
        return replace(config, schedule=schedule)

    assert describe_recipe(record(config=cosine)) == "`imagenet`, schedule cosine"
