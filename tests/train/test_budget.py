import copy
import itertools
import math

import pytest
import torch

from codinet.cost import CostTable, block_costs
from codinet.data.batches import Resident
from codinet.model import RoutedNetwork
from codinet.relaxation import hard
from codinet.train import splits
from codinet.train.budget import BudgetController, estimated_cost
from codinet.train.distributed import World
from codinet.train.splits import SplitEvaluator

CPU = torch.device("cpu")


def controller(budget: float = 0.6, progress: float = 1.0) -> BudgetController:
    made = BudgetController(budget, steps=1000, device=CPU)
    made.aim(progress)
    return made


def compare(made: BudgetController, cost: float, *, settling: bool) -> None:
    """End an epoch in the first or second half of stage 1, without a network to shift."""
    made.settle([], cost, lambda _threshold: cost, progress=1.0 if settling else 0.0)


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
    compare(made, 0.64, settling=False)  # half of it is believed at once
    made.aim(1.0)
    assert made.target.item() == pytest.approx(0.58)
    compare(made, 0.64, settling=False)
    made.aim(1.0)
    assert made.target.item() == pytest.approx(0.57)
    made.aim(0.0)
    assert made.target.item() == 1  # nothing is asked for at first
    for _ in range(20):
        compare(made, 0.5, settling=False)
    made.aim(1.0)
    assert made.target.item() == pytest.approx(0.7)
    assert made.integral.item() == 0


def test_where_routers_settle_gamma_follows_the_drift_of_an_epoch() -> None:
    made = controller(0.6)
    made.integral.fill_(0.2)
    compare(made, 0.62, settling=True)
    assert made.integral.item() == pytest.approx(0.2 * 1.2)  # ten times 0.02 is a fifth
    made.integral.fill_(-0.001)
    compare(made, 0.55, settling=True)
    assert made.integral.item() == pytest.approx(-0.001 - 0.01 * 0.5)


def test_the_budget_is_met_by_plain_images_that_cost_more_than_training_batches() -> None:
    # A network whose cost follows γ at once: 0.9 − 4γ in training, and 0.05 more in use.
    made = BudgetController(0.4, steps=2000, device=CPU)
    for step in range(2000):
        made.aim(step / 2000)
        cost = 0.9 - 4 * made.gamma().item()
        made.observe(torch.tensor(cost))
        if step % 100 == 99:
            compare(made, cost + 0.05, settling=step > 1000)
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


@pytest.fixture
def table(half_open: RoutedNetwork) -> CostTable:
    return block_costs(half_open, (3, 8, 8))


@pytest.mark.parametrize("budget", [0.3, 0.8])
def test_calibration_shifts_both_networks_until_the_evaluated_one_costs_its_budget(
    half_open: RoutedNetwork, sixty: Resident, table: CostTable, budget: float
) -> None:
    evaluated, trained = copy.deepcopy(half_open).train(), copy.deepcopy(half_open)
    evaluator = SplitEvaluator(table, CPU, World())
    controller(budget).calibrate([evaluated, trained], evaluator.cost_at(evaluated, sixty))
    assert evaluated.training  # as before
    assert evaluator.evaluate(evaluated.eval(), sixty).cost_share == pytest.approx(budget, abs=0.02)
    for one, other in zip(evaluated.parameters(), trained.parameters(), strict=True):
        assert torch.equal(one, other)


def test_calibration_measures_no_threshold_twice(
    half_open: RoutedNetwork, sixty: Resident, table: CostTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[float] = []

    def record(scores_B2: torch.Tensor, *, threshold: float) -> torch.Tensor:
        measured.append(threshold)
        return hard(scores_B2, threshold=threshold)

    monkeypatch.setattr(splits, "hard", record)
    model = copy.deepcopy(half_open)
    controller(0.3).calibrate([model], SplitEvaluator(table, CPU, World()).cost_at(model, sixty))
    assert len(set(measured)) > 1
    assert len(measured) == len(set(measured)) * len(half_open.blocks)  # one batch, so once for each block


@pytest.mark.parametrize("budget", [0.3, 0.8])
def test_half_shifts_converge_to_the_budget(
    half_open: RoutedNetwork, sixty: Resident, table: CostTable, budget: float
) -> None:
    model, made = copy.deepcopy(half_open), controller(budget)
    evaluator = SplitEvaluator(table, CPU, World())
    gaps = []
    for _ in range(12):
        plain = evaluator.evaluate(model, sixty)
        gaps.append(abs(plain.cost_share - budget))
        estimate = estimated_cost(table, plain.paths.run_probability_TN)
        made.settle([model], plain.cost_share, estimate, progress=0.5)
    assert gaps[1] > 0.2 * gaps[0]  # not all at once
    assert gaps[-1] < 0.02


def test_a_worked_example_of_a_half_shift(half_open: RoutedNetwork, table: CostTable) -> None:
    # All run with a probability of 0.9, whose logit is log 9, except the first block for half of the images: 0.6.
    probability_TN = torch.full((60, len(half_open.blocks)), 0.9)
    probability_TN[:30, 0] = 0.6
    path_TN = torch.ones_like(probability_TN)
    path_TN[:30, 0] = 0
    model, made = copy.deepcopy(half_open), controller(table.share(path_TN).mean().item())

    def biases() -> list[float]:
        return [p[1].item() for name, p in model.named_parameters() if name.endswith("out.bias")]

    before = biases()
    made.settle([model], 1.0, estimated_cost(table, probability_TN), progress=0.5)
    (moved,) = {round(after - was, 5) for was, after in zip(before, biases(), strict=True)}
    assert -math.log(9) / 2 < moved < -math.log(1.5) / 2


def test_a_budget_that_is_met_moves_no_router(half_open: RoutedNetwork, sixty: Resident, table: CostTable) -> None:
    model, evaluator = copy.deepcopy(half_open), SplitEvaluator(table, CPU, World())
    plain = evaluator.evaluate(model, sixty)
    made = controller(plain.cost_share + 0.003)
    made.calibrate([model], evaluator.cost_at(model, sixty))
    made.settle([model], plain.cost_share, estimated_cost(table, plain.paths.run_probability_TN), progress=0.9)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), half_open.parameters(), strict=True))
