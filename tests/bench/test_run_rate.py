"""Untrained networks that route at a given rate."""

import pytest
import torch

from codinet.bench.run_rate import settle, with_run_rate
from codinet.create import create_model


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("router", ["fc", "cnn"])
@pytest.mark.parametrize("rate", [0.0, 0.25, 0.5, 1.0])
def test_each_block_is_run_at_the_rate(router: str, rate: float, images: torch.Tensor) -> None:
    torch.manual_seed(0)
    model = create_model("resnet20", router=router)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    shifted = with_run_rate(settle(model, images), images, rate)
    with torch.no_grad():
        output = shifted(images)
    assert output.path_BN.mean(dim=0).tolist() == [rate] * 9
    assert output.logits_BK.abs().max() < 100  # features keep their size
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_each_block_may_have_its_own_rate(images: torch.Tensor) -> None:
    torch.manual_seed(0)
    rates = [1.0, 0.0, 0.25, 0.5, 0.75, 1.0, 0.0, 0.125, 0.875]
    with torch.no_grad():
        output = with_run_rate(settle(create_model("resnet20"), images), images, rates)(images)
    assert output.path_BN.mean(dim=0).tolist() == rates


def test_routers_with_one_output_layer_meet_the_rate_approximately(images: torch.Tensor) -> None:
    torch.manual_seed(0)
    model = settle(create_model("resnet20", router="rnn"), images)
    for rate in (0.0, 1.0):
        assert with_run_rate(model, images, rate)(images).path_BN.mean().item() == rate
    assert with_run_rate(model, images, 0.5)(images).path_BN.mean().item() == pytest.approx(0.5, abs=0.15)
