import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codinet.config import LossConfig
from codinet.methods.convaig import METHOD, UNITS, NarrowRouter, target_rate
from codinet.methods.method import PathBatch
from codinet.methods.router_kinds import build_routers
from codinet.records import RoutedOutput
from codinet.routers import fc_routers


def test_the_target_rate_by_hand() -> None:
    paths_BN = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0], [1.0, 0.0]])  # rates 1 and 1/4
    assert target_rate(paths_BN, 0.5).item() == pytest.approx((0.25 + 0.0625) / 2)
    assert target_rate(paths_BN, torch.tensor(1.0)).item() == pytest.approx(0.5625 / 2)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0, 1))
def test_the_target_rate_is_zero_only_where_every_block_meets_it(rates: list[float], rate: float) -> None:
    paths_BN = torch.tensor([rates, rates])
    loss = target_rate(paths_BN, rate).item()
    assert loss == pytest.approx(sum((each - rate) ** 2 for each in rates) / len(rates), abs=1e-6)


def batch_of(path_BN: torch.Tensor, gamma: float, losses: LossConfig) -> PathBatch:
    output = RoutedOutput(torch.zeros(len(path_BN), 3), torch.zeros(*path_BN.shape, 2), path_BN)
    shares_N = torch.tensor([0.5, 0.25])
    return PathBatch(
        *(output, torch.zeros(len(path_BN)), 1, losses, torch.tensor(gamma), torch.tensor(1.0)),
        *(torch.tensor([4 / 3, 2 / 3]), shares_N, 0.25, lambda rows: rows, None),
    )


def test_the_loss_by_hand() -> None:
    path_BN = torch.tensor([[1.0, 0.0], [1.0, 1.0]])  # rates 1 and ½, cost (4/3 + 2) / 2 = 5/3
    found = METHOD.loss(torch.tensor(2.0), batch_of(path_BN, 0.3, LossConfig(budget=0.625)))
    # The budget of 0.625 is met if both blocks run at ½: 0.25 + 0.75/2.
    assert found.loss.item() == pytest.approx(2 + 0.3 * 5 / 3 + 2 * 0.125)
    assert found.cost.item() == pytest.approx(5 / 3)
    assert (found.consistency, found.diversity, found.decay) == (0, 0, 0)
    found = METHOD.loss(torch.tensor(2.0), batch_of(path_BN, 0.0, LossConfig(target_rate=0.75, rate_weight=8.0)))
    assert found.loss.item() == pytest.approx(2 + 8 * 0.0625)
    found = METHOD.loss(torch.tensor(2.0), batch_of(path_BN, 0.3, LossConfig(gamma=0.3)))  # neither
    assert found.loss.item() == pytest.approx(2.5)


def test_a_gate_has_16_units_and_starts_open() -> None:
    gate = NarrowRouter(24).eval()
    assert {name: tuple(parameter.shape) for name, parameter in gate.named_parameters()} == {
        "hidden.weight": (UNITS, 24),
        "hidden.bias": (UNITS,),
        "norm.weight": (UNITS,),
        "norm.bias": (UNITS,),
        "out.weight": (2, UNITS),
        "out.bias": (2,),
    }
    scores_B2, _ = gate(torch.randn(50, 24, 4, 4), ())
    assert scores_B2.softmax(dim=1)[:, 1].mean().item() == pytest.approx(1 / (1 + math.exp(-1.9)), abs=0.01)  # 87 %


@pytest.mark.parametrize("width", [8, 16, 40])
def test_the_folded_gate_has_the_same_scores(width: int) -> None:
    torch.manual_seed(0)
    routers = build_routers("narrow", [width], 3)
    gate, features = routers.router(0), torch.randn(64, width, 3, 3)
    gate(features + 1, ())  # moves the running statistics
    routers.eval()
    for parameter in routers.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    folded = fc_routers(routers)
    assert folded is not None
    assert folded[0].hidden.out_features == max(width, UNITS)
    with torch.no_grad():
        assert torch.allclose(folded[0](features, ())[0], gate(features, ())[0], atol=1e-5)
