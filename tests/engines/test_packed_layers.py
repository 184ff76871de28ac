"""Packed layers compute what torch's layers do, and a BatchNorm is folded only where nothing else reads its input."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from codinet import create_model, make_dynamic
from codinet.bench.run_rate import settle, with_run_rate
from codinet.engines import BranchEngine, GatherEngine, StaticEngine
from codinet.engines.folded_network import fold
from codinet.engines.packed_layers import PackedConv, PackedLinear, PatchConv, cut_patches, pack_layers
from codinet.model import RoutedNetwork

CONVS = [
    {"in_channels": 16, "out_channels": 24, "kernel_size": 3, "padding": 1},
    {"in_channels": 16, "out_channels": 16, "kernel_size": 7, "padding": 3, "groups": 16},
    {"in_channels": 16, "out_channels": 8, "kernel_size": 1, "stride": 2, "bias": False},
    {"in_channels": 16, "out_channels": 8, "kernel_size": 3, "dilation": 2},
]


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("side", [12, 15])
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_patches_of_images(side: int, bias: bool) -> None:
    torch.manual_seed(0)
    convs = [nn.Conv2d(3, 8, 4, 4, bias=bias), nn.Conv2d(3, 8, 4, 4, padding=1), nn.Conv2d(16, 8, 2, 2)]
    images = torch.randn(2, 3, side, side)
    expected = convs[0](images)
    cut_patches(nn.ModuleList(convs))
    assert [type(conv) for conv in convs] == [PatchConv, nn.Conv2d, nn.Conv2d]
    for each in (images, images.contiguous(memory_format=torch.channels_last)):
        close(convs[0](each), expected)


@pytest.mark.parametrize("options", CONVS, ids=str)
@torch.inference_mode()
def test_a_packed_convolution(options: dict[str, int]) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(**options)  # type: ignore[arg-type]
    names = set(conv.state_dict())
    pack_layers(conv)
    assert type(conv) is PackedConv
    for number, side in ((5, 9), (1, 12), (8, 9)):  # weights are converted at the first call
        x = torch.randn(number, 16, side, side)
        for images in (x, x.contiguous(memory_format=torch.channels_last)):
            close(conv(images), nn.Conv2d.forward(conv, images))
    assert set(conv.state_dict()) == names


@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_a_packed_linear_layer(bias: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(20, 12, bias=bias)
    pack_layers(layer)
    assert type(layer) is PackedLinear
    for x in (torch.randn(50, 20), torch.randn(3, 20), torch.randn(4, 7, 5, 20), torch.randn(6, 20, 9).mT):
        close(layer(x), nn.Linear.forward(layer, x))


@pytest.mark.parametrize("conv", [nn.Conv2d(4, 4, 3, padding="same"), nn.Conv2d(4, 4, 3, padding_mode="reflect")])
def test_other_convolutions_stay(conv: nn.Conv2d) -> None:
    pack_layers(conv)
    assert type(conv) is nn.Conv2d


class Plain(nn.Module):
    """A block of one convolution and one BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.relu(self.bn(self.conv(x)))


class Reused(Plain):
    """The input of the BatchNorm is read again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return x + self.bn(y).relu() * y.sigmoid()


class Repeated(Plain):
    """The convolution is called twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.bn(self.conv(self.conv(x)))


class Dependent(Plain):
    """The forward cannot be traced."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if len(x) else x


class Body(nn.Module):
    def __init__(self, block: type[nn.Module]) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, 8, 3, padding=1), nn.Sequential(block(), block())
        self.fc = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


@pytest.mark.parametrize(("block", "folds"), [(Plain, True), (Reused, False), (Repeated, False), (Dependent, False)])
def test_what_is_packed(block: type[nn.Module], folds: bool) -> None:
    torch.manual_seed(0)
    images = torch.randn(6, 3, 12, 12)
    model = settle(make_dynamic(Body(block), blocks="blocks.*", image_shape=(3, 12, 12)), images).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.inference_mode():
        folded = fold(model)
        inner = folded.blocks[0].block.block  # type: ignore[attr-defined]
        assert (type(inner.bn) is nn.Identity) == folds
        assert type(inner.conv) is PackedConv
        close(StaticEngine(model)(images).logits_BK, model(images, force=torch.ones(2)).logits_BK)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(isinstance(part, PackedConv | PackedLinear) for part in model.modules())
    assert type(fold(model.double()).blocks[0].block.block.conv) is nn.Conv2d  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("library", "name"),
    [("torchvision", "torchvision:resnet18"), ("timm", "timm:mobilenetv3_small_050"), ("timm", "timm:resnet10t")],
    indirect=["library"],
)
def test_networks_of_libraries_with_trained_statistics(library: ModuleType, name: str) -> None:
    torch.manual_seed(0)
    images = torch.randn(6, 3, 64, 64)
    model = with_run_rate(settle(create_model(name, num_classes=7), images), images, 0.5)
    with torch.inference_mode():
        expected = model(images)
        assert 0 < expected.path_BN.mean() < 1
        for engine in (BranchEngine(model), GatherEngine(model)):
            found = engine(images)
            assert torch.equal(found.path_BN, expected.path_BN)
            close(found.logits_BK, expected.logits_BK)
        parts = [part for block in fold(model).blocks for part in block.block.block.modules()]  # type: ignore
        assert not any(isinstance(part, nn.BatchNorm2d) for part in parts)


@pytest.mark.parametrize("library", ["timm"], indirect=True)
def test_a_projection_is_computed_once_for_each_image(library: ModuleType) -> None:
    """An adopted block computes its own shortcut when it runs."""
    images = torch.randn(4, 3, 64, 64)
    model = settle(create_model("timm:resnet18"), images).eval()
    engine = GatherEngine(model)
    engine(images)  # the first call also measures the features
    projected: list[int] = []
    block = engine.net.blocks[2].block.block  # type: ignore[attr-defined]
    block.downsample.register_forward_hook(lambda _module, inputs, _output: projected.append(len(inputs[0])))
    path = torch.ones(4, 8)
    path[:, 2] = torch.tensor([1.0, 0, 0, 1])
    for forced in (path, torch.ones(4, 8), torch.zeros(4, 8)):
        projected.clear()
        torch.testing.assert_close(
            engine(images, force=forced).logits_BK, model(images, force=forced).logits_BK, atol=1e-4, rtol=1e-4
        )
        assert sum(projected) == 4


@pytest.fixture
def wide(network: Callable[..., RoutedNetwork]) -> RoutedNetwork:
    return network("resnet50")


@pytest.mark.parametrize("kind", [BranchEngine, GatherEngine])
def test_large_products_are_divided(wide: RoutedNetwork, kind: type, images: torch.Tensor) -> None:
    """The routers of ResNet-50 are larger than what numpy computes in one thread."""
    with torch.inference_mode():
        expected = wide(images)
        found = kind(wide)(images)
    torch.testing.assert_close(found.scores_BN2, expected.scores_BN2, atol=1e-4, rtol=1e-4)
