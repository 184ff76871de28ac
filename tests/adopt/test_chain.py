"""Routing over a network that is not a ResNet and whose blocks are named."""

import copy
import pickle
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.adopt.chains import (
    CHOICES,
    SHAPE,
    Chain,
    ChannelsLast,
    InPlace,
    Masked,
    Mix,
    Residual,
    Tokens,
    images,
    made,
)
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from codinet import UserError, block_costs, make_dynamic
from codinet.adopt.families import family_pattern
from codinet.engines import BranchEngine, GatherEngine
from codinet.model import RoutedNetwork, train_only
from codinet.relaxation import gumbel, hard


def by_hand(module: Chain, x: torch.Tensor, path: list[int]) -> torch.Tensor:
    """What is left of the module's forward when blocks 0, 1 and 3 run as the path says; 2 cannot be skipped."""
    runs = [*path[:2], 1, path[2]]
    x = module.stem(x)
    for k, block in enumerate(module.blocks):
        x = x.relu() * module.scale if k == 1 else x
        x = block(x.clone()) if runs[k] else x
    return module.head(x.mean((2, 3)))


@pytest.mark.parametrize("blocks", CHOICES)
def test_blocks_are_chosen_by_class_and_by_name(blocks: Any) -> None:
    network = make_dynamic(made(), blocks=blocks, image_shape=SHAPE)
    assert [block.name for block in network.blocks] == ["blocks.0", "blocks.1", "blocks.3"]
    assert [block.in_channels for block in network.blocks] == [8, 8, 8]
    assert network.image_shape == SHAPE


@settings(deadline=None, derandomize=True, max_examples=20)
@given(st.lists(st.integers(0, 1), min_size=3, max_size=3), st.sampled_from([Residual, InPlace]))
def test_operations_between_blocks_always_run(path: list[int], block: type[Residual]) -> None:
    module = made(block)
    network, x = make_dynamic(module, blocks=Residual), images()
    with torch.no_grad():
        got = network(x, force=torch.tensor(path)).logits_BK
        torch.testing.assert_close(got, by_hand(module, x, path))
        if all(path):
            assert torch.equal(got, module(x))


def test_parameters_are_shared_and_the_module_is_unchanged() -> None:
    module = made()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    modes = [part.training for part in module.modules()]
    network = make_dynamic(module, blocks=Residual)
    own = dict(network.named_parameters())
    assert all(own[f"module.{name}"] is value for name, value in module.named_parameters())
    assert all("routers" in name for name in own if not name.startswith("module."))
    assert [part.training for part in module.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_network_on_the_meta_device_can_be_routed() -> None:
    with torch.device("meta"):
        network = make_dynamic(Chain(), blocks=Residual)
    assert len(network.blocks) == 3


def test_costs_are_the_modules_own() -> None:
    module = made()
    table = block_costs(make_dynamic(module, blocks=Residual), SHAPE)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(images(1))
    assert table.static_macs == counter.get_total_flops() // 2
    # By hand: a 3×3 convolution of 8 channels on 12×12; what grows to 12 channels on 6×6 is never skipped.
    assert table.added_N == (12 * 12 * 8 * 8 * 9, 12 * 12 * 8 * 8 * 9, 6 * 6 * 12 * 12 * 9)
    assert table.skip_N == (0, 0, 6 * 6 * 8 * 12 * 9)


@pytest.mark.parametrize("block", [Residual, InPlace])
def test_a_training_step_sees_each_batch_once_and_drops_out(block: type[Residual]) -> None:
    one, other = made(block).train(), made(block).train()
    network = make_dynamic(one, blocks=Residual)
    assert network.training
    for forward in (lambda x: network(x, force=torch.ones(3)).logits_BK, other):
        torch.manual_seed(2)  # of the dropout
        forward(images(8)).sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(one.buffers(), other.buffers(), strict=True))
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    torch.manual_seed(2)
    in_training = network(images(8), force=torch.ones(3)).logits_BK
    assert not torch.equal(in_training, network.eval()(images(8), force=torch.ones(3)).logits_BK)


def test_routers_can_be_trained_alone() -> None:
    network = make_dynamic(made(), blocks=Residual)
    train_only(network, routers=True, backbone=False)
    network.train()(images(), decide=gumbel).logits_BK.sum().backward()
    with_gradient = [name for name, parameter in network.named_parameters() if parameter.grad is not None]
    assert with_gradient
    assert all("routers" in name for name in with_gradient)


