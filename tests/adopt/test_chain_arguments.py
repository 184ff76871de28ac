"""What `make_dynamic` refuses, and what it finds out by itself."""

from typing import Any

import pytest
import torch
from tests.adopt.chains import (
    SHAPE,
    Chain,
    Grows,
    Mix,
    Residual,
    Tokens,
    made,
)
from torch import nn
from torch.nn import functional as F

from codinet import UserError, make_dynamic
from codinet.adopt.families import family_pattern


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"blocks": 7}, "blocks must be a class of modules, a name or a list of names, got 7"),
        ({"blocks": []}, "blocks must be a class of modules"),
        ({"blocks": ["blocks.0", None]}, "blocks must be a class of modules"),
        ({"blocks": int}, "blocks must be a class of modules"),
        ({"blocks": Residual, "router": "gru"}, "Unknown router 'gru'"),
        ({"blocks": Residual, "image_shape": (3, 12)}, "image_shape must be"),
        ({"blocks": Residual, "image_shape": (3, 0, 12)}, "height of image_shape must be a whole number from 1"),
        ({"blocks": Residual, "image_shape": (3, 12, 10**9)}, "width of image_shape must be a whole number from 1"),
    ],
)
def test_wrong_arguments_are_refused(words: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make_dynamic(Chain(), **words)


@pytest.mark.parametrize("module", [None, "resnet18", torch.zeros(3), Chain])
def test_only_modules_can_be_routed(module: Any) -> None:
    with pytest.raises(UserError, match="module must be a torch module, got"):
        make_dynamic(module, blocks=Residual)


def test_a_routed_network_is_not_routed_again() -> None:
    with pytest.raises(UserError, match="module must not have routers already, got AdoptedChain"):
        make_dynamic(make_dynamic(made(), blocks=Residual), blocks=Residual)


class Asks(Chain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x if x.sum() > 0 else -x)


class Twice(Chain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.blocks[0](self.stem(x))[:, :3])  # and there it is run again


class GoesPast(Chain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head(F.pad((self.blocks[0](x) + x).mean((2, 3)), (0, 4)))


class Drops(Chain):
    """Stochastic depth by hand: in training the first block is left out."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks[1:] if self.training else self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class TwoOut(Chain):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), x


class Draws(Chain):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * torch.rand(1).item()


class TwoIn(Tokens):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x * mask)


class Plain(nn.Sequential):
    def __init__(self) -> None:
        pairs = (nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)) for _ in range(2))
        super().__init__(nn.Conv2d(3, 3, 1), *pairs)


@pytest.mark.parametrize(
    ("module", "blocks", "sentence"),
    [
        (Chain(), "block.*", r"This Chain has no module 'block\.\*'; it has no repeated modules"),
        (Plain(), Grows, r"This Plain has no module Grows; it has Sequential \(2\)"),
        (Plain(), "0", "None of the 1 selected blocks of this Plain can be skipped"),
        (Chain(), Grows, "None of the 1 selected blocks of this Chain can be skipped: .* keep its shape"),
        (TwoIn(), Mix, "must take images only and return logits only"),
        (Asks(), Residual, "The forward of this Asks cannot be traced: "),
        (Twice(), Residual, r"blocks\.0 runs more than once"),
        (GoesPast(), Residual, r"A tensor bypasses blocks\.0 and is used after it"),
        (Draws(), Residual, "The traced parts of this Draws give other logits than its forward"),
        (
            Drops(),
            Residual,
            r"does not call its blocks as in evaluation \(blocks\.0\); let it call every block in both",
        ),
        (TwoOut(), Residual, "must take images only and return logits only"),
        (nn.Sequential(nn.Linear(3, 3)), "0", "must have a convolution, got a Sequential without one"),
    ],
)
def test_networks_that_cannot_be_routed_are_refused(module: nn.Module, blocks: Any, sentence: str) -> None:
    torch.manual_seed(0)  # or a forward that draws may draw nearly the same twice
    with pytest.raises(UserError, match=sentence):
        make_dynamic(module, blocks=blocks)


class Beit(nn.Sequential):
    """Has the name of a class of timm, but other parts."""


class MlpMixer(nn.Module):
    """Has the name and the parts of a network of timm."""

    def __init__(self, blocks: nn.Module) -> None:
        super().__init__()
        self.stem, self.blocks, self.head = nn.Conv2d(3, 6, 1), blocks, nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))


def test_the_blocks_of_a_known_family_need_no_name() -> None:
    module = MlpMixer(nn.Sequential(*(Residual(6) for _ in range(3))))
    assert [block.name for block in make_dynamic(module, image_shape=(3, 8, 8)).blocks] == [
        f"blocks.{index}" for index in range(3)
    ]
    assert family_pattern(Beit(nn.Conv2d(3, 3, 1))) is None
    with pytest.raises(UserError, match=r"fails on images of 5×8×8: .*[(]Its blocks were selected with blocks='blocks"):
        make_dynamic(module, image_shape=(5, 8, 8))


def test_likely_blocks_are_suggested_if_they_can_be_routed() -> None:
    unknown = (
        r"^codinet does not know the residual blocks of Chain; name them with --blocks PATTERN, or blocks= in Python\."
    )
    with pytest.raises(UserError, match=rf"{unknown} Perhaps blocks='blocks\.\*', which are 3 Residual\.$"):
        make_dynamic(made(), image_shape=SHAPE)
    module = made()
    module.blocks = nn.ModuleList([Grows(8, 8), Grows(8, 8)])
    with pytest.raises(UserError, match=rf"{unknown}$"):
        make_dynamic(module, image_shape=SHAPE)
    with pytest.raises(UserError, match=r"must have a convolution, got a Linear without one"):
        make_dynamic(nn.Linear(3, 4))


def test_a_network_of_one_image_size_gets_that_size() -> None:
    module = MlpMixer(nn.Sequential(*(Residual(6) for _ in range(3))))
    setattr(module, "image_size", 16)  # noqa: B010
    assert make_dynamic(module).image_shape == (3, 16, 16)
    module.patch_embed = nn.Identity()
    setattr(module.patch_embed, "img_size", (8, 12))  # noqa: B010
    assert make_dynamic(module).image_shape == (3, 8, 12)
    assert make_dynamic(module, image_shape=(3, 6, 6)).image_shape == (3, 6, 6)


def test_an_image_shape_must_fit() -> None:
    with pytest.raises(UserError, match=r"This Chain fails on images of 4×12×12: .*; set image_shape"):
        make_dynamic(Chain(), blocks=Residual, image_shape=(4, 12, 12))
    with pytest.raises(UserError, match="residual blocks of Chain"):
        make_dynamic(Chain())
