from math import log

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from codinet.backbones import Block
from codinet.config import LossConfig
from codinet.create import create_model
from codinet.methods.act import METHOD, mass_left, ponder_cost
from codinet.methods.method import PathBatch
from codinet.methods.router_kinds import build_routers
from codinet.model import routed_step
from codinet.records import RoutedOutput
from codinet.relaxation import hard
from codinet.routers import EPSILON, SCALE, FirstRouter, HaltingRouter, HaltingRouters

FEATURES = torch.ones(1, 2, 3, 3)


def routers_of(*halting: float, groups: tuple[int, ...] | None = None) -> HaltingRouters:
    """One more block than halting scores, which do not depend on the image."""
    routers = build_routers("halting", [2] * (len(halting) + 1), 3, groups)
    assert isinstance(routers, HaltingRouters)
    with torch.no_grad():
        for router, h in zip(routers.each[1:], halting, strict=True):
            if isinstance(router, HaltingRouter):
                router.halt.weight.zero_()
                router.halt.bias.fill_(log(h / (1 - h)))
    return routers


def scores_of(routers: HaltingRouters) -> torch.Tensor:
    state, scores = routers.start(FEATURES), []
    for k in range(len(routers.each)):
        scores_B2, state = routers.router(k)(FEATURES, state)
        scores.append(scores_B2)
    return torch.stack(scores, dim=1)


def test_a_group_by_hand() -> None:
    """Sums of 0.25, 0.75 and 1.25: the third block is the last to run, and a quarter is left for it."""
    scores_BN2 = scores_of(routers_of(0.25, 0.5, 0.5))
    assert hard(scores_BN2).tolist() == [[1, 1, 1, 0]]
    assert mass_left(scores_BN2)[0].tolist() == pytest.approx([1, 0.75, 0.25, 0])
    assert ponder_cost(scores_BN2, torch.ones(4)).item() == pytest.approx(3 + 0.25)
    assert ponder_cost(scores_BN2, torch.tensor([1.0, 2.0, 1.0, 5.0])).item() == pytest.approx(2 + 2 * 0.75 + 0.5)
    margin_BN = scores_BN2[..., 1] - scores_BN2[..., 0]
    assert margin_BN[0, 1:].tolist() == pytest.approx([SCALE * left for left in (0.74, 0.24, -0.26)], abs=1e-5)


def test_every_group_starts_anew() -> None:
    scores_BN2 = scores_of(routers_of(0.6, 0.6, 0.5, 0.7, groups=(3, 2)))
    assert hard(scores_BN2).tolist() == [[1, 1, 0, 1, 1]]
    assert mass_left(scores_BN2)[0].tolist() == pytest.approx([1, 0.4, 0, 1, 0.3])
    assert ponder_cost(scores_BN2, torch.ones(5)).item() == pytest.approx((2 + 0.4) + (2 + 0.3))


SCORES = st.lists(st.floats(0.01, 0.98), min_size=1, max_size=8)


def last_block(halting: list[float]) -> int:
    """N of the paper: the first block at which the sum reaches 1 − ε; the last one has the score 1."""
    total = 0.0
    for number, h in enumerate(halting, start=1):
        total += h
        assume(abs(total - (1 - EPSILON)) > 1e-4)
        if total >= 1 - EPSILON:
            return number
    return len(halting) + 1


@given(SCORES)
def test_the_halting_distribution_and_the_ponder_cost(halting: list[float]) -> None:
    number = last_block(halting)
    scores_BN2 = scores_of(routers_of(*halting))
    path = hard(scores_BN2)[0].tolist()
    assert path == [1] * number + [0] * (len(path) - number)
    left_N = mass_left(scores_BN2)[0]
    assert (left_N.diff() <= 0).all()
    assert (left_N[0], left_N.min() >= 0) == (1, True)
    halting_N = -torch.cat([left_N, torch.zeros(1)]).diff()  # p_k = w_k − w_{k+1}
    assert halting_N.sum().item() == pytest.approx(1)
    assert halting_N[: number - 1].tolist() == pytest.approx(halting[: number - 1], abs=1e-5)
    remainder = 1 - sum(halting[: number - 1])
    assert left_N[number - 1].item() == pytest.approx(remainder, abs=1e-5)
    assert ponder_cost(scores_BN2, torch.ones(len(path))).item() == pytest.approx(number + remainder, abs=1e-4)


