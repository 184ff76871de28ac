"""From scores to decisions: Eq. 5, 6 and 13."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codinet.errors import UserError
from codinet.relaxation import RELAXATIONS, gumbel, hard, margin_limit, run_probability, straight_through

quick = settings(deadline=None, derandomize=True, max_examples=30)
score = st.floats(-20, 20, width=32)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- run_probability and hard


def test_run_probability_is_the_second_element_of_the_softmax() -> None:
    scores_B2 = torch.tensor([[0.0, 0.0], [0.0, math.log(3)], [math.log(4), 0.0]])
    torch.testing.assert_close(run_probability(scores_B2), torch.tensor([0.5, 0.75, 0.2]))


def test_run_probability_takes_any_leading_shape() -> None:
    assert run_probability(torch.zeros(5, 4, 3, 2)).shape == (5, 4, 3)


def test_eq5_hard_is_the_argmax_and_ties_run() -> None:
    scores_B2 = torch.tensor([[1.0, 2.0], [2.0, 1.0], [-3.0, -3.0], [1e30, 1e30]])
    assert hard(scores_B2).tolist() == [1, 0, 1, 1]


@quick
@given(skip=score, run=score)
def test_eq5_hard_agrees_with_argmax_wherever_there_is_one(skip: float, run: float) -> None:
    scores_B2 = torch.tensor([[skip, run]])
    expected = 1 if skip == run else int(scores_B2.argmax())
    assert hard(scores_B2).item() == expected


@pytest.mark.parametrize(("odds", "runs"), [(0.9, 0), (1.0, 1), (1.1, 1)])
def test_eq13_runs_from_a_probability_of_one_half(odds: float, runs: int) -> None:
    assert hard(torch.tensor([[0.0, math.log(odds)]])).item() == runs


@quick
@given(skip=score, run=score, threshold=st.floats(0.01, 0.99))
def test_eq13_hard_runs_iff_the_probability_reaches_the_threshold(skip: float, run: float, threshold: float) -> None:
    probability = 1 / (1 + math.exp(skip - run))
    if abs(probability - threshold) > 1e-6:
        assert hard(torch.tensor([[skip, run]]), threshold=threshold).item() == (probability >= threshold)


@quick
@given(skip=score, run=score)
def test_threshold_0_runs_everything_and_1_nothing(skip: float, run: float) -> None:
    scores_B2 = torch.tensor([[skip, run]])
    assert hard(scores_B2, threshold=0.0).item() == 1
    assert hard(scores_B2, threshold=1.0).item() == 0


@quick
@given(skip=score, run=score, threshold=st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0.01, 0.99)))
def test_the_limit_of_the_margin_is_the_rule_itself(skip: float, run: float, threshold: float) -> None:
    runs = hard(torch.tensor([[skip, run]], dtype=torch.float64), threshold=threshold).item()
    assert runs == (run - skip >= margin_limit(threshold))


def test_a_higher_threshold_never_runs_more() -> None:
    scores_B2 = torch.randn(200, 2, generator=seeded())
    counts = [hard(scores_B2, threshold=t / 10).sum().item() for t in range(11)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 200
    assert counts[-1] == 0


def test_hard_has_no_gradient_and_keeps_the_dtype() -> None:
    scores_B2 = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    decision_B = hard(scores_B2)
    assert not decision_B.requires_grad
    assert decision_B.dtype == torch.float64


NAN, INFINITY = math.nan, math.inf


@pytest.mark.parametrize("threshold", [-1.0, 2.0, NAN, INFINITY, "0.5", None, True, torch.tensor(0.5), 10**400])
def test_a_threshold_is_a_probability(threshold: Any) -> None:
    for function in (margin_limit, lambda t: hard(torch.zeros(1, 2), threshold=t)):
        with pytest.raises(UserError, match="threshold must be a finite number from 0 to 1, got"):
            function(threshold)


@pytest.mark.parametrize("scores", [None, [[0.0, 1.0]], torch.zeros(3), torch.zeros(2, 3), torch.zeros(2, 2).long()])
@pytest.mark.parametrize("function", [run_probability, hard, gumbel, straight_through])
def test_scores_are_pairs_of_floats(function: Callable[..., torch.Tensor], scores: Any) -> None:
    with pytest.raises(UserError, match=r"Router scores must be a float tensor whose last dimension is 2 .*, got"):
        function(scores)


def test_hard_skips_where_scores_are_nan() -> None:
    """Networks and engines refuse such scores; reading every score here would be slow."""
    assert hard(torch.tensor([[0.0, 1.0], [NAN, 0.0], [0.0, NAN]])).tolist() == [1, 0, 0]


def test_hard_takes_margins_that_are_infinite() -> None:
    assert hard(torch.tensor([[0.0, INFINITY], [INFINITY, 0.0], [0.0, -INFINITY]])).tolist() == [1, 0, 0]


# --- gumbel


@pytest.mark.parametrize("relax", RELAXATIONS.values(), ids=RELAXATIONS)
@pytest.mark.parametrize("tau", [0, 0.0, -1.0, 1e-300, NAN, INFINITY, "1", None, False, 10**400])
def test_tau_is_above_zero(relax: Callable[..., torch.Tensor], tau: Any) -> None:
    with pytest.raises(UserError, match="tau must be a finite number of at least 1e-06, got"):
        relax(torch.zeros(4, 2), tau=tau)


@pytest.mark.parametrize("relax", RELAXATIONS.values(), ids=RELAXATIONS)
def test_decisions_are_finite_for_the_smallest_tau_and_large_scores(relax: Callable[..., torch.Tensor]) -> None:
    v = relax(torch.tensor([[-1e30, 1e30], [1e30, -1e30]]), tau=1e-6, generator=seeded())
    assert v.tolist() == [1, 0]


@pytest.mark.parametrize("relax", RELAXATIONS.values(), ids=RELAXATIONS)
def test_a_generator_is_one_of_torch(relax: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(UserError, match=r"generator must be a torch\.Generator, got 3"):
        relax(torch.zeros(4, 2), generator=3)


@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
def test_eq6_gumbel_is_the_softmax_of_noised_scores_over_tau(tau: float) -> None:
    """With Gumbel noise g = −log(e), e exponential: v = 1 / (1 + exp(−(U₁ − U₀ + g₁ − g₀) / τ))."""
    scores = [[0.3, -1.2], [2.0, 0.5]]
    exponential = torch.empty(2, 2).exponential_(generator=seeded(3)).tolist()
    expected = []
    for (u0, u1), (e0, e1) in zip(scores, exponential, strict=True):
        noised = (u1 - math.log(e1)) - (u0 - math.log(e0))
        expected.append(1 / (1 + math.exp(-noised / tau)))
    assert gumbel(torch.tensor(scores), tau=tau, generator=seeded(3)).tolist() == pytest.approx(expected, abs=1e-6)


@settings(quick, max_examples=12)
@given(margin=st.floats(-3, 3), tau=st.floats(0.1, 5), seed=st.integers(0, 1000))
def test_eq6_gumbel_runs_as_often_as_the_softmax_says_at_any_tau(margin: float, tau: float, seed: int) -> None:
    n = 20_000
    v = gumbel(torch.tensor([0.0, margin]).expand(n, 2), tau=tau, generator=seeded(seed))
    p = 1 / (1 + math.exp(-margin))
    assert (v >= 0.5).double().mean().item() == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / n))


def test_gumbel_noise_is_logistic_around_the_margin() -> None:
    """The difference of two Gumbel variables is logistic: τ·logit(v) has quantiles margin + logit(q)."""
    margin, tau, n = 0.7, 2.0, 100_000
    v = gumbel(torch.tensor([0.0, margin]).expand(n, 2).double(), tau=tau, generator=seeded())
    quantiles = torch.tensor([0.1, 0.25, 0.5, 0.75, 0.9], dtype=torch.float64)
    measured = (tau * torch.logit(v)).quantile(quantiles)
    torch.testing.assert_close(measured, margin + torch.logit(quantiles), atol=0.04, rtol=0)


def test_a_small_tau_makes_gumbel_nearly_hard_and_a_large_one_indifferent() -> None:
    scores_B2 = torch.randn(500, 2, generator=seeded())
    cold = gumbel(scores_B2, tau=0.001, generator=seeded(1))
    warm = gumbel(scores_B2, tau=1000.0, generator=seeded(1))
    assert ((cold < 0.01) | (cold > 0.99)).double().mean() > 0.99
    torch.testing.assert_close(warm, torch.full_like(warm, 0.5), atol=0.02, rtol=0)
    assert torch.equal(cold >= 0.5, warm >= 0.5)  # the same noise decides alike at any τ


@pytest.mark.parametrize("relax", RELAXATIONS.values(), ids=RELAXATIONS)
def test_a_generator_reproduces_the_noise_and_each_call_draws_anew(relax: Callable[..., torch.Tensor]) -> None:
    scores_B2 = torch.zeros(64, 2)
    first, again, other = (relax(scores_B2, generator=seeded(s)) for s in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    generator = seeded(5)
    assert not torch.equal(relax(scores_B2, generator=generator), relax(scores_B2, generator=generator))


def test_each_row_gets_noise_of_its_own() -> None:
    assert len(gumbel(torch.zeros(100, 2), generator=seeded()).unique()) == 100


@quick
@given(skip=score, run=score, tau=st.floats(0.1, 5), seed=st.integers(0, 1000))
def test_gumbel_is_finite_and_within_0_and_1(skip: float, run: float, tau: float, seed: int) -> None:
    v = gumbel(torch.tensor([[skip, run]]), tau=tau, generator=seeded(seed))
    assert 0 <= v.item() <= 1


# --- straight-through


@quick
@given(seed=st.integers(0, 10_000), tau=st.floats(0.1, 5))
def test_straight_through_is_exactly_gumbel_rounded(seed: int, tau: float) -> None:
    scores_B2 = torch.randn(256, 2, generator=seeded(seed + 1))
    decision_B = straight_through(scores_B2, tau=tau, generator=seeded(seed))
    soft_B = gumbel(scores_B2, tau=tau, generator=seeded(seed))
    assert torch.equal(decision_B, (soft_B >= 0.5).float())


def test_straight_through_has_the_gradient_of_gumbel() -> None:
    weight_B = torch.randn(16, generator=seeded(9))
    gradients = []
    for relax in (gumbel, straight_through):
        scores_B2 = torch.randn(16, 2, generator=seeded(1)).requires_grad_()
        (weight_B * relax(scores_B2, tau=0.7, generator=seeded(2))).sum().backward()
        assert scores_B2.grad is not None
        gradients.append(scores_B2.grad)
    torch.testing.assert_close(gradients[0], gradients[1])
    assert gradients[0].abs().min() > 0
