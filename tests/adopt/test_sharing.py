"""Networks whose blocks share layers, and other properties on which engines and files depend."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.adopt.resnet_styles import Basic, TorchvisionStyle
from torch import nn

from codinet import UserError, make_dynamic
from codinet.adopt.resnet import AdoptedResNet
from codinet.engines import BranchEngine, GatherEngine, MaskedEngine, StaticEngine
from codinet.files import load_tensors, save_tensors
from codinet.model import RoutedNetwork
from codinet.train.averaging import Average

SHAPE = (3, 16, 16)


class ConvNorm(nn.Module):
    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv, self.norm = conv, nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(self.conv(x)).relu()


class Mixer(nn.Module):
    """A block on B×H×W×C inside a network of maps."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layer(self.norm(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


class Maps(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x).relu()


class Net(nn.Module):
    def __init__(self, *blocks: nn.Module, width: int = 8) -> None:
        super().__init__()
        self.stem, self.layers, self.head = (
            nn.Conv2d(3, width, 3, padding=1),
            nn.Sequential(*blocks),
            nn.Linear(width, 5),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.stem(x)).mean((2, 3)))


def routed(*blocks: nn.Module, width: int = 8) -> RoutedNetwork:
    network = make_dynamic(Net(*blocks, width=width), blocks="layers.*", image_shape=SHAPE)
    for norm in network.modules():
        if isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None and norm.running_var is not None:
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    return network.eval()


def conv(padding: Any = 1) -> nn.Conv2d:
    return nn.Conv2d(8, 8, 3, padding=padding, bias=False)


def tied() -> RoutedNetwork:
    shared = conv()
    return routed(*(ConvNorm(shared) for _ in range(3)))


NETWORKS = {
    "a convolution that all blocks share": tied,
    "padding by name": lambda: routed(*(ConvNorm(conv("same")) for _ in range(3))),
    "layouts that change between blocks, with as many channels as rows": lambda: routed(
        Maps(16), Mixer(16), Maps(16), width=16
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("engine", [BranchEngine, GatherEngine, StaticEngine])
def test_engines_agree(name: str, engine: Any) -> None:
    torch.manual_seed(0)
    network, images_BCHW = NETWORKS[name](), torch.randn(4, *SHAPE)
    path = torch.ones(3) if engine is StaticEngine else torch.tensor([1.0, 1.0, 0.0])
    expected = MaskedEngine(network)(images_BCHW, force=path).logits_BK
    made = engine(network)
    found = (made(images_BCHW) if engine is StaticEngine else made(images_BCHW, force=path)).logits_BK
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_shared_tensors_are_averaged_once_and_stored(tmp_path: Path) -> None:
    network = tied().train()
    average = Average(network, 0.9)
    shared = network.state_dict()["module.layers.0.conv.weight"]
    before = shared.clone()
    with torch.no_grad():
        shared.add_(1)
    average.update()  # with d = 0.1 at first
    found = average.model.state_dict()["module.layers.2.conv.weight"]
    assert torch.allclose(found, before + 0.9, atol=1e-5)
    save_tensors(tmp_path / "a.safetensors", network.state_dict())
    tensors = load_tensors(tmp_path / "a.safetensors")[0]
    assert torch.equal(tensors["module.layers.2.conv.weight"], shared)


class Scaled(TorchvisionStyle):
    """A ResNet whose forward does more than its parts."""

    def __init__(self) -> None:
        super().__init__(Basic)
        self.temperature = nn.Parameter(torch.tensor(5.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.temperature


def test_a_resnet_with_a_head_of_its_own_is_refused_unless_its_blocks_are_named() -> None:
    torch.manual_seed(0)
    module, images_BCHW = Scaled().eval(), torch.randn(2, 3, 40, 40)
    with pytest.raises(
        UserError, match=r"of this Scaled give other logits than its forward; .* name its residual blocks"
    ):
        make_dynamic(module)
    network = make_dynamic(module, blocks="layer*.*", image_shape=(3, 40, 40))
    assert not isinstance(network, AdoptedResNet)
    with torch.no_grad():
        found = network(images_BCHW, force=torch.ones(len(network.blocks))).logits_BK
        assert torch.allclose(found, module(images_BCHW), atol=1e-5)
