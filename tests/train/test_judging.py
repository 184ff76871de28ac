import copy
import math
from dataclasses import replace
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


@pytest.mark.parametrize("budget", [0.3, 0.8])
def test_nudges_go_half_the_way_each_and_come_to_the_budget(
    model: RoutedNetwork, images: Resident, budget: float
) -> None:
    judged, trained = copy.deepcopy(model), copy.deepcopy(model)
    judge = Judge(block_costs(model, (3, 8, 8)), CPU, World())
    gaps = []
    for _ in range(12):
        plain = judge.evaluate(judged, images)
        gaps.append(abs(plain.cost_share - budget))
        judge.nudge(judged, trained, plain, budget)
    assert gaps[1] > 0.2 * gaps[0]  # not all at once
    assert gaps[-1] < 0.02
    for one, other in zip(judged.parameters(), trained.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_worked_example_of_a_nudge(model: RoutedNetwork, images: Resident) -> None:
    table = block_costs(model, (3, 8, 8))
    judged, judge = copy.deepcopy(model), Judge(table, CPU, World())
    plain = judge.evaluate(judged, images)
    # All run with a probability of 0.9, whose logit is log 9, but the first block's half of the images with 0.6.
    probability_TN = torch.full_like(plain.paths.run_probability_TN, 0.9)
    probability_TN[:30, 0] = 0.6
    path_TN = torch.ones_like(plain.paths.path_TN)
    before = replace(
        plain, cost_share=1.0, paths=plain.paths._replace(run_probability_TN=probability_TN, path_TN=path_TN)
    )
    path_TN[:30, 0] = 0
    biases = [p[1].item() for name, p in judged.named_parameters() if name.endswith("out.bias")]
    judge.nudge(judged, judged, before, table.share(path_TN).mean().item())
    after = [p[1].item() for name, p in judged.named_parameters() if name.endswith("out.bias")]
    (moved,) = {round(now - was, 5) for was, now in zip(biases, after, strict=True)}
    assert -math.log(9) / 2 < moved < -math.log(1.5) / 2


def test_a_budget_that_is_met_moves_nothing(model: RoutedNetwork, images: Resident) -> None:
    judge = Judge(block_costs(model, (3, 8, 8)), CPU, World())
    plain = judge.evaluate(model, images)
    judged, budget = copy.deepcopy(model), plain.cost_share + 0.003
    judge.calibrate(judged, judged, images, budget)
    judge.nudge(judged, judged, plain, budget)
    assert all(torch.equal(one, other) for one, other in zip(judged.parameters(), model.parameters(), strict=True))
