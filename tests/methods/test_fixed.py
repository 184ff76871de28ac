from itertools import product
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codinet.config import RunConfig
from codinet.methods.fixed import GAP, METHOD, BiasRouters, choose_path
from codinet.methods.method import StageStart
from codinet.relaxation import hard
from codinet.resolving import resolve


def test_the_path_by_hand() -> None:
    """Four blocks of 0.2 and a budget of 0.4. Without block 1 the loss is lowest, then without block 3."""
    importance = [3.0, 0.5, 2.0, 1.0]
    asked: list[list[bool]] = []

    def loss_of(path: list[bool]) -> float:
        asked.append(path)
        return sum(weight for weight, runs in zip(importance, path, strict=True) if not runs)

    assert choose_path([0.2] * 4, 0.4, loss_of) == [True, False, True, False]
    assert len(asked) == 4 + 3


def test_a_block_stays_if_the_budget_could_not_be_met_without_it() -> None:
    """Blocks of 0.3, 0.3 and 0.1 and a budget of 0.4: the small one must stay, however useless it is."""
    assert choose_path([0.3, 0.3, 0.1], 0.4, lambda path: float(path[2])) in ([True, False, True], [False, True, True])


def test_nothing_is_dropped_if_the_budget_is_met() -> None:
    assert choose_path([0.2, 0.3], 0.5, lambda _path: pytest.fail("no need to ask")) == [True, True]


@given(st.lists(st.sampled_from([0.05, 0.08, 0.11, 0.13]), min_size=1, max_size=8), st.floats(0, 1), st.randoms())
def test_no_set_of_blocks_is_closer_than_the_gap_allows(costs: list[float], share: float, luck: Random) -> None:
    budget = share * sum(costs)
    path = choose_path(costs, budget, lambda _path: luck.random())

    def gap_of(chosen: tuple[bool, ...] | list[bool]) -> float:
        return abs(sum(cost for cost, runs in zip(costs, chosen, strict=True) if runs) - budget)

    best = min(map(gap_of, product([False, True], repeat=len(costs))))
    assert gap_of(path) <= max(GAP, best) + 0.002  # the grid


def test_rounding_does_not_add_up_over_many_blocks() -> None:
    """54 blocks of 1/54 minus a bit: rounded to 1/2000 each, 35 of them seemed to cost 0.6475 instead of 0.636."""
    path = choose_path([0.98 / 54] * 54, 0.64, lambda _path: 0.0)
    assert abs(sum(path) * 0.98 / 54 - 0.64) <= GAP


def test_all_images_take_the_path_and_no_threshold_changes_it() -> None:
    routers = BiasRouters(4, 3)
    images_BCHW = torch.randn(5, 3, 4, 4)
    assert hard(routers.scores(images_BCHW)).all()
    routers.set_path([True, False, False, True])
    for threshold in (0.01, 0.5, 0.99):
        path_BN = hard(routers.scores(images_BCHW), threshold=threshold)
        assert path_BN.tolist() == [[1, 0, 0, 1]] * 5


def test_the_static_stage_runs_every_block_whatever_path_a_start_had() -> None:
    routers = BiasRouters(4, 3)
    routers.set_path([True, False, False, True])
    static = METHOD.stages(resolve(RunConfig("digits", method="fixed")))[0]
    assert static.name == "static"
    METHOD.begin_stage(static, StageStart(routers, torch.ones(4) / 4, 0.0, 0.5, lambda: 0.0))
    assert hard(routers.scores(torch.zeros(1, 3, 4, 4))).all()
