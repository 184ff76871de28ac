"""Attacks on the Python API: wrong types, shapes, dtypes, devices and numbers in every public function.

A `Call` is a function with valid arguments. An attempt changes one argument, or a few, and calls it. The function must
raise `UserError` or give an answer that `check` accepts. Arguments are made anew for every attempt; networks and
engines, which calls leave unchanged, are made once per process.
"""

import contextlib
import copy
import dataclasses
import decimal
import fractions
import functools
import importlib.util
import math
import pickle
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tests.attack.harness import Attack
from torch import nn

from codinet import (
    CoDiNet,
    CostTable,
    ModelConfig,
    RoutedOutput,
    block_costs,
    compile_engine,
    create_model,
    make_dynamic,
)
from codinet.backbones import Architecture, BasicBlock, Bottleneck, ResNet
from codinet.config import ExtraConfig, LossConfig, NetworkConfig, RunConfig, from_dict, to_dict
from codinet.cost import CostTable as Table
from codinet.engines import BranchEngine, Engine, GatherEngine, MaskedEngine, StaticEngine
from codinet.errors import UserError
from codinet.evaluate import Evaluation, evaluate
from codinet.losses import Terms, consistency, diversity, expected_cost, score_decay, total
from codinet.model import RoutedNetwork, train_only
from codinet.presets import PRESETS, as_static, as_vanilla
from codinet.relaxation import gumbel, hard, margin_limit, run_probability, straight_through
from codinet.resolving import resolve
from codinet.routers import ROUTERS
from codinet.thresholds import find_threshold, mean_cost, threshold_for
from codinet.train import Objective
from codinet.train.budget import BudgetController
from codinet.train.extras import Average, distillation
from codinet.train.stages import Stage, decay_scale, stages_of

CPU = torch.device("cpu")
NAN, INFINITY = math.nan, math.inf
SHAPE = 1, 8, 8
CLASSES, BLOCKS = 3, 6
HAS_ONNX = all(importlib.util.find_spec(name) is not None for name in ("onnx", "onnxruntime"))


class Call(NamedTuple):
    """A function of the product, valid arguments for it, and what its answer must be like."""

    function: Callable[..., Any]
    arguments: Callable[[], dict[str, Any]]
    check: Callable[[Any], None]


# --- bad arguments


def odd_values(rng: random.Random) -> Any:
    """A value that is wrong for most arguments."""
    return rng.choice(
        [
            *(None, True, False, "", "x", "0.5", b"1", [], (), {}, {"a": 1}, [1, "a"], object(), int, len),
            *(0, 1, -1, 2, 7, 65_537, -(2**40), 2**63, 10**30, 10**400, -(10**400), 10**5000),
            *(0.0, -0.0, 0.5, 1.0, -1.0, 1.5, 1e-300, 1e300, -1e300, NAN, INFINITY, -INFINITY),
            *(
                np.float32(0.5),
                np.float64(NAN),
                np.int64(3),
                np.float16(INFINITY),
                np.array([1.0, 2.0]),
                np.bool_(True),
            ),
            *(1 + 2j, decimal.Decimal("NaN"), fractions.Fraction(1, 3), range(3), slice(None), "line\nbreak", "\ud800"),
            *(torch.tensor(0.5), torch.tensor(NAN), torch.zeros(0), torch.zeros(2, 2), torch.zeros(3, device="meta")),
            *(
                torch.float16,
                torch.int64,
                torch.device("meta"),
                torch.Generator(),
                nn.Linear(2, 2),
                "cpu",
                "meta",
                "cuda:99",
            ),
        ]
    )


def bent(rng: random.Random, tensor: torch.Tensor) -> Any:
    """A tensor of another shape, dtype or device, or with other values; or no tensor."""
    with torch.no_grad():
        return rng.choice(_BENDS)(rng, tensor.detach().clone())


def _spoilt(value: float) -> Callable[[random.Random, torch.Tensor], Any]:
    def spoil(rng: random.Random, tensor: torch.Tensor) -> Any:
        if tensor.numel():
            with contextlib.suppress(RuntimeError):  # a value that the dtype cannot hold
                tensor.view(-1)[rng.randrange(tensor.numel())] = value
        return tensor

    return spoil


