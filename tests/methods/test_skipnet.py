from itertools import product
from math import log

import pytest
import torch
from torch.nn import functional as F

from codinet.config import RunConfig
from codinet.methods.skipnet import METHOD, policy_loss, sample
from codinet.resolving import resolve
from codinet.routers import RNNRouters


def test_the_policy_loss_by_hand() -> None:
    scores_BN2 = torch.tensor([[[0.0, 0.0], [0.0, log(3.0)]]])  # run probabilities ½ and ¾
    path_BN, task_B = torch.tensor([[1.0, 0.0]]), torch.tensor([2.0])
    costs_N, gamma = torch.tensor([1.5, 0.5]), torch.tensor(0.2)
    loss = policy_loss(scores_BN2, path_BN, task_B, costs_N, weight=0.1, gamma=gamma)
    # The first gate answers for its own block, the second one for nothing but the task.
    first, second = 0.1 * 2 + 0.2 * 1.5, 0.1 * 2
    assert loss.item() == pytest.approx(log(0.5) * first + log(0.25) * second)

    # A second image runs the second block only, with a task loss of 1. Each is compared with the other.
    both = scores_BN2.expand(2, 2, 2), torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([2.0, 1.0])
    first, second = first - (0.1 * 1 + 0.2 * 0.5), second - (0.1 * 1 + 0.2 * 0.5)
    expected = log(0.5) * first + log(0.25) * second - log(0.5) * first - log(0.75) * second
    assert policy_loss(*both, costs_N, weight=0.1, gamma=gamma).item() == pytest.approx(expected / 2)


def test_its_mean_gradient_is_that_of_the_expected_loss() -> None:
    """Over all pairs of paths, weighted by their probabilities, as REINFORCE promises. No scores depend on the path."""
    torch.manual_seed(0)
    scores_N2, costs_N = torch.randn(3, 2, requires_grad=True), torch.tensor([0.5, 1.0, 1.5])
    paths_PN = torch.tensor(list(product([0.0, 1.0], repeat=3)))
    task_P, weight, gamma = torch.rand(8) * 3, 0.7, 0.4
    margin_N = scores_N2[:, 1] - scores_N2[:, 0]
    probability_P = F.logsigmoid(torch.where(paths_PN > 0.5, margin_N, -margin_N)).sum(dim=1).exp()
    expected = (probability_P * (weight * task_P + gamma * paths_PN @ costs_N)).sum()
    (wanted,) = torch.autograd.grad(expected, scores_N2, retain_graph=True)
    parts = [
        probability_P[pair].prod().detach()
        * policy_loss(
            scores_N2.expand(2, 3, 2), paths_PN[pair], task_P[pair], costs_N, weight=weight, gamma=torch.tensor(gamma)
        )
        for pair in map(list, product(range(8), repeat=2))
    ]
    (found,) = torch.autograd.grad(torch.stack(parts).sum(), scores_N2)
    assert torch.allclose(found, wanted, atol=1e-5)


def test_what_all_images_have_in_common_has_no_gradient() -> None:
    """Paths of the same cost and equal losses say nothing about the decisions, whatever γ is."""
    scores_BN2 = torch.randn(4, 5, 2, requires_grad=True)
    path_BN, task_B = torch.ones(4, 5), torch.full((4,), 3.0)
    loss = policy_loss(scores_BN2, path_BN, task_B, torch.rand(5), weight=1, gamma=torch.tensor(100.0))
    assert loss.item() == pytest.approx(0, abs=1e-3)


def test_the_recurrent_gate_learns_from_the_mean_over_its_blocks() -> None:
    routers, features_BCHW = RNNRouters([4] * 5), torch.randn(2, 4, 3, 3)

    def scores_and_gradient() -> tuple[torch.Tensor, torch.Tensor]:
        state, scores = routers.start(features_BCHW), []
        for k in range(5):
            scores_B2, state = routers.router(k)(features_BCHW, state)
            scores.append(scores_B2)
        (gradient,) = torch.autograd.grad(torch.stack(scores).square().sum(), routers.lstm.weight_hh)
        return torch.stack(scores).detach(), gradient

    scores, total = scores_and_gradient()
    stage = METHOD.stages(resolve(RunConfig("digits", method="skipnet")))[0]
    METHOD.begin_epoch(stage, 0, routers)
    same, mean = scores_and_gradient()
    assert torch.equal(same, scores)
    torch.testing.assert_close(mean, total / 5)


def test_decisions_are_sampled_with_the_run_probabilities() -> None:
    torch.manual_seed(0)
    decision_B = sample(torch.tensor([0.0, log(3.0)]).repeat(4000, 1).requires_grad_())
    assert set(decision_B.tolist()) == {0, 1}
    assert decision_B.mean().item() == pytest.approx(0.75, abs=0.03)
    assert not decision_B.requires_grad
