import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codinet.backbones import ARCHITECTURES
from codinet.config import (
    DEFAULT_BUDGET,
    DataConfig,
    ExtraConfig,
    LossConfig,
    NetworkConfig,
    RunConfig,
    ScheduleConfig,
    first_difference,
    flat,
    from_dict,
    to_dict,
)
from codinet.errors import UserError
from codinet.resolving import resolve, unused_settings

number = st.floats(allow_nan=False, allow_infinity=False)
CONFIGS = st.builds(
    RunConfig,
    source=st.text(),
    data=st.builds(DataConfig, image_size=st.none() | st.integers(), holdout=st.integers()),
    network=st.builds(
        NetworkConfig, arch=st.sampled_from(list(ARCHITECTURES)), routed=st.booleans(), tau=number | st.integers()
    ),
    losses=st.builds(LossConfig, budget=st.none() | number, gamma=st.none() | number, alpha=number, m_d=number),
    schedule=st.builds(
        ScheduleConfig,
        epochs=st.integers(),
        batch=st.none() | st.integers(),
        lr=number,
        milestones=st.lists(number | st.integers()).map(tuple),
    ),
    seed=st.integers(),
    extra=st.builds(ExtraConfig, ema=number, start=st.none() | st.text(), start_sha256=st.none() | st.text()),
)


def run(**parts: Any) -> RunConfig:
    """A config with some entries set, named by part: run(losses={"budget": 1})."""
    config = RunConfig("digits")
    changes = {
        part: dataclasses.replace(getattr(config, part), **values) if isinstance(values, dict) else values
        for part, values in parts.items()
    }
    return dataclasses.replace(config, **changes)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(CONFIGS)
def test_json_gives_back_the_same_config(config: RunConfig) -> None:
    again = from_dict(json.loads(json.dumps(to_dict(config))))
    assert again == config
    assert again.source == config.source


def test_the_location_of_the_data_is_not_compared() -> None:
    assert run(source="/here/flowers") == run(source="flowers")
    assert run(source="flowers", seed=1) != run(source="flowers")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"speed": 3}, "config .*unknown or missing entries speed"),
        ({"seed": None}, "config.seed must be a whole number, got None"),
        ({"seed": True}, "config.seed must be a whole number, got True"),
        ({"seed": 1.0}, "config.seed must be a whole number, got 1.0"),
        ({"source": 3}, "config.source must be text, got 3"),
        ({"losses": []}, r"config.losses must be a JSON object, got \[\]"),
        ({"losses": {}}, "config.losses .*unknown or missing entries alpha, beta"),
        (
            {"schedule": {**to_dict(run())["schedule"], "schedule": "linear"}},
            "config.schedule.schedule must be one of multistep, cosine, got 'linear'",
        ),
        ({"network": {**to_dict(run())["network"], "tau": "1"}}, "config.network.tau must be a number, got '1'"),
        ({"network": {**to_dict(run())["network"], "routed": 1}}, "config.network.routed must be True or False, got 1"),
    ],
)
def test_wrong_entries_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        from_dict({**to_dict(run()), **change})


def test_a_missing_entry_is_named() -> None:
    values = to_dict(run())
    del values["network"]["router"]
    with pytest.raises(UserError, match=r"config.network .*entries router"):
        from_dict(values)


def test_an_older_config_gets_the_defaults_of_new_settings() -> None:
    values = to_dict(run())
    del values["extra"], values["schedule"]["milestones"]
    assert from_dict(values) == run()
    values["network"]["milestones"] = [0.5]  # not a setting of the network
    with pytest.raises(UserError, match=r"config.network .*entries milestones"):
        from_dict(values)


@pytest.mark.parametrize("value", [0.5, ["a"], [True], None])
def test_milestones_of_the_wrong_type_are_refused(value: Any) -> None:
    values = to_dict(run())
    values["schedule"]["milestones"] = value
    with pytest.raises(UserError, match=r"config.schedule.milestones must be a list, each item a number"):
        from_dict(values)


def test_an_int_is_accepted_for_a_float() -> None:
    values = to_dict(run())
    values["network"]["tau"] = 2
    assert from_dict(values).network.tau == 2


@pytest.mark.parametrize(
    ("config", "budget"),
    [
        (run(), DEFAULT_BUDGET),
        (run(losses={"budget": 0.4}), 0.4),
        (run(losses={"gamma": 0.1}), None),
        (run(network={"routed": False}), None),
    ],
)
def test_the_default_budget(config: RunConfig, budget: float | None) -> None:
    assert resolve(config).losses.budget == budget


def test_the_default_weight_of_a_teacher() -> None:
    assert resolve(run()).extra.distill is None
    assert resolve(run(extra={"teacher": "run"})).extra.distill == 0.5
    assert resolve(run(extra={"teacher": "run", "distill": 0.9})).extra.distill == 0.9