def _resized(rng: random.Random, tensor: torch.Tensor) -> Any:
    if tensor.ndim == 0:
        return tensor.expand(rng.randint(1, 3))
    axis = rng.randrange(tensor.ndim)
    size = rng.choice([0, 1, 2, tensor.shape[axis] + 1, tensor.shape[axis] * 2])
    return tensor.index_select(axis, torch.arange(size) % max(tensor.shape[axis], 1))


_DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.uint8,
    torch.int8,
    torch.bool,
    torch.complex64,
]
_BENDS: list[Callable[[random.Random, torch.Tensor], Any]] = [
    *(_spoilt(value) for value in (NAN, INFINITY, -INFINITY, 0.0, -1.0, 2.0, 0.5, 1e30, -100, 2**40)),
    *(_resized,) * 6,
    *(lambda rng, t: t.to(rng.choice(_DTYPES)),) * 3,
    lambda rng, t: t.to("meta"),
    lambda rng, t: t[None],
    lambda rng, t: t[0] if t.ndim and len(t) else t,
    lambda rng, t: t.flatten(),
    lambda rng, t: t.mT if t.ndim > 1 else t[None],
    lambda rng, t: t.tolist(),
    lambda rng, t: t.numpy(),
    lambda rng, t: t.float().requires_grad_(),
    lambda rng, t: nn.Parameter(t.float()),
    lambda rng, t: torch.zeros(tuple(rng.randint(0, 3) for _ in range(rng.randint(0, 5)))),
    lambda rng, t: odd_values(rng),
]


def changed(rng: random.Random, value: Any) -> Any:
    """Another value in the place of a valid one."""
    if isinstance(value, torch.Tensor) and rng.random() < 0.9:
        return bent(rng, value)
    if isinstance(value, RoutedOutput) and rng.random() < 0.8:
        field = rng.choice(RoutedOutput._fields)
        return value._replace(**{field: changed(rng, getattr(value, field))})
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and rng.random() < 0.8:
        field = rng.choice([entry.name for entry in dataclasses.fields(value)])
        return dataclasses.replace(value, **{field: changed(rng, getattr(value, field))})
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        rest = {name: entry for name, entry in value.items() if name != key}
        return rng.choice([rest, {**value, rng.choice(["new", 7, None]): 1}, {**value, key: changed(rng, value[key])}])
    if type(value) in (list, tuple) and value and rng.random() < 0.8:
        items: list[Any] = list(value)
        place = rng.randrange(len(items))
        items[place] = changed(rng, items[place])
        return rng.choice([type(value)(items), type(value)(items[:place]), type(value)([*items, items[0]]), items])
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.4:
        return value + rng.choice([-1, 1, -value, -2 * value, 10**9])
    if isinstance(value, float) and rng.random() < 0.4:
        return value * rng.choice([-1.0, 0.0, 2.0, 1e-9, 1e9])
    if isinstance(value, str) and rng.random() < 0.5:
        return rng.choice([value.upper(), value[:-1], value + "x", f"{value}\n", "fc", "1x1", "zz", "resnet14"])
    return odd_values(rng)


def tried(calls: Sequence[Call]) -> Callable[[random.Random, Path], None]:
    """An attempt: one of the calls, with one argument changed, or now and then several or none."""

    def attempt(rng: random.Random, _folder: Path) -> None:
        torch.manual_seed(rng.getrandbits(32))
        call = rng.choice(calls)
        arguments = call.arguments()
        if rng.random() < 0.02:
            try:
                return call.check(call.function(**arguments))
            except UserError as error:
                raise AssertionError(f"valid arguments are refused: {error}") from error
        for name in rng.sample(sorted(arguments), min(len(arguments), rng.choice([1, 1, 1, 2, 3]))):
            arguments[name] = changed(rng, arguments[name])
        return call.check(call.function(**arguments))

    return attempt


# --- right answers


def anything(_answer: Any) -> None:
    """Nothing is computed that could be wrong."""


def decisions(answer: torch.Tensor) -> None:
    """0 to 1; NaN where the scores were."""
    assert isinstance(answer, torch.Tensor)
    assert answer.is_meta or bool((((answer >= 0) & (answer <= 1)) | answer.isnan()).all())


