"""What attacks on the Python API call: networks, engines, and functions around methods."""

import copy
import functools
import importlib.util
from typing import Any

import torch
from tests.attack.calls import BLOCKS, CLASSES, CPU, SHAPE, one_number
from torch import nn

from codinet import (
    CoDiNet,
    RoutedOutput,
    block_costs,
    create_model,
    make_dynamic,
)
from codinet.cost import CostTable as Table
from codinet.engines import BranchEngine, Engine, GatherEngine, MaskedEngine, StaticEngine
from codinet.evaluate import Evaluation, evaluate
from codinet.losses import Terms, total
from codinet.model import RoutedNetwork, train_only
from codinet.relaxation import gumbel, hard, run_probability
from codinet.routers import ROUTERS
from codinet.thresholds import find_threshold
from codinet.train import Objective
from codinet.train.averaging import Average
from codinet.train.budget import BudgetController
from codinet.train.stages import Stage

HAS_ONNX = all(importlib.util.find_spec(name) is not None for name in ("onnx", "onnxruntime"))


@functools.cache
def model() -> CoDiNet:
    """Six blocks, in evaluation mode; nothing changes it."""
    torch.manual_seed(0)
    made = create_model("resnet14", num_classes=CLASSES, in_channels=SHAPE[0]).eval()
    assert isinstance(made, CoDiNet)
    return made


@functools.cache
def table() -> Table:
    return block_costs(model(), SHAPE)


@functools.cache
def engines() -> dict[str, Engine]:
    made: list[Engine] = [MaskedEngine(model()), BranchEngine(model()), GatherEngine(model()), StaticEngine(model())]
    if HAS_ONNX:
        from codinet.engines.onnx import OnnxEngine

        made += [OnnxEngine.of(model(), SHAPE), OnnxEngine.of(model(), SHAPE, kind="static")]
    return {f"{place} {engine.name}": engine for place, engine in enumerate(made)}


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x)


class Small(nn.Module):
    """A network to adopt."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(SHAPE[0], 4, 3, padding=1), nn.Linear(4, CLASSES)
        self.blocks = nn.Sequential(Residual(4), Residual(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class SmallResNet(nn.Module):
    """The same under the names of a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(SHAPE[0], 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
        self.layer1 = nn.Sequential(Residual(4), Residual(4))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.avgpool(self.layer1(self.relu(self.bn1(self.conv1(x))))).flatten(1))


def images(number: int = 4) -> torch.Tensor:
    return torch.randn(number, *SHAPE)


def output(number: int = 4) -> RoutedOutput:
    scores = torch.randn(number, BLOCKS, 2)
    return RoutedOutput(torch.randn(number, CLASSES, requires_grad=True), scores, run_probability(scores))


@functools.cache
def _kept_objective() -> tuple[Objective, dict[str, torch.Tensor]]:
    made = Objective(model(), SHAPE, budget=0.6, steps=10)
    return made, made.state_dict()


def objective() -> Objective:
    """As new."""
    made, state = _kept_objective()
    made.load_state_dict(state)
    return made


def step(output: Any, labels: Any, views: Any) -> None:
    """The loss of a step; whatever it was, the controller stays usable."""
    made = objective()
    try:
        one_number(made(output, labels, views=views))
    finally:
        assert all(value.isfinite().all() for value in made.state_dict().values()), made.state_dict()


def restore(state: Any) -> float:
    made = objective()
    try:
        made.load_state_dict(state)
    finally:
        assert all(value.isfinite().all() for value in made.state_dict().values())
    return made.progress


def forward(decide: Any = hard, **words: Any) -> RoutedOutput:
    """Decisions by a function that returns something else, or by something that is not a function."""
    wrong = callable(decide) and decide not in (hard, gumbel)
    return model()(**words, decide=(lambda _scores: decide) if wrong else decide)


def control(budget: Any, steps: Any, progress: Any, batch_cost: Any, plain_cost: Any) -> torch.Tensor:
    controller = BudgetController(budget, steps=steps, device=CPU)
    controller.aim(progress)
    controller.observe(batch_cost)
    controller.settle([], plain_cost, lambda _threshold: 0.5, progress=1.0)
    return controller.gamma()


def shift(kind: str, widths: Any, amount: Any, k: Any, features: Any) -> torch.Tensor:
    routers = ROUTERS[kind](widths)
    routers.shift(amount)
    number = len(features) if isinstance(features, torch.Tensor) and features.ndim else 2
    return routers.router(k)(features, routers.start(torch.zeros(number, *SHAPE)))[0]


def gradients(routers: Any, backbone: Any) -> None:
    train_only(copy.deepcopy(model()), routers=routers, backbone=backbone)


def adopted(**words: Any) -> RoutedNetwork:
    return make_dynamic(Small(), **words)


def ask(name: str, **words: Any) -> RoutedOutput:
    images_BCHW = words.pop("images")
    return engines()[name](images_BCHW, **words)


def static_with(path: Any) -> Engine:
    return StaticEngine(model(), path=path)


def averaged(decay: Any) -> None:
    average = Average(model(), decay)
    average.update()
    assert all(value.isfinite().all() for value in average.state().values())


def stage(**words: Any) -> float:
    epoch = words.pop("epoch")
    return Stage(decide=hard, train_routers=True, path_losses=True, **words).lr_at(epoch)


def weigh(terms: Any, **weights: Any) -> torch.Tensor:
    return total(Terms(*terms) if isinstance(terms, list) and len(terms) == 4 else terms, **weights)


def measured(images: Any, labels: Any) -> Evaluation:
    """Labels of any dtype and shape; data sets give tensors where the network is."""
    labels = labels.cpu() if isinstance(labels, torch.Tensor) and not labels.is_meta else torch.zeros(4)
    return evaluate(model(), [(images, labels)], table())


def search(cost: Any, budget: Any, steps: Any) -> float:
    return find_threshold(lambda threshold: cost, budget, steps=steps)
