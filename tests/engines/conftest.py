"""Networks for engines, and when two outputs count as equal."""

import functools
from collections.abc import Callable

import pytest
import torch

from codinet.bench.run_rate import settle, with_run_rate
from codinet.create import create_model
from codinet.model import RoutedNetwork
from codinet.records import RoutedOutput


@pytest.fixture(scope="session")
def images() -> torch.Tensor:
    return torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="session")
def network(images: torch.Tensor) -> Callable[..., RoutedNetwork]:
    """A network whose blocks are each run by the given fraction of `images`; cached."""
    made: dict[tuple[str, str, float], RoutedNetwork] = {}

    def make(arch: str = "resnet20", router: str = "fc", run_rate: float = 0.5) -> RoutedNetwork:
        key = arch, router, run_rate
        if key not in made:
            torch.manual_seed(0)
            made[key] = with_run_rate(settle(create_model(arch, router=router), images), images, run_rate)
        return made[key]

    return make


@pytest.fixture(scope="session")
def of_registry() -> Callable[[str], tuple[RoutedNetwork, torch.Tensor, RoutedOutput]]:
    """A network by name that runs half of its blocks, a few images, and its output for them."""

    @functools.cache
    def make(arch: str) -> tuple[RoutedNetwork, torch.Tensor, RoutedOutput]:
        torch.manual_seed(1)
        # Large enough that BatchNorm has several positions in the last group.
        images = torch.randn(4, 3, 96, 96) if arch in ("resnet50", "resnet101") else torch.randn(4, 3, 32, 32)
        model = with_run_rate(settle(create_model(arch, num_classes=7), images), images, 0.5)
        with torch.no_grad():
            return model, images, model(images)

    return make


@pytest.fixture(scope="session")
def assert_same() -> Callable[..., None]:
    """Equal paths, and logits and scores equal to 1e-5 of their own scale."""

    def check(output: RoutedOutput, reference: RoutedOutput, *, tolerance: float = 1e-5) -> None:
        assert torch.equal(output.path_BN, reference.path_BN)
        for ours, theirs in zip(output[:2], reference[:2], strict=True):
            assert ours.shape == theirs.shape
            assert ours.dtype == theirs.dtype
            scale = max(1.0, theirs.abs().max().item())
            assert (ours - theirs).abs().max().item() <= tolerance * scale

    return check