def hard_decisions(answer: torch.Tensor) -> None:
    assert isinstance(answer, torch.Tensor)
    assert answer.is_meta or bool(((answer == 0) | (answer == 1)).all())


def one_number(answer: torch.Tensor) -> None:
    """A scalar tensor; NaN or infinite only where the input was, which losses do not read."""
    assert isinstance(answer, torch.Tensor)
    assert answer.shape == ()


def routed(answer: RoutedOutput) -> None:
    """A whole answer for every image, with a path of decisions."""
    assert isinstance(answer, RoutedOutput)
    number = len(answer.logits_BK)
    assert answer.logits_BK.shape == (number, CLASSES)
    assert answer.scores_BN2.shape == (number, BLOCKS, 2)
    assert answer.path_BN.shape == (number, BLOCKS)
    decisions(answer.path_BN)


def finite(answer: Any) -> None:
    assert math.isfinite(answer)


def threshold_found(answer: float) -> None:
    assert 0 < answer < 1


def network(answer: Any) -> None:
    assert isinstance(answer, nn.Module)


def table_made(answer: CostTable) -> None:
    assert answer.static_macs > 0
    assert all(run >= skip >= 0 for run, skip in zip(answer.run_N, answer.skip_N, strict=True))


def costs(answer: torch.Tensor) -> None:
    assert answer.dtype == torch.float64
    assert answer.ndim == 1


def config_resolved(answer: RunConfig) -> None:
    """What is resolved can be written, read and turned into stages."""
    assert from_dict(to_dict(answer)) == answer
    for stage in stages_of(answer):
        assert stage.lr_at(0) >= 0
        assert math.isfinite(stage.lr_at(stage.epochs))


def engine_made(answer: Engine) -> None:
    """It answers, and cannot be copied."""
    device = answer.spec.device or CPU
    routed(answer(torch.zeros(1, *SHAPE, dtype=answer.spec.dtype or torch.float32, device=device)))
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        try:
            duplicate(answer)
        except UserError:
            continue
        raise AssertionError("an engine was copied")


def evaluated(answer: Evaluation) -> None:
    assert 0 <= answer.accuracy <= 100
    assert answer.n >= 1
    assert math.isfinite(answer.macs)


# --- what calls are made with


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


SCORES = Call(hard, lambda: {"scores_B2": torch.randn(5, 2), "threshold": 0.5}, hard_decisions)
NOISED = {"scores_B2": 0, "tau": 1.0, "generator": None}

PURE = [
    SCORES,
    Call(hard, lambda: {"scores_B2": torch.randn(2, 3, 2)}, hard_decisions),
    Call(margin_limit, lambda: {"threshold": 0.3}, anything),
    Call(run_probability, lambda: {"scores": torch.randn(4, 2)}, decisions),
    Call(gumbel, lambda: {**NOISED, "scores_B2": torch.randn(5, 2), "generator": torch.Generator()}, decisions),
    Call(straight_through, lambda: {**NOISED, "scores_B2": torch.randn(5, 2)}, decisions),
    Call(consistency, lambda: {"paths_LMN": torch.rand(3, 2, 4), "margin": 0.2}, one_number),
    Call(diversity, lambda: {"paths_LMN": torch.rand(3, 2, 4), "margin": 0.5}, one_number),
    Call(expected_cost, lambda: {"paths_BN": torch.rand(3, 4), "costs_N": torch.rand(4)}, one_number),
    Call(score_decay, lambda: {"scores_BN2": torch.randn(3, 4, 2)}, one_number),
    Call(weigh, lambda: {"terms": list(torch.rand(4)), "alpha": 1.0, "beta": 1, "gamma": torch.rand(())}, one_number),
    Call(
        distillation,
        lambda: {"logits_BK": torch.randn(3, 4), "teacher_BK": torch.randn(3, 4), "temperature": 4.0},
        one_number,
    ),
]

