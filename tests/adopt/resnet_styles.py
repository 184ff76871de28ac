"""ResNets as torchvision and timm build them, written here so that neither need be installed."""

from collections.abc import Callable

import torch
from torch import nn


class Basic(nn.Module):
    expansion = 1

    def __init__(self, into: int, width: int, stride: int = 1, downsample: nn.Module | None = None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = downsample

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += identity
        return self.relu(out)


class Bottle(nn.Module):
    """A grouped bottleneck with squeeze and excitation, which `make_dynamic` must leave alone."""

    expansion = 4

    def __init__(self, into: int, width: int, stride: int = 1, downsample: nn.Module | None = None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, groups=2, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width * 4, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width * 4)
        self.se = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width * 4, width * 4, 1), nn.Sigmoid())
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out = out * self.se(out)
        out += identity
        return self.relu(out)


class PreActivated(Basic):
    """Activates its input in place, so that what is added to the residual is activated too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(x)
        identity = x if self.downsample is None else self.downsample(x)
        return self.bn2(self.conv2(self.relu(self.bn1(self.conv1(out))))) + identity


class AddsOnto(Basic):
    """Adds the residual onto its shortcut, in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x.clone() if self.downsample is None else self.downsample(x)
        identity += self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(identity)


def stages(module: nn.Module, block: type[Basic] | type[Bottle], counts: tuple[int, ...], channels: int) -> int:
    """Give a module its layer1 … layerS; the channels they end in."""
    for stage, count in enumerate(counts):
        width, stride = 8 * 2**stage, 1 if stage == 0 else 2
        blocks = []
        for position in range(count):
            stride = stride if position == 0 else 1
            out = width * block.expansion
            downsample = None
            if stride != 1 or channels != out:
                downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
            blocks.append(block(channels, width, stride, downsample))
            channels = out
        module.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
    return channels


class TorchvisionStyle(nn.Module):
    def __init__(self, block: type[Basic] | type[Bottle], counts: tuple[int, ...] = (2, 1, 2, 1)) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.depth = len(counts)
        channels = stages(self, block, counts, 8)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(channels, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in range(self.depth):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


class TimmStyle(nn.Module):
    """A deep stem, `act1`, a pooling that flattens, dropout given as a rate."""

    def __init__(self, block: type[Basic] | type[Bottle], drop_rate: float = 0.3) -> None:
        super().__init__()
        self.drop_rate = drop_rate
        self.conv1 = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.SiLU(), nn.Conv2d(4, 8, 3, 1, 1))
        self.bn1 = nn.BatchNorm2d(8)
        self.act1 = nn.SiLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        channels = stages(self, block, (1, 2), 8)
        self.global_pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(1))
        self.fc = nn.Linear(channels, 5)

    def forward_head(self, x: torch.Tensor) -> torch.Tensor:
        x = self.global_pool(x)
        return self.fc(nn.functional.dropout(x, self.drop_rate, self.training))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.act1(self.bn1(self.conv1(x))))
        return self.forward_head(self.get_submodule("layer2")(self.get_submodule("layer1")(x)))


STYLES: dict[str, Callable[[], nn.Module]] = {
    "torchvision-basic": lambda: TorchvisionStyle(Basic),
    "torchvision-bottleneck": lambda: TorchvisionStyle(Bottle),
    "timm-basic": lambda: TimmStyle(Basic),
    "timm-bottleneck": lambda: TimmStyle(Bottle),
    "three-stages": lambda: TorchvisionStyle(Basic, counts=(1, 1, 1)),
    "pre-activation": lambda: TorchvisionStyle(PreActivated),
    "adds-onto-its-shortcut": lambda: TorchvisionStyle(AddsOnto),
}
