import itertools

import pytest
import torch

from codinet.train.budget import BudgetController

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
