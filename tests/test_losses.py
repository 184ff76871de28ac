"""The losses on paths: Eq. 8, 9, 11 and 12."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from codinet.errors import UserError
from codinet.losses import Terms, consistency, diversity, expected_cost, score_decay, total

quick = settings(deadline=None, derandomize=True, max_examples=25)
Loss = Callable[..., torch.Tensor]
LOSSES: list[Loss] = [consistency, diversity]
sizes = st.tuples(st.integers(2, 9), st.integers(1, 4), st.integers(1, 60))
margins = st.floats(0, 3)


def draw(sizes: tuple[int, int, int], seed: int, *, coincident: bool = False) -> torch.Tensor:
    """Random relaxed paths; coincident ones repeat images and views, and many are hard."""
    generator = torch.Generator().manual_seed(seed)
    paths_LMN = torch.rand(sizes, generator=generator)
    if coincident:
        paths_LMN[::2] = paths_LMN[0].clone()
        paths_LMN[1::2] = paths_LMN[1::2, :1].clone()
        paths_LMN[:, :, ::3] = paths_LMN[:, :, ::3].round()
    return paths_LMN


def distance(a: list[float], b: list[float]) -> float:
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def centres(paths: list[list[list[float]]]) -> list[list[float]]:
    return [[sum(column) / len(views) for column in zip(*views, strict=True)] for views in paths]


def consistency_by_loops(paths_LMN: torch.Tensor, margin: float) -> float:
    paths = paths_LMN.tolist()
    hinges = []
    for views, centre in zip(paths, centres(paths), strict=True):
        for r in views:
            hinges.append(max(0.0, distance(r, centre) - margin) ** 2)
    return sum(hinges) / len(hinges)


def diversity_by_loops(paths_LMN: torch.Tensor, margin: float) -> float:
    centre = centres(paths_LMN.tolist())
    result = 0.0
    for i in range(len(centre)):
        for j in range(len(centre)):
            if i != j:
                result += max(0.0, margin - distance(centre[i], centre[j])) ** 2
    return result / len(centre) / (len(centre) - 1)


# --- Eq. 8


def test_eq8_worked_by_hand() -> None:
    """Views (0, 0) and (0.6, 0.8): centre (0.3, 0.4), both at distance 0.5, so (0.5 − 0.2)² each."""
    spread = [[0.0, 0.0], [0.6, 0.8]]
    alike = [[1.0, 0.5], [1.0, 0.5]]
    assert consistency(torch.tensor([spread]), margin=0.2).item() == pytest.approx(0.09)
    assert consistency(torch.tensor([spread, alike]), margin=0.2).item() == pytest.approx(0.045)


@quick
@given(sizes=sizes, margin=margins, seed=st.integers(0, 10_000), coincident=st.booleans())
def test_eq8_matches_plain_loops(sizes: tuple[int, int, int], margin: float, seed: int, coincident: bool) -> None:
    paths_LMN = draw(sizes, seed, coincident=coincident)
    expected = consistency_by_loops(paths_LMN, margin)
    assert consistency(paths_LMN, margin=margin).item() == pytest.approx(expected, abs=1e-6)


def test_consistency_is_zero_for_identical_views() -> None:
    paths_LMN = draw((6, 1, 20), 0).expand(6, 3, 20)
    assert consistency(paths_LMN, margin=0.0).item() == 0


def test_consistency_is_zero_within_the_margin() -> None:
    assert consistency(torch.tensor([[[0.0, 0.0], [0.6, 0.8]]]), margin=0.51).item() == 0


# --- Eq. 9


def test_eq9_worked_by_hand() -> None:
    """Centres (0, 0), (0.3, 0.4), (3, 4): distances 0.5, 5, 4.5; of the pairs only the first is within 1."""
    paths_LMN = torch.tensor([[[-1.0, 0.0], [1.0, 0.0]], [[0.3, 0.0], [0.3, 0.8]], [[3.0, 4.0], [3.0, 4.0]]])
    assert diversity(paths_LMN, margin=1.0).item() == pytest.approx(2 * 0.5**2 / 6)


@quick
@given(sizes=sizes, margin=margins, seed=st.integers(0, 10_000), coincident=st.booleans())
def test_eq9_matches_plain_loops(sizes: tuple[int, int, int], margin: float, seed: int, coincident: bool) -> None:
    paths_LMN = draw(sizes, seed, coincident=coincident)
    expected = diversity_by_loops(paths_LMN, margin)
    assert diversity(paths_LMN, margin=margin).item() == pytest.approx(expected, abs=1e-6)


def test_eq9_keeps_its_digits_for_nearly_coincident_paths() -> None:
    base = draw((1, 2, 54), 0).expand(8, 2, 54)
    paths_LMN = base + 1e-4 * draw((8, 2, 54), 1)
    assert diversity(paths_LMN, margin=1e-3).item() == pytest.approx(diversity_by_loops(paths_LMN, 1e-3), rel=1e-4)


def test_diversity_is_the_squared_margin_where_all_paths_coincide() -> None:
    paths_LMN = draw((1, 1, 54), 3).expand(8, 2, 54)
    assert diversity(paths_LMN, margin=0.5).item() == pytest.approx(0.25, abs=1e-9)


def test_diversity_is_zero_past_the_margin() -> None:
    paths_LMN = torch.eye(5)[:, None, :]  # every pair √2 apart
    assert diversity(paths_LMN, margin=1.41).item() == 0


def test_diversity_of_a_single_image_is_zero() -> None:
    assert diversity(torch.rand(1, 2, 9), margin=1.0).item() == 0


class Made(TorchDispatchMode):
    """The number of elements of every tensor that torch computes."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **kwargs or {})
        self.sizes += [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        return result


def test_diversity_and_its_gradient_are_matrix_expressions() -> None:
    """No loop over images, and nothing that holds a path for each pair: that would be L×L×N, 14 million here."""
    seen = {}
    for images in (8, 512):
        paths_LMN = draw((images, 2, 54), 0).requires_grad_()
        with Made() as made:
            diversity(paths_LMN, margin=3.0).backward()
        seen[images] = made.sizes
    assert len(seen[512]) == len(seen[8])
    assert max(seen[512]) == 512 * 512


# --- both


@pytest.mark.parametrize("loss", LOSSES)
@quick
@given(sizes=sizes, seed=st.integers(0, 10_000))
def test_the_order_of_images_views_and_blocks_does_not_matter(
    loss: Loss, sizes: tuple[int, int, int], seed: int
) -> None:
    paths_LMN = draw(sizes, seed)
    margin = 0.8
    expected = loss(paths_LMN, margin=margin)
    for dim, size in enumerate(sizes):
        order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
        shuffled = paths_LMN.index_select(dim, order)
        torch.testing.assert_close(loss(shuffled, margin=margin), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_gradients_are_finite_where_paths_coincide(loss: Loss, margin: float) -> None:
    for paths_LMN in (torch.full((4, 3, 10), 0.3), torch.ones(4, 3, 10), draw((6, 2, 10), 0, coincident=True)):
        leaf = paths_LMN.clone().requires_grad_()
        loss(leaf, margin=margin).backward()
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("margin", [0.3, 1.0])
def test_gradients_are_right_in_double_precision(loss: Loss, margin: float) -> None:
    paths_LMN = draw((5, 3, 7), 1).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda p: loss(p, margin=margin), (paths_LMN,))


def test_a_step_down_either_gradient_does_what_its_name_says() -> None:
    for loss, margin in ((consistency, 0.1), (diversity, 2.0)):
        paths_LMN = draw((6, 3, 12), 5).requires_grad_()
        before = loss(paths_LMN, margin=margin)
        (gradient,) = torch.autograd.grad(before, paths_LMN)
        assert loss(paths_LMN - 0.1 * gradient, margin=margin) < before


# --- Eq. 11 and 12


def test_eq11_worked_by_hand() -> None:
    """(1·0.5 + 0·1 + 1·1.5 + 0.5·0.5 + 0.5·1 + 0·1.5) / 2 = (2 + 0.75) / 2."""
    paths_BN = torch.tensor([[1.0, 0.0, 1.0], [0.5, 0.5, 0.0]])
    assert expected_cost(paths_BN, torch.tensor([0.5, 1.0, 1.5])).item() == pytest.approx(1.375)


@quick
@given(batch=st.integers(1, 8), blocks=st.integers(1, 54), seed=st.integers(0, 1000))
def test_eq11_is_linear_and_bounded_by_the_cost_of_running_all(batch: int, blocks: int, seed: int) -> None:
    paths_BN, costs_N = draw((1, batch, blocks), seed)[0], draw((1, 1, blocks), seed + 1)[0, 0]
    cost = expected_cost(paths_BN, costs_N)
    expected = sum(v * c for row in paths_BN.tolist() for v, c in zip(row, costs_N.tolist(), strict=True)) / batch
    assert cost.item() == pytest.approx(expected, rel=1e-5)
    assert 0 <= cost <= costs_N.sum() + 1e-6
    torch.testing.assert_close(expected_cost(paths_BN / 2, costs_N), cost / 2)


def test_eq12_worked_by_hand() -> None:
    """2 + 0.2·3 + 0.4·5 + 0.01·7."""
    terms = Terms(*map(torch.tensor, (2.0, 3.0, 5.0, 7.0)))
    assert total(terms, alpha=0.2, beta=0.4, gamma=0.01).item() == pytest.approx(4.67)
    assert total(terms, alpha=0.2, beta=0.4, gamma=torch.tensor(0.01)).item() == pytest.approx(4.67)


@quick
@given(values=st.tuples(*[st.floats(0, 10)] * 4), weights=st.tuples(*[st.floats(-1, 1)] * 3))
def test_eq12_weights_each_term_and_passes_gradients_on(
    values: tuple[float, ...], weights: tuple[float, float, float]
) -> None:
    leaves = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    alpha, beta, gamma = weights
    loss = total(Terms(*leaves), alpha=alpha, beta=beta, gamma=gamma)
    assert loss.item() == pytest.approx(sum(v * w for v, w in zip(values, (1, *weights), strict=True)), abs=1e-9)
    loss.backward()
    assert leaves.grad is not None
    assert leaves.grad.tolist() == [1, *weights]


# --- what they refuse


@pytest.mark.parametrize("loss", [consistency, diversity])
@pytest.mark.parametrize(
    "paths",
    [
        None,
        torch.zeros(2, 3),
        torch.zeros(0, 2, 3),
        torch.zeros(2, 0, 3),
        torch.zeros(2, 2, 0),
        torch.ones(2, 2, 3).int(),
    ],
)
def test_paths_are_floats_of_images_views_and_blocks(loss: Any, paths: Any) -> None:
    """The mean over no images was NaN."""
    with pytest.raises(UserError, match="paths must be a tensor of floats, L×M×N and not empty, got"):
        loss(paths, margin=0.2)


@pytest.mark.parametrize("loss", [consistency, diversity])
@pytest.mark.parametrize("margin", [-0.1, float("nan"), float("inf"), 1e300, "1", None])
def test_a_margin_is_not_negative(loss: Any, margin: Any) -> None:
    with pytest.raises(UserError, match=r"margin must be a finite number from 0 to 1e\+06, got"):
        loss(torch.rand(2, 2, 3), margin=margin)


@pytest.mark.parametrize(
    ("paths", "costs", "sentence"),
    [
        (torch.rand(0, 3), torch.rand(3), "paths must be a tensor of floats, B×N and not empty"),
        (torch.rand(2, 3), torch.rand(4), "costs must be a tensor of floats, 3 and not empty, got a tensor of 4"),
        (torch.rand(2, 3), torch.rand(3).double(), "paths and costs must have the same dtype and device"),
        (torch.rand(2, 3), torch.rand(3, device="meta"), "paths and costs must have the same dtype and device"),
    ],
)
def test_costs_belong_to_the_blocks_of_paths(paths: torch.Tensor, costs: torch.Tensor, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        expected_cost(paths, costs)


def test_scores_of_the_decay_are_pairs() -> None:
    for wrong in (torch.rand(2, 3), torch.rand(2, 3, 3), torch.rand(0, 3, 2)):
        with pytest.raises(UserError, match="scores must be a tensor of floats, B×N×2"):
            score_decay(wrong)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"alpha": float("nan")}, "alpha must be a finite number"),
        ({"beta": "1"}, "beta must be a finite number"),
        ({"gamma": torch.zeros(2)}, "gamma must be a tensor of floats"),
        ({"terms": (1, 2, 3, 4)}, "terms must be a `Terms` with the four losses"),
        ({"terms": Terms(*torch.zeros(4, 1))}, "The classification loss must be a tensor of floats"),
    ],
)
def test_weights_and_terms_are_numbers(words: dict[str, Any], sentence: str) -> None:
    good: dict[str, Any] = {"terms": Terms(*torch.zeros(4)), "alpha": 1.0, "beta": 1.0, "gamma": 1.0}
    with pytest.raises(UserError, match=sentence):
        total(**{**good, **words})
