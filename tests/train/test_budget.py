import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codinet.train.budget import BudgetController, find_threshold

CPU = torch.device("cpu")


def controller(budget: float = 0.6, progress: float = 1.0) -> BudgetController:
    made = BudgetController(budget, steps=1000, device=CPU)
    made.aim(progress)
    return made


def gammas(made: BudgetController, cost: float, steps: int) -> list[float]:
    """γ after each of so many batches of that cost."""
    found = []
    for _ in range(steps):
        made.observe(torch.tensor(cost))
        found.append(made.gamma().item())
    return found


def test_the_target_falls_from_everything_to_the_budget_and_stays() -> None:
    made = controller()
    targets = []
    for progress in torch.linspace(0, 1, 101).tolist():
        made.aim(progress)
        targets.append(made.target.item())
    assert targets[0] == 1
    assert targets[-1] == pytest.approx(0.6)
    assert all(later <= earlier for earlier, later in itertools.pairwise(targets))
    assert min(targets) == pytest.approx(0.6)


def test_gamma_rises_while_the_cost_is_above_the_target() -> None:
    found = gammas(controller(), 1.0, 50)
    assert found[0] > 0
    assert all(later > earlier for earlier, later in itertools.pairwise(found))


def test_a_worked_example_of_gamma() -> None:
    made = BudgetController(0.5, steps=2500, device=CPU)  # the integral's gain is 0.2 / 50 = 0.004
    made.aim(1.0)
    made.observe(torch.tensor(0.5))  # the running cost goes from 1 to 0.95
    assert made.integral.item() == pytest.approx(0.004 * 0.45)
    assert made.gamma().item() == pytest.approx(0.2 * 0.45 + 0.004 * 0.45)


def test_what_plain_images_cost_more_is_aimed_below() -> None:
    made = controller(0.6)
    made.cost.fill_(0.6)
    made.compare(0.64, settling=False)  # half of it is believed at once
    made.aim(1.0)
    assert made.target.item() == pytest.approx(0.58)
    made.compare(0.64, settling=False)
    made.aim(1.0)
    assert made.target.item() == pytest.approx(0.57)
    made.aim(0.0)
    assert made.target.item() == 1  # nothing is asked for at first
    for _ in range(20):
        made.compare(0.5, settling=False)
    made.aim(1.0)
    assert made.target.item() == pytest.approx(0.7)
    assert made.integral.item() == 0


def test_where_routers_settle_gamma_follows_the_drift_of_an_epoch() -> None:
    made = controller(0.6)
    made.integral.fill_(0.2)
    made.compare(0.62, settling=True)
    assert made.integral.item() == pytest.approx(0.2 * 1.2)  # ten times 0.02 is a fifth
    made.integral.fill_(-0.001)
    made.compare(0.55, settling=True)
    assert made.integral.item() == pytest.approx(-0.001 - 0.01 * 0.5)


def test_the_budget_is_met_by_plain_images_that_cost_more_than_training_batches() -> None:
    # A network whose cost follows γ at once: 0.9 − 4γ in training, and 0.05 more in use.
    made = BudgetController(0.4, steps=2000, device=CPU)
    for step in range(2000):
        made.aim(step / 2000)
        cost = 0.9 - 4 * made.gamma().item()
        made.observe(torch.tensor(cost))
        if step % 100 == 99:
            made.compare(cost + 0.05, settling=step > 1000)
    assert cost + 0.05 == pytest.approx(0.4, abs=0.01)


def test_gamma_falls_below_zero_while_the_cost_is_below_the_target() -> None:
    found = gammas(controller(), 0.2, 5000)
    assert found[-1] < 0
    after = found[100:]  # the running cost starts from above
    assert all(later <= earlier for earlier, later in itertools.pairwise(after))


def test_gamma_keeps_still_where_the_cost_is_the_target() -> None:
    made = controller()
    made.cost.fill_(0.6)
    assert gammas(made, 0.6, 100) == pytest.approx([made.gamma().item()] * 100, abs=1e-6)
    assert made.gamma().item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("cost", "opposite"), [(0.0, 1.0), (1.0, 0.0), (5.0, 0.0)])
def test_gamma_is_bounded_and_turns_however_long_it_was_pushed(cost: float, opposite: float) -> None:
    made = controller()
    *_, before, limit = gammas(made, cost, 5000)
    assert before == limit
    assert abs(limit) < 10
    assert gammas(made, opposite, 5000)[-1] * limit < 0


def test_a_controller_goes_on_from_its_state() -> None:
    one, other = controller(0.5), controller(0.5, progress=0.0)
    gammas(one, 0.9, 30)
    for name, tensor in one.state().items():
        other.state()[name].copy_(tensor)
    assert gammas(other, 0.7, 10) == gammas(one, 0.7, 10)


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