def test_copies_are_independent() -> None:
    network, x = make_dynamic(made(), blocks=Residual), images()
    with torch.no_grad():
        wished = network(x).logits_BK
        copies = [copy.deepcopy(network), pickle.loads(pickle.dumps(network))]
        for parameter in network.parameters():
            parameter.zero_()
        for other in copies:
            assert torch.equal(other(x).logits_BK, wished)
        assert copies[0].double()(x.double()).logits_BK.dtype == torch.float32


@pytest.mark.parametrize("block", [Residual, InPlace])
@pytest.mark.parametrize("engine", [BranchEngine, GatherEngine])
def test_engines_skip_its_blocks(block: type[Residual], engine: Any) -> None:
    network, x = make_dynamic(made(block), blocks=Residual), images(6)
    force = torch.tensor([[0, 1, 0], [1, 1, 1], [0, 0, 0], [1, 0, 1], [0, 1, 1], [1, 1, 0]]).float()
    with torch.no_grad():
        wished = network(x, force=force)
    got = engine(network)(x, force=force)
    torch.testing.assert_close(got.logits_BK, wished.logits_BK, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.scores_BN2, wished.scores_BN2, rtol=1e-5, atol=1e-5)


class HeadFirst(Chain):
    """A head that is defined before the blocks, which have linear layers."""

    def __init__(self) -> None:
        super().__init__()
        blocks = self.blocks
        del self.blocks
        self.head, self.blocks = nn.Conv2d(12, 5, 1), blocks  # type: ignore[assignment]
        self.blocks[3].extra = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3), keepdim=True)).flatten(1)


def test_the_classifier_is_the_last_layer_that_the_forward_calls() -> None:
    assert make_dynamic(made(), blocks=Residual, image_shape=SHAPE).classifier == "module.head"
    network = make_dynamic(HeadFirst(), blocks=Residual, image_shape=SHAPE)
    assert network.classifier == "module.head"
    assert isinstance(network.get_submodule(network.classifier), nn.Conv2d)


# --- features that are no maps


@pytest.mark.parametrize("kind", [Tokens, ChannelsLast, Masked])
@pytest.mark.parametrize("engine", [BranchEngine, GatherEngine])
def test_any_layout_of_features_can_be_routed(kind: type[Tokens], engine: Any) -> None:
    torch.manual_seed(0)
    module, x = kind().eval(), images(4)
    network = make_dynamic(module, blocks="blocks.*")
    assert [block.in_channels for block in network.blocks] == [8, 8, 8]
    assert block_costs(network, SHAPE).added_N[0] == 8 * 8 * (10 if kind is Tokens else 9)  # places of 3×3, a token
    routers, force = engine(network), torch.tensor([[1, 1, 1], [0, 1, 0], [1, 0, 1], [0, 0, 0]]).float()
    with torch.no_grad():
        for path in force:
            skipping = copy.deepcopy(module)
            for block, runs in zip(skipping.blocks, path.tolist(), strict=True):
                if not runs:
                    block.forward = lambda x, *_: x
            torch.testing.assert_close(network(x, force=path).logits_BK, skipping(x))
        wished = network(x, force=force)
    got = routers(x, force=force)
    torch.testing.assert_close(got.logits_BK, wished.logits_BK, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.scores_BN2, wished.scores_BN2, rtol=1e-5, atol=1e-5)
    network.train()(x, decide=gumbel).logits_BK.sum().backward()
    learnt = [name for name, parameter in network.named_parameters() if parameter.grad is not None]
    assert {name for name in network.state_dict() if "routers" in name} <= set(learnt)


def test_routers_see_the_mean_over_all_tokens() -> None:
    torch.manual_seed(0)
    module, x = Tokens().eval(), images()
    network = make_dynamic(module, blocks="blocks.*")
    assert network.routers is not None
    with torch.no_grad():
        tokens = torch.cat([module.first.expand(2, -1, -1), module.stem(x).flatten(2).mT], dim=1)
        router: Any = network.routers.router(0)
        wished = router.out(router.hidden(tokens.mean(1)).relu())
        torch.testing.assert_close(network(x).scores_BN2[:, 0], wished)