NETWORKS = [
    Call(
        create_model,
        lambda: {
            **{"name": "resnet14", "num_classes": 3, "routed": True, "router": "fc", "in_channels": 1},
            **{"stride_on": "3x3", "pretrained": None, "widths": (3, 16, 5, 32, 7, 64)},
        },
        network,
    ),
    Call(CoDiNet, lambda: {"config": ModelConfig("resnet14", num_classes=2)}, network),
    Call(BasicBlock, lambda: {"in_channels": 4, "width": 8, "stride": 2, "stride_on": "3x3", "inner": 3}, network),
    Call(Bottleneck, lambda: {"in_channels": 4, "width": 2, "stride": 2, "stride_on": "1x1"}, network),
    Call(
        ResNet,
        lambda: {
            "shape": Architecture(BasicBlock, (1, 1), (4, 8), image_size=8, paper_unit=1),
            **{"num_classes": 3, "in_channels": 1, "stride_on": "3x3", "widths": (3, 5)},
        },
        network,
    ),
    *(
        Call(
            functools.partial(shift, kind),
            lambda: {"widths": [4, 6], "amount": 0.5, "k": 1, "features": torch.randn(2, 6, 3, 3)},
            anything,
        )
        for kind in ROUTERS
    ),
    Call(gradients, lambda: {"routers": True, "backbone": False}, anything),
]

FORWARD = [
    Call(forward, lambda: {"images_BCHW": images(), "decide": hard}, routed),
    Call(forward, lambda: {"images_BCHW": images(), "force": torch.ones(BLOCKS)}, routed),
    Call(
        forward,
        lambda: {"images_BCHW": images(2), "force": torch.randint(0, 2, (2, BLOCKS)), "decide": gumbel},
        routed,
    ),
]

COSTS = [
    Call(block_costs, lambda: {"model": model(), "image_shape": SHAPE}, table_made),
    Call(
        CostTable,
        lambda: {
            **{"run_N": (5, 6), "skip_N": (0, 1), "router_N": (1, 1), "fixed": 3},
            **{"image_shape": SHAPE, "paper_unit": 2},
        },
        table_made,
    ),
    Call(lambda path: table().path_macs(path), lambda: {"path": torch.rand(3, BLOCKS)}, costs),
    Call(lambda path: table().share(path), lambda: {"path": torch.randint(0, 2, (3, BLOCKS))}, costs),
    Call(lambda macs: table().paper_gmaccs(macs), lambda: {"macs": 1e9}, finite),
]

THRESHOLDS = [
    Call(
        threshold_for, lambda: {"model": model(), "images_BCHW": images(), "budget": 0.6, "batch": 2}, threshold_found
    ),
    Call(
        mean_cost,
        lambda: {"model": model(), "table": table(), "images_BCHW": images(), "threshold": 0.5, "batch": 3},
        finite,
    ),
    Call(search, lambda: {"cost": 0.7, "budget": 0.5, "steps": 5}, threshold_found),
    Call(measured, lambda: {"images": images(), "labels": torch.tensor([0, 1, 2, 0])}, evaluated),
]

TRAINING = [
    Call(
        Objective,
        lambda: {
            **{"model": model(), "image_shape": SHAPE, "budget": 0.6, "steps": 10},
            **{"losses": LossConfig(alpha=0.5), "label_smoothing": 0.1, "tau": 1.0},
        },
        anything,
    ),
    Call(step, lambda: {"output": output(), "labels": torch.tensor([0, 0, 2, 2]), "views": 2}, anything),
    Call(lambda **words: objective().settle(**words), lambda: {"images_BCHW": images(), "batch": 3}, finite),
    Call(restore, lambda: {"state": objective().state_dict()}, finite),
    Call(
        control,
        lambda: {
            **{"budget": 0.6, "steps": 100, "progress": 0.5, "batch_cost": torch.tensor(0.7), "plain_cost": 0.8},
        },
        one_number,
    ),
    Call(averaged, lambda: {"decay": 0.9}, anything),
    Call(
        stage,
        lambda: {
            **{"name": "joint", "epochs": 5, "lr": 0.1, "schedule": "multistep", "warmup": 1.0},
            **{"milestones": (0.5, 0.8), "epoch": 2.5},
        },
        finite,
    ),
    Call(decay_scale, lambda: {"done": 0.7}, finite),
]

