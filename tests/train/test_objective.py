"""A routed network trained in a loop of one's own."""

from typing import Any

import pytest
import torch
from torch import nn

from codinet import UserError, block_costs, create_model, make_dynamic
from codinet.config import LossConfig
from codinet.data.digits import load_digits
from codinet.losses import Terms, consistency, diversity, expected_cost, score_decay, total
from codinet.model import RoutedNetwork
from codinet.records import RoutedOutput
from codinet.relaxation import run_probability
from codinet.thresholds import mean_cost
from codinet.train import Objective

SHAPE = (1, 8, 8)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(self.conv(x)).relu()


def network() -> RoutedNetwork:
    torch.manual_seed(0)
    blocks = [Residual(12) for _ in range(6)]
    module = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), *blocks, nn.Flatten(), nn.Linear(12 * 64, 10))
    return make_dynamic(module, blocks=Residual, image_shape=SHAPE)


def output(model: RoutedNetwork, number: int = 6) -> tuple[RoutedOutput, torch.Tensor]:
    torch.manual_seed(1)
    return model(torch.randn(number, *SHAPE)), torch.arange(number // 2).repeat_interleave(2)


def test_the_loss_of_a_step_is_eq_12() -> None:
    model = network()
    losses = LossConfig(alpha=0.5, beta=0.25, m_c=0.01, m_d=0.9, score_decay=0.125)
    objective = Objective(model, SHAPE, budget=0.6, steps=10, losses=losses)
    got, labels = output(model)
    paths = run_probability(got.scores_BN2)
    terms = Terms(
        nn.functional.cross_entropy(got.logits_BK, labels),
        consistency(paths.unflatten(0, (3, 2)), margin=0.01),
        diversity(paths.unflatten(0, (3, 2)), margin=0.9),
        expected_cost(paths, block_costs(model, SHAPE).loss_weights()),
    )
    gamma = objective.controller.gamma()  # before the first step: cost and target are both 1
    wished = total(terms, alpha=0.5, beta=0.25, gamma=gamma) + 0.125 * score_decay(got.scores_BN2)
    torch.testing.assert_close(objective(got, labels, views=2), wished)
    assert objective.taken == 1
    assert objective.progress == 0.1


@pytest.mark.parametrize("budget", [0.4, 0.7])
def test_a_loop_of_ones_own_ends_at_its_budget(budget: float) -> None:
    model, digits, epochs = network().train(), load_digits(), 8
    images, labels = digits.train.images_NCHW / 255 - 0.3, digits.train.labels_N
    number = len(images) // 64
    losses = LossConfig(alpha=1.0, beta=1.0, m_d=1.0, score_decay=1e-3)
    objective = Objective(model, SHAPE, budget=budget, steps=epochs * number, losses=losses)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for _ in range(epochs):
        for chosen in torch.randperm(len(images))[: number * 64].split(64):
            views = images[chosen].repeat_interleave(2, dim=0)
            views = views + 0.1 * torch.randn_like(views)
            loss = objective(model(views, decide=objective.decide), labels[chosen].repeat_interleave(2), views=2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        cost = objective.settle(images[:500])
    assert model.training
    assert cost == pytest.approx(budget, abs=0.02)
    rest = mean_cost(model, objective.table, images[500:], 0.5, batch=250)
    assert rest == pytest.approx(budget, abs=0.04)
    with torch.no_grad():
        answers = model.eval()(digits.test.images_NCHW / 255 - 0.3).logits_BK.argmax(dim=1)
    hits = answers == digits.test.labels_N
    assert hits.float().mean() > 0.9


def test_in_the_first_half_routers_are_left_alone_and_then_nudged() -> None:
    model = network()
    objective = Objective(model, SHAPE, budget=0.5, steps=4)
    assert model.routers is not None
    before = {name: value.clone() for name, value in model.routers.state_dict().items()}
    images = torch.randn(20, *SHAPE)

    def moved() -> bool:
        assert model.routers is not None
        return any(not torch.equal(value, before[name]) for name, value in model.routers.state_dict().items())

    objective(*output(model), views=2)
    objective.settle(images)
    assert not moved()
    objective(*output(model), views=2)
    objective.settle(images)
    assert moved()


def test_one_that_was_kept_goes_on_as_the_other() -> None:
    model, images = network(), torch.randn(20, *SHAPE)
    one, other = (Objective(model, SHAPE, budget=0.5, steps=9) for _ in range(2))
    for _ in range(3):
        one(*output(model), views=2)
    one.settle(images)
    kept = one.state_dict()
    wished = [one(*output(model), views=2).item() for _ in range(2)]
    other.load_state_dict(kept)
    assert (other.taken, other.progress) == (3, 3 / 9)
    assert [other(*output(model), views=2).item() for _ in range(2)] == wished


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"budget": 1.5}, "no share of the static cost"),
        ({"budget": 1e-6}, "with every block skipped the network still costs"),
        ({"losses": LossConfig(gamma=0.1)}, "An objective has one budget"),
        ({"steps": 0}, "An objective for 0 steps leads nowhere"),
    ],
)
def test_an_objective_that_cannot_be(words: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Objective(network(), SHAPE, **{"budget": 0.5, "steps": 5, **words})


def test_static_networks_and_odd_numbers_of_views_are_refused() -> None:
    with pytest.raises(UserError, match="a budget is for a routed one"):
        Objective(create_model("resnet20", routed=False), (3, 32, 32), budget=0.5, steps=5)
    model = network()
    with pytest.raises(UserError, match="6 inputs are not 4 views of every image"):
        Objective(model, SHAPE, budget=0.5, steps=5)(*output(model), views=4)
