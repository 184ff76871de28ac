import copy
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codinet.bench.drawn import settle, with_run_rate
from codinet.cost import block_costs
from codinet.data.resident import Resident
from codinet.evaluate import evaluate
from codinet.model import RoutedNetwork, create_model
from codinet.relaxation import hard
from codinet.train import judging
from codinet.train.distributed import World
from codinet.train.judging import Judge, join

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def images() -> Resident:
    random = torch.Generator().manual_seed(0)
    images_NCHW = torch.randint(0, 256, (60, 3, 8, 8), dtype=torch.uint8, generator=random)
    return Resident(images_NCHW, torch.arange(60) % 10, torch.full((3,), 128.0), torch.full((3,), 74.0))


@pytest.fixture(scope="module")
def model(images: Resident) -> RoutedNetwork:
    """Which runs each block for half of the images."""
    torch.manual_seed(0)
    ((images_NCHW, _),) = images.batches(60)
    return with_run_rate(settle(create_model("resnet20"), images_NCHW), images_NCHW, 0.5)


@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(1, 59), max_size=4, unique=True))
def test_evaluations_of_parts_are_that_of_the_whole(model: RoutedNetwork, images: Resident, cuts: list[int]) -> None:
    table = block_costs(model, (3, 8, 8))
    ((images_NCHW, labels_N),) = images.batches(60)
    ends = [0, *sorted(cuts), 60]
    parts = [evaluate(model, [(images_NCHW[low:high], labels_N[low:high])], table) for low, high in pairwise(ends)]
    joined, whole = join(parts, table).summary(), evaluate(model, [(images_NCHW, labels_N)], table).summary()
    assert joined == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("budget", [0.3, 0.8])
def test_both_networks_are_shifted_until_the_judged_one_costs_its_budget(
    model: RoutedNetwork, images: Resident, budget: float
) -> None:
    judged, trained = copy.deepcopy(model).train(), copy.deepcopy(model)
    judge = Judge(block_costs(model, (3, 8, 8)), CPU, World())
    judge.calibrate(judged, trained, images, budget)
    assert judged.training  # as it was
    assert judge.evaluate(judged.eval(), images).cost_share == pytest.approx(budget, abs=0.02)
    for one, other in zip(judged.parameters(), trained.parameters(), strict=True):
        assert torch.equal(one, other)


def test_no_threshold_is_looked_at_twice(
    model: RoutedNetwork, images: Resident, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    usual = hard

    def look(scores_B2: torch.Tensor, *, threshold: float) -> torch.Tensor:
        looks.append(threshold)
        return usual(scores_B2, threshold=threshold)

    monkeypatch.setattr(judging, "hard", look)
    judged = copy.deepcopy(model)
    Judge(block_costs(model, (3, 8, 8)), CPU, World()).calibrate(judged, judged, images, 0.3)
    assert len(set(looks)) > 1
    assert len(looks) == len(set(looks)) * len(model.blocks)  # of one batch: once for each block


def test_a_budget_that_is_met_moves_nothing(model: RoutedNetwork, images: Resident) -> None:
    judge = Judge(block_costs(model, (3, 8, 8)), CPU, World())
    budget = judge.evaluate(model, images).cost_share + 0.003
    judged = copy.deepcopy(model)
    judge.calibrate(judged, judged, images, budget)
    assert all(torch.equal(one, other) for one, other in zip(judged.parameters(), model.parameters(), strict=True))
