"""Every engine reproduces the network's output."""

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from codinet.adopt import make_dynamic
from codinet.bench.run_rate import settle, with_run_rate
from codinet.create import create_model, list_models
from codinet.engines.branch import BranchEngine
from codinet.engines.contract import Engine
from codinet.engines.gather import GatherEngine
from codinet.engines.reference import MaskedEngine, StaticEngine
from codinet.engines.switch import SwitchEngine
from codinet.model import RoutedNetwork
from codinet.relaxation import hard

Kind = Callable[..., Engine]
SKIPPING: list[Kind] = [BranchEngine, GatherEngine, SwitchEngine]
ENGINES: list[Kind] = [MaskedEngine, *SKIPPING]
# Minutes in Triton's interpreter; test_switch.py runs single blocks of them.
INTERPRETED = [] if torch.cuda.is_available() else [(SwitchEngine, "resnet50"), (SwitchEngine, "resnet101")]
Make = Callable[..., RoutedNetwork]
Same = Callable[..., None]


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("router", ["fc", "cnn", "rnn"])
@pytest.mark.parametrize("run_rate", [0.0, 0.5, 1.0])
def test_engine_equals_the_network(
    kind: Kind, router: str, run_rate: float, network: Make, images: torch.Tensor, assert_same: Same
) -> None:
    model = network(router=router, run_rate=run_rate)
    engine = kind(model)
    for batch in (images, images[:1], images[:5], images.to(memory_format=torch.channels_last), images[1:8:3]):
        with torch.no_grad():
            reference = model(batch)
        kept = batch.clone()
        assert_same(engine(batch), reference)
        assert torch.equal(batch, kept)  # engines work in place, but not in the caller's images
    if 0 < run_rate < 1:
        assert 0 < model(images).path_BN.mean() < 1


@pytest.mark.parametrize(
    ("kind", "arch"),
    [(kind, arch) for kind in SKIPPING for arch in list_models() if (kind, arch) not in INTERPRETED],
)
def test_every_network_of_the_registry(kind: Kind, arch: str, of_registry: Callable, assert_same: Same) -> None:
    model, images, reference = of_registry(arch)
    assert 0 < reference.path_BN.mean() < 1
    assert_same(kind(model)(images), reference)


@pytest.mark.parametrize("kind", ENGINES)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_path(kind: Kind, network: Make, images: torch.Tensor, assert_same: Same, data: st.DataObject):
    model = network()
    number = data.draw(st.integers(1, len(images)))
    blocks = len(model.blocks)
    rows = data.draw(st.lists(st.integers(0, 2**blocks - 1), min_size=number, max_size=number))
    path = torch.tensor([[row >> k & 1 for k in range(blocks)] for row in rows])
    with torch.no_grad():
        reference = model(images[:number], force=path)
    assert_same(kind(model)(images[:number], force=path), reference)


@pytest.mark.parametrize("kind", ENGINES)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(threshold=st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0.01, 0.99)))
def test_any_threshold(kind: Kind, network: Make, images: torch.Tensor, assert_same: Same, threshold: float):
    model = network()
    with torch.no_grad():
        reference = model(images, decide=partial(hard, threshold=threshold))
    assert_same(kind(model)(images, threshold=threshold), reference)
    assert_same(kind(model, threshold=threshold)(images), reference)


@pytest.mark.parametrize("kind", [MaskedEngine, BranchEngine, GatherEngine])
def test_a_static_network_runs_everything(kind: Kind, images: torch.Tensor, assert_same: Same) -> None:
    torch.manual_seed(2)
    model = settle(create_model("resnet20", routed=False), images)
    engine = kind(model)
    with torch.no_grad():
        assert_same(engine(images), model(images))
        path = torch.tensor([1, 0, 0, 0, 1, 1, 0, 0, 1])
        assert_same(engine(images, force=path), model(images, force=path))


def test_the_static_engine_runs_a_fixed_path(network: Make, images: torch.Tensor) -> None:
    model, path = network(), torch.tensor([1, 0, 1, 0, 1, 0, 0, 1, 1])
    for fixed in (None, path):
        with torch.no_grad():
            reference = model(images, force=torch.ones(9) if fixed is None else fixed)
        output = StaticEngine(model, path=fixed)(images)
        torch.testing.assert_close(output.logits_BK, reference.logits_BK, atol=1e-5, rtol=1e-5)
        assert torch.equal(output.path_BN, reference.path_BN)


class Foreign(nn.Module):
    """A network like torchvision's with layers between the convolutions that folding must keep."""

    class Block(nn.Module):
        def __init__(self, before: int, after: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1)
            self.bn1 = nn.BatchNorm2d(after)
            self.act = nn.SiLU()
            self.conv2 = nn.Conv2d(after, after, 3, padding=1, groups=2)
            changes = stride != 1 or before != after
            self.downsample = nn.Conv2d(before, after, 1, stride) if changes else None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            shortcut = x if self.downsample is None else self.downsample(x)
            return self.act(self.conv2(self.bn1(self.act(self.conv1(x)))) + shortcut)

    class Writing(Block):
        """Activates its input in place first, as pre-activation blocks do."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.relu_())

    def __init__(self, block: type[Block] = Block) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(2)
        self.layer1 = nn.Sequential(block(8, 8, 1), block(8, 8, 1))
        self.layer2 = nn.Sequential(block(8, 16, 2), block(16, 16, 1))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(16, 5)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("block", [Foreign.Block, Foreign.Writing])
def test_an_adopted_network(kind: Kind, block: type[Foreign.Block], images: torch.Tensor, assert_same: Same) -> None:
    torch.manual_seed(4)
    model = with_run_rate(settle(make_dynamic(Foreign(block)), images), images, 0.5)
    engine = kind(model)
    with torch.no_grad():
        for batch in (images, images[:1]):
            assert_same(engine(batch), model(batch))
        for path in ([0, 0, 0, 0], [0, 1, 1, 0], [1, 0, 0, 1]):
            force = torch.tensor(path)
            assert_same(engine(images, force=force), model(images, force=force))


@pytest.mark.parametrize("kind", SKIPPING)
def test_double_precision(kind: Kind, network: Make, images: torch.Tensor) -> None:
    model = copy.deepcopy(network()).double()
    with torch.no_grad():
        reference = model(images.double())
    output = kind(model)(images.double())
    assert torch.equal(output.path_BN, reference.path_BN)
    torch.testing.assert_close(output.logits_BK, reference.logits_BK)


@pytest.mark.parametrize("kind", SKIPPING)
def test_half_precision_is_near(kind: Kind, network: Make, images: torch.Tensor) -> None:
    model, path = network(), torch.tensor([1, 0, 1, 1, 0, 1, 0, 1, 1]).repeat(len(images), 1)
    path[::2] = 1 - path[::2]
    with torch.no_grad():
        reference = model(images, force=path).logits_BK
    half = copy.deepcopy(model).to(torch.bfloat16)
    output = kind(half)(images.to(torch.bfloat16), force=path)
    assert output.logits_BK.dtype == output.scores_BN2.dtype == torch.float32
    assert (output.logits_BK - reference).abs().max() < 0.05 * reference.abs().max()


@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_is_a_snapshot(kind: Kind, network: Make, images: torch.Tensor) -> None:
    model = copy.deepcopy(network())
    engine = kind(model)
    before = engine(images)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    after = engine(images)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
