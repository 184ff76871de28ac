import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codinet import block_costs, create_model, threshold_for
from codinet.errors import UserError
from codinet.relaxation import hard
from codinet.thresholds import find_threshold


def test_a_worked_example_of_the_threshold() -> None:
    # Cost 1 − logit/10 is the budget 0.8 where the logit is 2.
    threshold = find_threshold(lambda p: 1 - math.log(p / (1 - p)) / 10, 0.8)
    assert math.log(threshold / (1 - threshold)) == pytest.approx(2, abs=0.01)


def staircase(steps: list[tuple[float, float]]) -> Callable[[float], float]:
    """Cost 1, less each step's height once the threshold's logit passes its place."""
    return lambda p: 1 - sum(height for place, height in steps if math.log(p / (1 - p)) > place)


def test_between_the_steps_of_a_staircase_the_nearer_one_is_taken() -> None:
    cost = staircase([(-1.0, 0.3), (1.5, 0.3)])  # 1, 0.7, 0.4
    assert cost(find_threshold(cost, 0.66)) == pytest.approx(0.7)
    assert cost(find_threshold(cost, 0.45)) == pytest.approx(0.4)
    assert cost(find_threshold(cost, 0.99)) == pytest.approx(1.0)
    assert cost(find_threshold(cost, 0.0)) == pytest.approx(0.4)


@pytest.mark.parametrize(("logit", "most"), [(0.1, 7), (-0.6, 7), (3.0, 10)])
def test_a_near_threshold_takes_few_looks(logit: float, most: int) -> None:
    looks: list[float] = []

    def cost(threshold: float) -> float:
        looks.append(threshold)
        return 0.6 - (math.log(threshold / (1 - threshold)) - logit) / 20

    found = find_threshold(cost, 0.6)
    assert abs(math.log(found / (1 - found)) - logit) < 0.01
    assert len(looks) <= most


def test_where_no_threshold_matters_the_plain_one_stays() -> None:
    assert find_threshold(lambda p: 0.7, 0.5) == 0.5


@pytest.mark.parametrize("logit", [-28.3, -17.0, -9.1, 9.1, 17.0, 28.3])
def test_scores_beyond_the_usual_range_are_reached(logit: float) -> None:
    """Half of the images run a block up to this logit, the others up to one that is 0.2 higher."""
    looks: list[float] = []

    def cost(threshold: float) -> float:
        looks.append(threshold)
        at = math.log(threshold / (1 - threshold))
        return 0.3 + 0.2 * (at < logit) + 0.2 * (at < logit + 0.2)

    found = find_threshold(cost, 0.5)
    assert cost(found) == pytest.approx(0.5)
    assert len(looks) <= 1 + 14 + 6 + 1  # the first, the steps, those beyond the range, and this one


def test_beyond_the_usual_range_is_searched_only_if_no_threshold_within_reaches_the_budget() -> None:
    looks: list[float] = []

    def cost(threshold: float) -> float:
        at = math.log(threshold / (1 - threshold))
        looks.append(at)
        return 0.7 - 0.3 * (at > 7.9)

    find_threshold(cost, 0.5)
    assert max(looks) == pytest.approx(8)
    looks.clear()
    find_threshold(lambda p: cost(p) + 0.3, 0.5)  # at least 0.7
    assert max(looks) == pytest.approx(32, abs=0.02)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(
    st.lists(st.tuples(st.floats(-7, 7), st.floats(0.01, 0.2)), max_size=5),
    st.floats(0.05, 1),
)
def test_no_threshold_comes_much_nearer_on_any_staircase(steps: list[tuple[float, float]], budget: float) -> None:
    cost = staircase(steps)
    found = find_threshold(cost, budget, steps=40)
    assert 0 < found < 1
    # Each level of the staircase, met in the middle between two places (levels narrower than that do not count).
    places = sorted({-8.0, *(place for place, _ in steps), 8.0})
    levels = [cost(1 / (1 + math.exp(-(a + b) / 2))) for a, b in itertools.pairwise(places) if b - a > 1e-6]
    assert abs(cost(found) - budget) <= min(abs(level - budget) for level in levels) + 5e-4 + 1e-9


@pytest.mark.parametrize("budget", [0.5, 0.6, 0.7])
def test_a_network_costs_what_is_asked_for(budget: float) -> None:
    torch.manual_seed(0)
    model, images = create_model("resnet20"), torch.randn(64, 3, 8, 8)
    assert model.routers is not None
    for parameter in model.routers.parameters():  # scores that differ between images
        torch.nn.init.normal_(parameter, std=0.5)
    threshold = threshold_for(model, images, budget, batch=10)
    assert model.training
    model.eval()
    with torch.no_grad():
        path_BN = model(images, decide=lambda scores: hard(scores, threshold=threshold)).path_BN
    assert block_costs(model, (3, 8, 8)).share(path_BN).mean().item() == pytest.approx(budget, abs=0.01)


@pytest.mark.parametrize("budget", [0.0, -1.0, 1.5, math.nan, math.inf, "0.5", None, True, 10**400])
def test_a_budget_that_is_no_share_of_the_static_cost_is_refused(budget: Any) -> None:
    with pytest.raises(UserError, match="budget must be a finite number above 0 and of at most 1, got"):
        threshold_for(create_model("resnet20"), torch.randn(2, 3, 8, 8), budget)


def test_a_static_network_has_no_budget() -> None:
    with pytest.raises(UserError, match="Budgets apply to routed networks only"):
        threshold_for(create_model("resnet20", routed=False), torch.randn(2, 3, 8, 8), 0.5)


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (torch.zeros(0, 3, 8, 8), "images must be a tensor of floats, B×C×H×W and not empty"),
        (torch.zeros(3, 8, 8), "images must be a tensor of floats, B×C×H×W"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), "images must be a tensor of floats"),
        (torch.full((2, 3, 8, 8), math.nan), "images must hold finite numbers, got NaN or infinity"),
        (torch.full((2, 3, 8, 8), math.inf), "images must hold finite numbers"),
        (torch.zeros(2, 1, 8, 8), "must have 3 channels"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.float64), "must have the same dtype"),
        (torch.zeros(2, 3, 8, 8, device="meta"), "on the meta device"),
        ([[0.5]], "images must be a tensor"),
        (None, "images must be a tensor"),
    ],
)
def test_images_that_tell_nothing_give_no_threshold(images: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        threshold_for(create_model("resnet20"), images, 0.5)


def test_a_network_whose_routers_give_nan_has_no_threshold() -> None:
    model = create_model("resnet20")
    with torch.no_grad():
        model.get_parameter("routers.each.4.out.bias").fill_(math.nan)
    with pytest.raises(UserError, match="Router scores must be finite numbers, got NaN"):
        threshold_for(model, torch.randn(2, 3, 8, 8), 0.5)


@pytest.mark.parametrize("batch", [0, -1, 2.5, None, True])
def test_a_batch_holds_a_whole_number_of_images(batch: Any) -> None:
    with pytest.raises(UserError, match="batch must be a whole number from 1 to"):
        threshold_for(create_model("resnet20"), torch.randn(2, 3, 8, 8), 0.5, batch=batch)


@pytest.mark.parametrize("cost", [math.nan, math.inf, None, "1"])
def test_a_cost_that_is_not_finite_ends_the_search(cost: Any) -> None:
    with pytest.raises(UserError, match=r"The cost at threshold 0\.5 must be a finite number, got"):
        find_threshold(lambda threshold: cost, 0.5)
