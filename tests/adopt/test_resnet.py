"""Routing over a ResNet of another library."""

import copy
import pickle
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.adopt.resnet_styles import STYLES, Basic, Bottle, TimmStyle, TorchvisionStyle
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from codinet import UserError, block_costs
from codinet.adopt import make_dynamic
from codinet.model import RoutedNetwork, routed_step, train_only
from codinet.relaxation import gumbel, hard
from codinet.routers import ROUTERS


@pytest.fixture(params=STYLES)
def module(request: pytest.FixtureRequest) -> nn.Module:
    """A network in evaluation mode whose BatchNorms have seen something."""
    torch.manual_seed(0)
    module = STYLES[request.param]().train()
    module(images(module, batch=8))
    return module.eval()


def images(module: nn.Module, batch: int = 2, size: int = 40) -> torch.Tensor:
    convolution = next(part for part in module.modules() if isinstance(part, nn.Conv2d))
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, convolution.in_channels, size, size, generator=generator)


def run_all(network: RoutedNetwork, x_BCHW: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return network(x_BCHW, force=torch.ones(len(network.blocks))).logits_BK


def macs(module: nn.Module, x_BCHW: torch.Tensor) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(x_BCHW)
    return counter.get_total_flops() // 2


def assert_routes(module: nn.Module, x_BCHW: torch.Tensor) -> None:
    """What must hold of any network that `make_dynamic` takes."""
    module.eval()
    network = make_dynamic(module)
    with torch.no_grad():
        assert torch.equal(run_all(network, x_BCHW), module(x_BCHW))
    assert [name for name in network.state_dict() if "router" not in name] == list(module.state_dict())
    channels, height, width = x_BCHW.shape[1:]
    table = block_costs(network, (channels, height, width))
    assert table.static_macs == macs(module, x_BCHW[:1])
    network.train()(x_BCHW, decide=gumbel).logits_BK.sum().backward()
    assert all(parameter.grad is not None for name, parameter in network.named_parameters() if "router" in name)


# --- the network stays itself


def test_a_network_of_any_style_can_be_routed(module: nn.Module) -> None:
    assert_routes(module, images(module))


def test_parameters_are_shared_and_keep_their_names(module: nn.Module) -> None:
    network = make_dynamic(module)
    ours, theirs = dict(network.named_parameters()), dict(module.named_parameters())
    assert {name for name in ours if not name.startswith("routers.")} == set(theirs)
    assert all(ours[name] is parameter for name, parameter in theirs.items())
    assert any(name.startswith("routers.") for name in ours)
    assert {name for name in network.state_dict() if not name.startswith("routers.")} == set(module.state_dict())


def test_the_module_is_unchanged(module: nn.Module) -> None:
    names, x_BCHW = list(module.state_dict()), images(module)
    with torch.no_grad():
        before = module(x_BCHW)
        run_all(make_dynamic(module), x_BCHW)
        assert torch.equal(module(x_BCHW), before)
    assert list(module.state_dict()) == names


def test_skipping_leaves_the_downsample_or_the_input(module: nn.Module) -> None:
    network, x_BCHW = make_dynamic(module), images(module)
    with torch.no_grad():
        features = network.stem(x_BCHW)
        for name, part in module.named_modules():
            if isinstance(part, Basic | Bottle):
                features = features if part.downsample is None else part.downsample(features)
                assert name.startswith("layer")
        expected = network.head(features)
        skipped = network(x_BCHW, force=torch.zeros(len(network.blocks)))
    assert torch.equal(skipped.logits_BK, expected)


@settings(deadline=None, derandomize=True, max_examples=8)
@given(path=st.lists(st.integers(0, 1), min_size=6, max_size=6), size=st.integers(17, 50))
def test_a_path_runs_the_original_blocks_it_names(path: list[int], size: int) -> None:
    torch.manual_seed(0)
    module = TorchvisionStyle(Basic).eval()
    network, x_BCHW = make_dynamic(module), images(module, size=size)
    blocks = [part for part in module.modules() if isinstance(part, Basic)]
    with torch.no_grad():
        features = network.stem(x_BCHW)
        for block, runs in zip(blocks, path, strict=True):
            skip = nn.Identity() if block.downsample is None else block.downsample
            features = block(features) if runs else skip(features)
        torch.testing.assert_close(network(x_BCHW, force=torch.tensor(path)).logits_BK, network.head(features))


@pytest.mark.parametrize("router", ROUTERS)
def test_every_router_kind_fits_and_starts_open(router: str) -> None:
    network = make_dynamic(TorchvisionStyle(Bottle).eval(), router=router)
    assert [block.in_channels for block in network.blocks] == [8, 32, 32, 64, 128, 128]
    x_BCHW = torch.zeros(2, 3, 40, 40)
    with torch.no_grad():
        output = network(x_BCHW)
    assert output.path_BN.shape == (2, 6)
    assert output.path_BN.all()


# --- it is a module like any other


def test_routers_have_the_width_of_the_blocks_input() -> None:
    class Halves(Basic):
        """Convolves half of its channels, as selective kernels do."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.bn1(self.conv1(x[:, :4])), x[:, 4:]], dim=1) + x

    module = TorchvisionStyle(Basic)
    module.layer1 = nn.Sequential(Halves(4, 4))
    assert_routes(module, images(module))


def test_costs_come_from_the_original_parts(module: nn.Module) -> None:
    network, x_BCHW = make_dynamic(module), images(module, batch=1)
    shape = (x_BCHW.shape[1], 40, 40)
    table = block_costs(network, shape)
    blocks = [part for part in module.modules() if isinstance(part, Basic | Bottle)]
    x = network.stem(x_BCHW)
    for k, block in enumerate(blocks):
        assert table.run_N[k] == macs(block, x)
        assert table.skip_N[k] == (0 if block.downsample is None else macs(block.downsample, x))
        x = block(x)
    assert table.paper_unit == 1
    assert min(table.router_N) > 0


def test_a_deep_copy_is_independent(module: nn.Module) -> None:
    network, x_BCHW = make_dynamic(module), images(module)
    twin = copy.deepcopy(network)
    expected = run_all(network, x_BCHW)
    assert torch.equal(run_all(twin, x_BCHW), expected)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert torch.equal(run_all(twin, x_BCHW), expected)
    assert not torch.equal(run_all(network, x_BCHW), expected)


def test_a_state_dict_can_be_loaded_into_another_copy(module: nn.Module) -> None:
    network, x_BCHW = make_dynamic(module), images(module)
    other = copy.deepcopy(network)
    for parameter in other.parameters():
        nn.init.normal_(parameter)
    other.load_state_dict(network.state_dict(), strict=True)
    with torch.no_grad():
        assert torch.equal(other(x_BCHW).logits_BK, network(x_BCHW).logits_BK)


def test_it_can_be_pickled(module: nn.Module) -> None:
    network, x_BCHW = make_dynamic(module), images(module)
    assert torch.equal(run_all(pickle.loads(pickle.dumps(network)), x_BCHW), run_all(network, x_BCHW))


def test_to_moves_every_part(module: nn.Module) -> None:
    network = make_dynamic(module).double()
    output = network(images(module).double())
    assert output.logits_BK.isfinite().all()
    assert all(p.dtype == torch.float64 for p in network.parameters())
    assert all(p.is_meta for p in network.to("meta").parameters())


def test_routers_take_the_modules_dtype() -> None:
    network = make_dynamic(TorchvisionStyle(Basic).to(torch.bfloat16))
    assert all(p.dtype == torch.bfloat16 for p in network.parameters())


def test_train_and_eval_reach_every_part(module: nn.Module) -> None:
    network = make_dynamic(module)
    assert not any(part.training for part in network.modules())
    network.train()
    assert all(part.training for part in module.modules() if part is not module)
    network.eval()
    assert not any(part.training for part in module.modules())


def test_a_frozen_part_stays_frozen() -> None:
    module = TorchvisionStyle(Basic).train()
    module.bn1.eval()
    network = make_dynamic(module)
    assert network.training
    assert not network.get_submodule("bn1").training
    assert network.get_submodule("layer1.0.bn1").training


def test_dropout_before_the_classifier_is_kept() -> None:
    x_BCHW = images(TimmStyle(Basic))
    for rate in (0.0, 0.9):
        torch.manual_seed(0)
        network = make_dynamic(TimmStyle(Basic, drop_rate=rate).eval())
        features = network.blocks[0](network.stem(x_BCHW))
        features = network.blocks[2](network.blocks[1](features))
        network.train()
        assert torch.equal(network.head(features), network.head(features)) == (rate == 0)


def test_routers_can_be_trained_alone(module: nn.Module) -> None:
    network = make_dynamic(module)
    train_only(network, routers=True, backbone=False)
    network(images(module), decide=gumbel).logits_BK.square().sum().backward()
    for name, parameter in network.named_parameters():
        assert (parameter.grad is not None) == ("router" in name)


# --- training it is training the module


def buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: buffer for name, buffer in module.named_buffers() if "router" not in name}


# timm's drop out at random; the pre-activated ask their downsample about something else than what skipping does.
@pytest.mark.parametrize("style", [style for style in STYLES if style.split("-")[0] not in ("timm", "pre")])
def test_a_training_step_leaves_the_statistics_that_the_module_would_have(style: str) -> None:
    torch.manual_seed(0)
    module = STYLES[style]().train()
    network = make_dynamic(copy.deepcopy(module))
    x_BCHW = images(module, batch=4)
    expected = module(x_BCHW)
    found = network(x_BCHW, force=torch.ones(len(network.blocks))).logits_BK
    assert torch.equal(found, expected)
    assert all(torch.equal(buffers(network)[name], buffer) for name, buffer in buffers(module).items())
    expected.square().sum().backward()
    found.square().sum().backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(network.get_parameter(name).grad, parameter.grad)


@pytest.mark.parametrize("style", STYLES)
def test_a_training_step_mixes_the_block_and_what_skipping_leaves(style: str) -> None:
    """Blocks must not change what the next router sees."""
    torch.manual_seed(0)
    module = STYLES[style]().train()
    network, x_BCHW = make_dynamic(copy.deepcopy(module)), images(module, batch=4)
    blocks = [part for part in module.modules() if isinstance(part, Basic | Bottle)]
    path = torch.arange(len(blocks)) % 2
    with torch.no_grad():
        features = network.stem(x_BCHW)
        for adopted, block, runs in zip(network.blocks, blocks, path, strict=True):
            kept, skip = features.clone(), copy.deepcopy(block.downsample)
            found, *_ = routed_step(adopted, None, features, (), hard, runs.expand(4).float())
            assert torch.equal(features, kept)
            features = block(kept) if runs else kept if skip is None else skip(kept)
            assert torch.equal(found, features)


def test_a_training_step_never_changes_the_modules_of_the_network() -> None:
    """In the middle of a forward pass, the network still holds its own parts."""
    torch.manual_seed(0)
    network = make_dynamic(TorchvisionStyle(Basic)).train()
    parts, names, seen = list(network.modules()), list(network.state_dict()), []

    def look(_module: nn.Module, _inputs: object) -> None:
        seen.append(list(network.modules()) == parts and list(network.state_dict()) == names)

    handles = [part.register_forward_pre_hook(look) for part in network.modules() if isinstance(part, nn.Conv2d)]
    network(images(network, batch=4), decide=gumbel).logits_BK.sum().backward()
    for handle in handles:
        handle.remove()
    assert len(seen) == len(handles)
    assert all(seen)


# --- what it refuses


def without(name: str) -> nn.Module:
    module = TorchvisionStyle(Basic)
    delattr(module, name)
    return module


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("conv1", "no conv1"),
        ("bn1", "no bn1"),
        ("relu", r"no relu\|act1"),
        ("layer1", "no nn.Sequential layer1"),
        ("avgpool", r"no avgpool\|global_pool"),
        ("fc", "no fc"),
    ],
)
def test_a_missing_part_is_reported(name: str, said: str) -> None:
    with pytest.raises(UserError, match=rf"A ResNet must consist of conv1, .*this TorchvisionStyle has {said}"):
        make_dynamic(without(name))


class SmallStyle(TorchvisionStyle):
    """For small images: no pooling before the first block, unless the forward does some on its own."""

    def __init__(self, pool: int = 1) -> None:
        super().__init__(Basic)
        self.pool = pool
        del self.maxpool

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = x if self.pool == 1 else nn.functional.max_pool2d(x, self.pool)
        for stage in range(self.depth):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


def test_an_image_shape_is_kept_and_must_fit() -> None:
    assert make_dynamic(SmallStyle(), image_shape=(3, 32, 40)).image_shape == (3, 32, 40)
    for shape in ((1, 32, 32), (3, 32)):
        with pytest.raises(UserError, match="image_shape must"):
            make_dynamic(SmallStyle(), image_shape=shape)  # type: ignore[arg-type]


def test_a_stem_may_have_no_pooling() -> None:
    torch.manual_seed(0)
    module = SmallStyle().eval()
    images = torch.randn(2, 3, 32, 32)
    network = make_dynamic(module)
    assert network.stem_parts == ["conv1", "bn1", "relu"]
    assert torch.equal(network(images, force=torch.ones(6)).logits_BK, module(images))


def test_a_forward_that_does_more_than_its_parts_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"passes \(1, 8, 56, 56\) to layer1, but its conv1, bn1, relu return \(1, 8, 112, 112\)"
    ):
        make_dynamic(SmallStyle(pool=2))


def test_other_networks_are_refused() -> None:
    with pytest.raises(UserError, match="does not know the residual blocks of Sequential"):
        make_dynamic(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()))


def test_a_group_of_blocks_must_be_a_sequential() -> None:
    module = TorchvisionStyle(Basic)
    module.layer2 = nn.ModuleList(module.get_submodule("layer2").children())
    with pytest.raises(UserError, match=r"has no nn\.Sequential layer2"):
        make_dynamic(module)


def test_an_unknown_part_is_refused() -> None:
    module = TorchvisionStyle(Basic)
    module.attention = nn.Linear(8, 8)
    with pytest.raises(UserError, match="has an unknown attention"):
        make_dynamic(module)


def test_a_stride_without_a_downsample_is_refused() -> None:
    module = TorchvisionStyle(Basic)
    module.get_submodule("layer2.0").register_module("downsample", None)
    with pytest.raises(UserError, match=r"layer2\.0 cannot be routed, it fails on its input"):
        make_dynamic(module)


def test_a_block_with_a_shortcut_of_its_own_is_refused() -> None:
    class Pooling(Basic):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.bn1(self.conv1(x)) + nn.functional.avg_pool2d(x, 2)

    module = TorchvisionStyle(Basic)
    module.layer1 = nn.Sequential(Pooling(8, 8, stride=2))
    with pytest.raises(UserError, match=r"layer1\.0 cannot be skipped: .*needs a `downsample`"):
        make_dynamic(module)


def test_a_resnet_without_convolutions_is_refused() -> None:
    module = nn.Module()
    for name in ("conv1", "bn1", "relu", "maxpool", "avgpool", "fc"):
        module.add_module(name, nn.Identity())
    module.add_module("layer1", nn.Sequential(nn.Identity()))
    with pytest.raises(UserError, match="must have a convolution"):
        make_dynamic(module)


def test_an_unknown_router_ends_in_a_hint() -> None:
    with pytest.raises(UserError, match="perhaps you meant cnn"):
        make_dynamic(TorchvisionStyle(Basic), router="cn")


# --- the real ones, where they are installed


@pytest.mark.parametrize("library", ["torchvision.models"], indirect=True)
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnext50_32x4d"])
def test_torchvisions_own_resnets_can_be_routed(library: ModuleType, name: str) -> None:
    torch.manual_seed(0)
    assert_routes(getattr(library, name)(num_classes=5), torch.randn(2, 3, 64, 64))


@pytest.mark.parametrize("library", ["timm"], indirect=True)
@pytest.mark.parametrize("name", ["resnet18", "resnet26d", "seresnext26d_32x4d", "resnet50"])
def test_timms_own_resnets_can_be_routed(library: ModuleType, name: str) -> None:
    torch.manual_seed(0)
    module = library.create_model(name, num_classes=5, drop_rate=0.2, drop_path_rate=0.1)
    assert_routes(module, torch.randn(2, 3, 64, 64))