@given(SCORES)
def test_the_gradient_of_the_ponder_cost_is_that_of_the_remainder(halting: list[float]) -> None:
    """−1 for the scores of blocks before the last one, none for the others."""
    number = last_block(halting)
    routers = routers_of(*halting)
    ponder_cost(scores_of(routers), torch.ones(len(halting) + 1)).backward()
    for k, (h, router) in enumerate(zip(halting, routers.each[1:], strict=True), start=1):
        assert isinstance(router, HaltingRouter)
        assert router.halt.bias.grad is not None
        assert router.halt.bias.grad.item() == pytest.approx(-h * (1 - h) if k < number else 0, abs=1e-5)


class Adds(Block):
    """Adds a number to the features, whatever they are."""

    in_channels = 2

    def __init__(self, amount: float) -> None:
        super().__init__()
        self.amount = amount

    def shortcut(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return x_BCHW

    def run(self, x_BCHW: torch.Tensor, shortcut_BCHW: torch.Tensor) -> torch.Tensor:
        return x_BCHW + self.amount


def test_the_output_of_a_group_is_the_weighted_mean_of_its_blocks_outputs() -> None:
    """Here no block reads the features, so gated features make no difference: outputs are 11, 111 and 1111."""
    routers = routers_of(0.25, 0.5, 0.5)
    x_BCHW, state = FEATURES, routers.start(FEATURES)
    for k, amount in enumerate((10.0, 100.0, 1000.0, 10000.0)):
        x_BCHW, _, _, state = routed_step(Adds(amount), routers.router(k), x_BCHW, state, mass_left, None)
    mean = 0.25 * 11 + 0.5 * 111 + 0.25 * 1111
    assert torch.allclose(x_BCHW, torch.full_like(x_BCHW, mean), rtol=1e-5)


def test_the_loss_by_hand() -> None:
    scores_BN2 = scores_of(routers_of(0.25, 0.5, 0.5)).detach()
    output = RoutedOutput(torch.zeros(1, 3), scores_BN2, mass_left(scores_BN2))
    batch = PathBatch(
        *(output, torch.zeros(1), 1, LossConfig(), torch.tensor(0.2), torch.tensor(1.0)),
        *(torch.ones(4), torch.full((4,), 0.2), 0.1, lambda rows: rows, None),
    )
    found = METHOD.loss(torch.tensor(2.0), batch)
    assert found.loss.item() == pytest.approx(2 + 0.2 * 3.25)
    assert found.cost.item() == pytest.approx(3.25)
    assert (found.consistency, found.diversity, found.decay) == (0, 0, 0)


def test_a_shift_changes_the_sum_at_which_images_halt() -> None:
    routers = routers_of(0.25, 0.5, 0.5)
    assert hard(scores_of(routers), threshold=0.01).tolist() == [[1, 1, 1, 1]]  # up to 0.99 + log(99) / 8
    assert hard(scores_of(routers), threshold=0.9).tolist() == [[1, 1, 0, 0]]
    routers.shift(-0.3 * SCALE)  # halts at 0.69
    scores_BN2 = scores_of(routers)
    assert hard(scores_BN2).tolist() == [[1, 1, 0, 0]]
    assert mass_left(scores_BN2)[0].tolist() == pytest.approx([1, 0.45, 0, 0])
    assert ponder_cost(scores_BN2, torch.ones(4)).item() == pytest.approx(2 + 0.75)
    routers.shift(-100)  # all of them, so that a forced rate of 0 is possible
    assert hard(scores_of(routers)).tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("arch", "firsts"), [("resnet20", (0, 3, 6)), ("resnet32", (0, 5, 10)), ("resnet50", (0, 3, 7, 13))]
)
def test_the_first_block_of_each_group_has_no_halting_unit(arch: str, firsts: tuple[int, ...]) -> None:
    with torch.device("meta"):
        routers = create_model(arch, router="halting").routers
    assert isinstance(routers, HaltingRouters)
    assert routers.always == firsts
    assert tuple(k for k, router in enumerate(routers.each) if isinstance(router, FirstRouter)) == firsts


def test_a_change_of_width_begins_a_group() -> None:
    """Networks that are adopted may have all blocks in one group."""
    assert build_routers("halting", [8, 8, 8, 16, 16, 24], 3, (6,)).always == (0, 2, 4)


def test_an_untrained_network_runs_its_blocks_and_its_halting_units_learn() -> None:
    torch.manual_seed(0)
    model = create_model("resnet20", router="halting", in_channels=1)
    images = torch.randn(8, 1, 12, 12)
    assert model(images).path_BN.all()
    model(images, decide=mass_left).logits_BK.square().sum().backward()
    assert model.routers is not None
    for name, parameter in model.routers.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0