class Wide(nn.Module):
    """Features of B×H×W×8, or B×8×H×W: blocks of one kind or the other."""

    def __init__(self, block: Callable[[int], nn.Module], *, last: bool) -> None:
        super().__init__()
        self.last, self.stem, self.head = last, nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 5)
        self.blocks = nn.Sequential(*(block(8) for _ in range(2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = self.blocks(x.permute(0, 2, 3, 1) if self.last else x)
        return self.head(x.mean((1, 2)) if self.last else x.mean((2, 3)))


class Normed(Mix):
    """Normalises its input first, as transformers do."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x + self.layer(self.norm(x))


class Own(nn.Module):
    """Multiplies by a matrix of its own: no layer says where the channels are."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.matrix, self.never = nn.Parameter(torch.eye(width)), nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x @ self.matrix


# 8×8 places of 8 channels, then twice as wide, then fewer.
@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 32, 64), (3, 64, 32), (3, 16, 32), (3, 12, 32)])
@pytest.mark.parametrize(("block", "last"), [(Mix, True), (Normed, True), (Residual, False)])
def test_routers_have_the_width_of_the_channels_for_any_image_shape(
    shape: tuple[int, int, int], block: Callable[[int], nn.Module], last: bool
) -> None:
    torch.manual_seed(0)
    module = Wide(block, last=last).eval()
    network, x = make_dynamic(module, blocks="blocks.*", image_shape=shape), torch.randn(2, *shape)
    assert [adopted.in_channels for adopted in network.blocks] == [8, 8]
    assert network.routers is not None
    router: Any = network.routers.router(0)
    with torch.no_grad():
        output = network(x, force=torch.ones(2))
        torch.testing.assert_close(output.logits_BK, module(x))
        pooled = module.stem(x).mean((2, 3))
        torch.testing.assert_close(output.scores_BN2[:, 0], router.out(router.hidden(pooled).relu()))


def test_square_images_determine_the_channels_without_a_known_layer() -> None:
    module = Wide(Own, last=True).eval()
    network = make_dynamic(module, blocks=Own, image_shape=(3, 64, 64))
    assert [adopted.in_channels for adopted in network.blocks] == [8, 8]
    for shape in ((3, 32, 32), (3, 32, 64)):  # 8×8×8, and no square
        with pytest.raises(UserError, match=r"Cannot tell which axis of the features of blocks\.0 holds the channels"):
            make_dynamic(module, blocks=Own, image_shape=shape)


# --- the real ones, where they are installed


def assert_routes(module: nn.Module, blocks: str, number: int, size: int = 64) -> None:
    assert family_pattern(module) == blocks
    network: RoutedNetwork = make_dynamic(module.eval())
    x = torch.randn(2, 3, size, size)
    assert len(network.blocks) == number
    with torch.no_grad():
        assert torch.equal(network(x, force=torch.ones(number)).logits_BK, module(x))
        wished = network(x, force=torch.zeros(number), decide=hard).logits_BK
    torch.testing.assert_close(BranchEngine(network)(x, force=torch.zeros(number)).logits_BK, wished)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:  # on shapes: on a CPU it does not see attention
        copy.deepcopy(module).to("meta")(x[:1].to("meta"))
    assert block_costs(network, (3, size, size)).static_macs == counter.get_total_flops() // 2
    network.train()(x, decide=gumbel).logits_BK.sum().backward()
    assert all(parameter.grad is not None for name, parameter in network.named_parameters() if "router" in name)


@pytest.mark.parametrize("library", ["torchvision.models"], indirect=True)
@pytest.mark.parametrize(
    ("name", "blocks", "number"),
    [
        ("mobilenet_v2", "features.*", 10),
        ("efficientnet_b0", "features.*.*", 9),
        ("convnext_tiny", "features.[1357].*", 18),
        ("regnet_y_400mf", "trunk_output.*.*", 12),
        ("swin_t", "features.[1357].*", 12),
    ],
)
def test_torchvisions_own_networks_can_be_routed(library: ModuleType, name: str, blocks: str, number: int) -> None:
    torch.manual_seed(0)
    assert_routes(getattr(library, name)(num_classes=5), blocks, number)


@pytest.mark.parametrize("library", ["timm"], indirect=True)
@pytest.mark.parametrize(
    ("name", "blocks", "number"),
    [
        ("convnext_atto", "stages.*.blocks.*", 12),
        ("efficientnet_lite0", "blocks.*.*", 9),
        ("mobilenetv3_small_050", "blocks.*.*", 7),
        ("regnetx_002", "s[1-9].b*", 9),
        ("eca_nfnet_l0", "stages.*.*", 8),
    ],
)
def test_timms_own_networks_can_be_routed(library: ModuleType, name: str, blocks: str, number: int) -> None:
    torch.manual_seed(0)
    assert_routes(library.create_model(name, num_classes=5, drop_rate=0.2), blocks, number)


@pytest.mark.parametrize("library", ["timm"], indirect=True)
def test_a_vision_transformer_can_be_routed(library: ModuleType) -> None:
    torch.manual_seed(0)
    assert_routes(library.create_model("vit_tiny_patch16_224", num_classes=5), "blocks.*", 12, size=224)