CONFIGS = [
    Call(resolve, lambda: {"config": RunConfig("digits"), "gpu": False}, config_resolved),
    Call(
        resolve,
        lambda: {"config": dataclasses.replace(PRESETS["quick"]("digits"), extra=ExtraConfig(teacher="t", ema=0.9))},
        config_resolved,
    ),
    Call(resolve, lambda: {"config": RunConfig("digits", network=NetworkConfig(arch="resnet50"))}, config_resolved),
    Call(
        resolve,
        lambda: {"config": RunConfig("digits", network=NetworkConfig("resnet14", widths=(3, 16, 5, 32, 7, 64)))},
        config_resolved,
    ),
    Call(lambda values: resolve(from_dict(values)), lambda: {"values": to_dict(RunConfig("digits"))}, config_resolved),
    Call(lambda config: resolve(as_static(config)), lambda: {"config": RunConfig("digits")}, config_resolved),
    Call(lambda config: resolve(as_vanilla(config)), lambda: {"config": RunConfig("digits")}, config_resolved),
]

ADOPTING = [
    Call(adopted, lambda: {"blocks": Residual, "router": "fc", "image_shape": SHAPE}, network),
    Call(adopted, lambda: {"blocks": ["blocks.0", "blocks.1"], "image_shape": (1, 8, 12)}, network),
    Call(make_dynamic, lambda: {"module": Small(), "blocks": "blocks.*", "image_shape": SHAPE}, network),
    Call(make_dynamic, lambda: {"module": SmallResNet(), "router": "rnn"}, network),
]

MAKING = [
    *(Call(kind, lambda: {"model": model(), "threshold": 0.5}, engine_made) for kind in (MaskedEngine, BranchEngine)),
    Call(GatherEngine, lambda: {"model": model(), "threshold": 0.5}, engine_made),
    Call(static_with, lambda: {"path": torch.ones(BLOCKS)}, engine_made),
]


def asking() -> list[Call]:
    """A call of every engine, with a path where it takes one."""
    return [
        Call(functools.partial(ask, name), asked_freely if engine.spec.blocks is None else asked_by_force, routed)
        for name, engine in engines().items()
    ]


def asked_freely() -> dict[str, Any]:
    return {"images": images(), "threshold": 0.5}


def asked_by_force() -> dict[str, Any]:
    return {**asked_freely(), "force": torch.ones(BLOCKS)}


def ask_engines(rng: random.Random, folder: Path) -> None:
    tried(asking())(rng, folder)


def compile_engines(rng: random.Random, folder: Path) -> None:
    call = Call(
        compile_engine,
        lambda: {
            **{"model": model(), "device": "cpu", "batch": 2, "threshold": 0.5, "images": images(2)},
            **{"image_shape": None, "dtype": torch.float32},
        },
        engine_made,
    )
    tried([call])(rng, folder)


def export_networks(rng: random.Random, folder: Path) -> None:
    if not HAS_ONNX:
        return
    from codinet.engines.onnx import ExportInfo, export

    call = Call(
        export,
        lambda: {
            **{"model": model(), "out": folder / "m.onnx", "data": ExportInfo(("a", "b", "c"), (1.0,), (2.0,), SHAPE)},
            **{"kind": "static", "path": [1] * BLOCKS, "threshold": 0.5, "opset": 17, "images_BCHW": images(1)},
        },
        finite,
    )
    tried([call])(rng, folder)


ATTACKS: list[Attack] = [
    Attack("api: relaxations and losses", tried(PURE), quick=300, weight=3.0),
    Attack("api: networks, blocks and routers", tried(NETWORKS), quick=60, weight=2.0),
    Attack("api: forward passes", tried(FORWARD), quick=60, weight=2.0),
    Attack("api: cost tables", tried(COSTS), quick=60, weight=2.0),
    Attack("api: thresholds and evaluations", tried(THRESHOLDS), quick=40),
    Attack("api: objectives, controllers and stages", tried(TRAINING), quick=60, weight=2.0),
    Attack("api: configs", tried(CONFIGS), quick=200, weight=2.0),
    Attack("api: adopted networks", tried(ADOPTING), quick=30, weight=0.5),
    Attack("api: making engines", tried(MAKING), quick=40, weight=0.5),
    Attack("api: asking engines", ask_engines, quick=100, weight=2.0),
    Attack("api: compiling engines", compile_engines, quick=8, weight=0.1),
    Attack("api: exports", export_networks, quick=8, weight=0.1),
]
