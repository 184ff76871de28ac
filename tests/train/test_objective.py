"""A routed network trained in a loop of one's own."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from codinet import UserError, block_costs, create_model, make_dynamic
from codinet.config import LossConfig
from codinet.data.npz import load_digits
from codinet.losses import Terms, consistency, diversity, expected_cost, score_decay, total
from codinet.model import RoutedNetwork
from codinet.records import RoutedOutput
from codinet.relaxation import run_probability
from codinet.thresholds import mean_cost
from codinet.train import Objective

SHAPE = (1, 8, 8)
NAN = float("nan")


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
    number = len(images) // 64  # steps of an epoch, which sees half of the images
    losses = LossConfig(alpha=1.0, beta=1.0, m_d=1.0, score_decay=1e-3)
    objective = Objective(model, SHAPE, budget=budget, steps=epochs * number, losses=losses)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for _ in range(epochs):
        for chosen in torch.randperm(len(images))[: number * 32].split(32):
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
        ({"budget": 1.5}, "budget must be a finite number above 0 and of at most 1, got 1.5"),
        ({"budget": 1e-6}, "The budget must be at least .* with every block skipped, got 1e-06"),
        ({"losses": LossConfig(gamma=0.1)}, "losses must not set budget or gamma"),
        ({"losses": LossConfig(alpha=-1.0)}, "alpha of losses must be a finite number from 0 to 1e[+]06, got -1.0"),
        ({"losses": LossConfig(m_d=NAN)}, "m_d of losses must be a finite number .* got nan"),
        ({"losses": LossConfig(paths="noisy")}, "paths of losses must be noise-free or noised, got 'noisy'"),  # type: ignore[arg-type]
        ({"losses": 0.5}, "losses must be a LossConfig, got 0.5"),
        ({"steps": 0}, "steps must be a whole number from 1 to 2147483647, got 0"),
        ({"steps": 2.5}, "steps must be a whole number"),
        ({"label_smoothing": -0.1}, "label_smoothing must be a finite number of at least 0 and below 1, got -0.1"),
        ({"label_smoothing": 1.0}, "label_smoothing must be"),
        ({"label_smoothing": NAN}, "label_smoothing must be .* got nan"),
        ({"tau": 0}, "tau must be a finite number of at least 1e-06, got 0"),
        ({"tau": -1.0}, "tau must be"),
        ({"tau": NAN}, "tau must be"),
        ({"tau": "1"}, "tau must be"),
    ],
)
def test_wrong_arguments_of_an_objective_are_refused(words: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Objective(network(), SHAPE, **{"budget": 0.5, "steps": 5, **words})


@pytest.mark.parametrize("shape", [(1, 8), (1, 8, 0), (3, 8, 8), (1.0, 8, 8), "188", None, (1, 8, 10**9)])
def test_an_image_shape_that_does_not_fit_is_refused(shape: Any) -> None:
    with pytest.raises(UserError, match="image_shape"):
        Objective(network(), shape, budget=0.5, steps=5)


def test_static_networks_are_refused() -> None:
    with pytest.raises(UserError, match="Budgets apply to routed networks only"):
        Objective(create_model("resnet20", routed=False), (3, 32, 32), budget=0.5, steps=5)


@pytest.mark.parametrize("router", ["halting", "spatial", "hash", "bias", "policy", "narrow"])
def test_routers_of_other_methods_are_refused(router: str) -> None:
    own = create_model("resnet20", router=router)
    module = nn.Sequential(Residual(1), nn.Flatten(), nn.Linear(64, 10))
    adopted = make_dynamic(module, blocks=Residual, router=router, image_shape=SHAPE)
    for model, shape in ((own, (3, 32, 32)), (adopted, SHAPE)):
        with pytest.raises(UserError, match=f"Objective requires routers fc or cnn or rnn, got {router}"):
            Objective(model, shape, budget=0.9, steps=5)


def empty(got: RoutedOutput, labels: torch.Tensor) -> tuple[Any, ...]:
    return RoutedOutput(*(part[:0] for part in got)), labels[:0], 2


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (empty, "logits must be a tensor of floats, B×K and not empty"),
        (lambda got, labels: (got, labels, 4), "The number of inputs must be a multiple of views = 4, got 6"),
        (lambda got, labels: (got, labels, 0), "views must be a whole number from 1 to 2147483647, got 0"),
        (lambda got, labels: (got, labels, 2.0), "views must be a whole number"),
        (lambda got, labels: (got, labels[:4], 2), "labels must be a tensor of numbers, 6 and not empty"),
        (lambda got, labels: (got, labels.float(), 2), "labels must be int64, got a tensor of 6 .float32"),
        (lambda got, labels: (got, labels + 9, 2), "labels must be from 0 to 9, .* got labels from 9 to 11"),
        (lambda got, labels: (got, labels - 100, 2), "labels must be from 0 to 9"),
        (lambda got, labels: (got, torch.arange(3).repeat(2), 2), "All views of an image must be next to each other"),
        (lambda got, labels: (got, labels.to("meta"), 2), "labels must be on the network's device, cpu"),
        (lambda got, labels: (got.logits_BK, labels, 2), "output must be what the network returns"),
        (lambda got, labels: (got._replace(scores_BN2=got.scores_BN2[:, :3]), labels, 2), "scores must be a tensor"),
        (lambda got, labels: (got._replace(path_BN=got.path_BN[:2]), labels, 2), "path must be a tensor"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_and_leaves_the_controller_alone(spoil: Any, sentence: str) -> None:
    model = network()
    objective = Objective(model, SHAPE, budget=0.5, steps=5)
    before = objective.state_dict()
    got, labels, views = spoil(*output(model))
    with pytest.raises(UserError, match=sentence):
        objective(got, labels, views=views)
    assert before == objective.state_dict()
    assert objective(*output(model), views=2).isfinite()


def test_the_documented_lines_stack_views_next_to_each_other() -> None:
    text = (Path(__file__).parents[2] / "docs" / "your-networks.md").read_text()
    images_L, labels_L = torch.arange(3.0).view(3, 1, 1, 1), torch.tensor([5, 6, 7])
    names: dict[str, Any] = {"torch": torch, "augment": lambda image: image + 0.5, "image": images_L, "label": labels_L}
    (first,) = re.findall(r"^ *(views = torch.stack.*?)(?:  #.*)?$", text, re.MULTILINE)
    (second,) = re.findall(r"^ *(labels = label.repeat_interleave.*?)(?:  #.*)?$", text, re.MULTILINE)
    exec(f"{first}\n{second}", names)
    assert names["views"].flatten().tolist() == [0.5, 0.5, 1.5, 1.5, 2.5, 2.5]
    assert names["labels"].tolist() == [5, 5, 6, 6, 7, 7]


def test_a_wrong_order_that_a_device_recorded_is_reported_by_settle() -> None:
    objective = Objective(network(), SHAPE, budget=0.5, steps=5)
    before = objective.state_dict()
    objective.labels_differ.fill_(True)
    with pytest.raises(UserError, match="All views of an image must be next to each other"):
        objective.settle(torch.randn(20, *SHAPE))
    assert before == objective.state_dict()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_a_wrong_order_is_reported_by_settle_without_waiting_in_the_step() -> None:
    model = network().cuda()
    objective = Objective(model, SHAPE, budget=0.5, steps=5)
    got, labels = model(torch.randn(6, *SHAPE, device="cuda")), torch.arange(3, device="cuda")
    images = torch.randn(20, *SHAPE, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        objective(got, labels.repeat_interleave(2), views=2)
        torch.cuda.set_sync_debug_mode("default")
        objective.settle(images)
        torch.cuda.set_sync_debug_mode("error")
        objective(got, labels.repeat(2), views=2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    with pytest.raises(UserError, match="All views of an image must be next to each other"):
        objective.settle(images)


@pytest.mark.parametrize(
    ("images", "batch", "sentence"),
    [
        (torch.zeros(0, *SHAPE), 250, "images must be a tensor of floats, B×C×H×W and not empty"),
        (torch.full((2, *SHAPE), NAN), 250, "images must hold finite numbers"),
        (torch.zeros(2, 3, 8, 8), 250, "must have 1 channels"),
        (torch.zeros(2, *SHAPE), 0, "batch must be a whole number from 1 to"),
    ],
)
def test_images_that_tell_nothing_do_not_settle(images: torch.Tensor, batch: int, sentence: str) -> None:
    objective = Objective(network(), SHAPE, budget=0.5, steps=5)
    before = objective.state_dict()
    with pytest.raises(UserError, match=sentence):
        objective.settle(images, batch=batch)
    assert before == objective.state_dict()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"cost": torch.tensor(NAN)}, "cost of state must hold finite numbers"),
        ({"taken": torch.tensor(-1)}, "taken of state must be a whole number from 0 to 2147483647, got -1"),
        ({"taken": torch.tensor(1.5)}, "taken of state must be a whole number"),
        ({"taken": 3}, "taken of state must be a tensor"),
        ({"excess": torch.zeros(2)}, "excess of state must be a tensor"),
        ({"speed": torch.tensor(1.0)}, "state must hold taken, target, cost, integral, excess, got"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change: dict[str, Any], sentence: str) -> None:
    objective = Objective(network(), SHAPE, budget=0.5, steps=5)
    before = objective.state_dict()
    with pytest.raises(UserError, match=sentence):
        objective.load_state_dict({**before, **change})
    assert before == objective.state_dict()