def test_the_default_batch_depends_on_the_device() -> None:
    assert resolve(run(), gpu=True).schedule.batch == 512
    assert resolve(run(), gpu=False).schedule.batch == 64
    assert resolve(run(schedule={"batch": 7}), gpu=True).schedule.batch == 7


def test_the_names_of_settings_are_unique() -> None:
    values = to_dict(run())
    parts = [part for part in values.values() if isinstance(part, dict)]
    assert len(flat(values)) == sum(map(len, parts)) + len(values) - len(parts)


def test_the_first_difference_is_described() -> None:
    old, new = (flat(to_dict(run(schedule={"lr": rate, "epochs": epochs}))) for rate, epochs in ((0.1, 3), (0.2, 4)))
    assert first_difference(old, new) == "epochs was 3, now 4"
    assert first_difference(old, old) is None
    assert first_difference({}, {"watch": "test"}) == "watch was None, now test"  # a file of an older version


def test_resolving_twice_changes_nothing() -> None:
    assert resolve(resolve(run())) == resolve(run())


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"network": {"arch": "resnet21"}}, "Unknown architecture 'resnet21' .*perhaps you meant resnet"),
        ({"network": {"router": "fcc"}}, "Unknown router 'fcc' .perhaps you meant fc"),
        ({"network": {"relaxation": "gumble"}}, "perhaps you meant gumbel"),
        ({"network": {"tau": 0}}, "--tau must be at least 1e-06, got 0"),
        ({"network": {"tau": -1.0}}, "--tau must be at least 1e-06, got -1"),
        ({"network": {"tau": 1e-300}}, "--tau must be at least 1e-06, got 1e-300"),
        ({"network": {"tau": "1"}}, "--tau must be a number, got '1'"),
        ({"network": {"tau": 10**400}}, "--tau must be a number, got"),
        ({"network": {"stride_on": "zz"}}, "--stride-on must be one of 3x3, 1x1, got 'zz'"),
        ({"network": {"routed": 1}}, "--routed must be True or False, got 1"),
        ({"network": None}, "network must be a NetworkConfig, got None"),
        ({"losses": {"beta": 1e300}}, "at most 1e6, got 1e[+]300"),
        ({"losses": {"paths": "noisy"}}, "--paths must be one of noise-free, noised, got 'noisy'"),
        ({"schedule": {"epochs": 2.5}}, "--epochs must be a whole number, got 2.5"),
        ({"schedule": {"epochs": 10**400}}, "--epochs must be at most 2147483647, got 1000"),
        ({"schedule": {"epochs": 10**5000}}, "--epochs must be at most 2147483647, got a value of type int"),
        ({"schedule": {"milestones": [0.5]}}, "--milestones must be a list"),
        ({"source": None}, "--source must be text, got None"),
        ({"seed": "0"}, "--seed must be a whole number, got '0'"),
        ({"losses": {"budget": 0.0}}, "--budget must be above 0 and at most 1 .*, got 0"),
        ({"losses": {"budget": 1.01}}, "--budget must be above 0 and at most 1 .*, got 1.01"),
        ({"losses": {"budget": 0.5, "gamma": 0.1}}, "--budget and --gamma exclude each other"),
        ({"losses": {"gamma": -0.1}}, "must not be negative"),
        ({"losses": {"alpha": -1.0}}, "must not be negative"),
        ({"losses": {"m_d": float("nan")}}, "--m-d must be a finite number, got nan"),
        ({"losses": {"budget": float("nan")}}, "--budget must be a finite number, got nan"),
        ({"schedule": {"warmup": float("inf")}}, "--warmup must be a finite number, got inf"),
        ({"schedule": {"warmup": -1.0}}, "--warmup must not be negative, got -1"),
        ({"schedule": {"batch": 1}}, "--batch must be 2 or more, got 1"),
        ({"schedule": {"views": 0}}, "--views must be from 1 to 10000, got 0"),
        ({"schedule": {"views": 10_001}}, "--views must be from 1 to 10000, got 10001"),
        ({"schedule": {"views": 1}}, "use --views 2 or more, or --alpha 0"),
        ({"schedule": {"epochs": 0}}, "--epochs must be 1 or more, got 0"),
        ({"schedule": {"finetune": -1}}, "--finetune must be 0 or more, got -1"),
        ({"schedule": {"lr": 0.0}}, "--lr must be above 0, got 0"),
        ({"schedule": {"finetune_lr": -1.0}}, "--finetune-lr must be above 0, got -1"),
        ({"schedule": {"momentum": 1.0}}, "--momentum must be at least 0 and below 1, got 1"),
        ({"schedule": {"weight_decay": -1.0}}, "--weight-decay must not be negative, got -1"),
        ({"schedule": {"milestones": (0.8, 0.6)}}, "--milestones must be rising .* got 0.8 0.6"),
        ({"schedule": {"milestones": (30.0, 60.0)}}, "--milestones must be rising .* got 30 60"),
        ({"schedule": {"milestones": (float("nan"),)}}, "--milestones must be a finite number, got nan"),
        (
            {"schedule": {"milestones": (0.5,), "schedule": "cosine"}},
            "requires --schedule multistep, got cosine",
        ),
        ({"network": {"routed": False}, "losses": {"budget": 0.5}}, "--budget requires routers"),
        ({"network": {"routed": False}, "losses": {"gamma": 0.0}}, "--gamma requires routers"),
        ({"extra": {"label_smoothing": 1.0}}, "--label-smoothing must be at least 0 and below 1, got 1"),
        ({"extra": {"label_smoothing": -0.1}}, "--label-smoothing must be at least 0 and below 1, got -0.1"),
        ({"extra": {"label_smoothing": float("nan")}}, "--label-smoothing must be a finite number, got nan"),
        ({"extra": {"ema": 1.0}}, "--ema must be at least 0 and below 1, got 1"),
        ({"extra": {"ema": -0.1}}, "--ema must be at least 0 and below 1, got -0.1"),
        ({"extra": {"distill": 0.5}}, "--distill requires --teacher"),
        ({"extra": {"teacher": "run", "distill": 0.0}}, "--teacher requires --distill above 0"),
        ({"extra": {"teacher": "run", "distill": 1.5}}, "--distill must be between 0 and 1, got 1.5"),
        (
            {"extra": {"teacher": "run", "distill": 0.5, "distill_temperature": 0.0}},
            "--distill-temperature must be from 1e-06 to 1e6, got 0",
        ),
        (
            {"extra": {"teacher": "run", "distill": 0.5, "distill_temperature": 1e200}},
            "--distill-temperature must be from 1e-06 to 1e6",
        ),
        ({"extra": {"teacher_views": 32}}, "--teacher-views requires --teacher"),
        (
            {"extra": {"teacher": "run", "teacher_views": 1}},
            "--teacher-views must be from 2, the --views of a step, to 10000, or 0, got 1",
        ),
        ({"extra": {"teacher": "run", "teacher_views": 31}, "schedule": {"views": 32}}, "from 32, .* got 31"),
        ({"extra": {"teacher": "run", "teacher_views": 10_001}}, "from 2, .* to 10000, or 0, got 10001"),
        ({"extra": {"teacher": "run", "teacher_views": -1}}, "from 2, .* to 10000, or 0, got -1"),
        ({"extra": {"teacher": "run", "teacher_views": 2.5}}, "--teacher-views must be a whole number, got 2.5"),
        ({"extra": {"cutout": -1}}, "--cutout must not be negative, got -1"),
        ({"extra": {"start_sha256": "0"}}, "--start-sha256 requires --start"),
        ({"extra": {"teacher_sha256": "0"}}, "--teacher-sha256 requires --teacher"),
        ({"data": {"holdout": -1}}, "--holdout must not be negative, got -1"),
        ({"data": {"image_size": 4}}, "--image-size must be 8 or more, got 4"),
        ({"seed": -1}, "--seed must be a whole number from 0 to 4294967295, got -1"),
        ({"seed": 2**32}, "--seed must be a whole number from 0 to 4294967295, got 4294967296"),
    ],
)
def test_invalid_values_are_refused(parts: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        resolve(run(**parts))


@pytest.mark.parametrize(
    "parts",
    [
        {"schedule": {"views": 1}, "losses": {"alpha": 0.0}},
        {"schedule": {"views": 1}, "network": {"routed": False}},
        {"schedule": {"finetune": 0}},
        {"losses": {"budget": 1.0}},
        {"losses": {"gamma": 0.0}},
        {"schedule": {"milestones": ()}},
        {"extra": {"label_smoothing": 0.999, "ema": 0.9999, "teacher": "run", "distill": 1.0}},
        {"network": {"routed": False}, "extra": {"ema": 0.99, "start": "run"}},
        {"seed": 2**32 - 1},
    ],
)
def test_values_at_the_limits_are_accepted(parts: dict[str, Any]) -> None:
    resolve(run(**parts))


OTHER_METHODS = {"target_rate", "rate_weight", "policy_weight", "penalty"}  # settings that CoDiNet does not have


@pytest.mark.parametrize(
    ("parts", "unused"),
    [
        ({}, OTHER_METHODS),
        ({"losses": {"alpha": 0.0}}, OTHER_METHODS | {"m_c"}),
        ({"losses": {"alpha": 0.0, "beta": 0.0}}, OTHER_METHODS | {"m_c", "m_d"}),
        (
            {"network": {"routed": False}},
            {"router", "relaxation", "tau", "finetune", "finetune_lr", *vars(LossConfig())},
        ),
    ],
)
def test_settings_without_effect(parts: dict[str, Any], unused: set[str]) -> None:
    assert unused_settings(run(**parts)) == unused
