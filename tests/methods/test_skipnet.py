from itertools import product
from math import log

import pytest
import torch
from torch.nn import functional as F

from codinet.methods.skipnet import policy_loss, sample


def test_the_policy_loss_by_hand() -> None:
    scores_BN2 = torch.tensor([[[0.0, 0.0], [0.0, log(3.0)]]])  # run probabilities ½ and ¾
    path_BN, task_B = torch.tensor([[1.0, 0.0]]), torch.tensor([2.0])
    loss = policy_loss(scores_BN2, path_BN, task_B, torch.tensor([1.5, 0.5]), weight=0.1, gamma=torch.tensor(0.2))
    # The first gate answers for its own block, the second one for nothing but the task.
    assert loss.item() == pytest.approx(log(0.5) * (0.1 * 2 + 0.2 * 1.5) + log(0.25) * 0.1 * 2)


def test_its_mean_gradient_is_that_of_the_expected_loss() -> None:
    """Over all paths, weighted by their probabilities, as REINFORCE promises. No block's scores depend on the path."""
    torch.manual_seed(0)
    scores_N2, costs_N = torch.randn(3, 2, requires_grad=True), torch.tensor([0.5, 1.0, 1.5])
    paths_PN = torch.tensor(list(product([0.0, 1.0], repeat=3)))
    task_P, weight, gamma = torch.rand(8) * 3, 0.7, 0.4
    margin_N = scores_N2[:, 1] - scores_N2[:, 0]
    probability_P = F.logsigmoid(torch.where(paths_PN > 0.5, margin_N, -margin_N)).sum(dim=1).exp()
    expected = (probability_P * (weight * task_P + gamma * paths_PN @ costs_N)).sum()
    (wanted,) = torch.autograd.grad(expected, scores_N2, retain_graph=True)
    parts = [
        probability_P[p].detach()
        * policy_loss(
            scores_N2[None], paths_PN[p : p + 1], task_P[p : p + 1], costs_N, weight=weight, gamma=torch.tensor(gamma)
        )
        for p in range(8)
    ]
    (found,) = torch.autograd.grad(torch.stack(parts).sum(), scores_N2)
    assert torch.allclose(found, wanted, atol=1e-5)


def test_decisions_are_sampled_with_the_run_probabilities() -> None:
    torch.manual_seed(0)
    decision_B = sample(torch.tensor([0.0, log(3.0)]).repeat(4000, 1).requires_grad_())
    assert set(decision_B.tolist()) == {0, 1}
    assert decision_B.mean().item() == pytest.approx(0.75, abs=0.03)
    assert not decision_B.requires_grad
