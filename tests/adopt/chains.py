"""Networks that are not ResNets, for tests: chains of residual blocks, with features of several layouts."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    """x + conv(norm(x))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(self.norm(x))


class Grows(Residual):
    """A block that is not skipped, because the shape changes."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__(width)
        self.conv = nn.Conv2d(width, out, 3, 2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(self.norm(x))


class InPlace(Residual):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu_() + self.conv(self.norm(x))


class Chain(nn.Module):
    """Two stages with a plain convolution, an activation in place and a factor in between, and a head in functions."""

    def __init__(self, block: type[Residual] = Residual) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)  # names that the routed network has other uses for
        self.blocks = nn.ModuleList([block(8), block(8), Grows(8, 12), block(12)])
        self.scale = nn.Parameter(torch.full((1,), 0.5))
        self.head = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for k, block in enumerate(self.blocks):
            x = block(x if k != 1 else F.relu(x, inplace=True) * self.scale)
        x = F.dropout(x.mean((2, 3)), 0.5, training=self.training)
        return self.head(x)


CHOICES: list[Any] = [Residual, "blocks.*", ["blocks.0", "blocks.[1-3]"]]
SHAPE = (3, 12, 12)


def made(block: type[Residual] = Residual) -> Chain:
    torch.manual_seed(0)
    module = Chain(block).train()
    module(images(8))  # so that BatchNorms have seen something
    return module.eval()


def images(number: int = 2) -> torch.Tensor:
    return torch.randn(number, *SHAPE, generator=torch.Generator().manual_seed(1))


class Mix(nn.Module):
    """x + W x over the last dimension."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, factor: float = 1.0, *, mask: torch.Tensor | None = None) -> torch.Tensor:
        return x + factor * self.layer(x) * (1 if mask is None else mask)


class Tokens(nn.Module):
    """B×T×C, with a token that is learnt in front."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.head = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.ones(1, 1, 8)), nn.Linear(8, 5)
        self.blocks = nn.Sequential(*(Mix(8) for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).flatten(2).mT
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], dim=1)
        return self.head(self.blocks(x)[:, 0])


class ChannelsLast(Tokens):
    """B×H×W×C, and B×C×H×W from the third block on."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[2] = Residual(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks[1](self.blocks[0](self.stem(x).permute(0, 2, 3, 1)))
        return self.head(self.blocks[2](x.permute(0, 3, 1, 2)).mean((2, 3)))


class Masked(Tokens):
    """With inputs that nobody gives, and a number for its blocks."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, deep: bool = True) -> torch.Tensor:
        x = self.stem(x).flatten(2).mT
        for block in self.blocks if deep else ():
            x = block(x, 0.5) if mask is None else block(x, mask=mask)
        return self.head(x.mean(1))
