import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codinet.analysis.consistency import (
    KL_EDGES,
    blocks_changed,
    by_kind,
    divergence,
    kl_figures,
    same_path,
    shares,
)


def test_identical_paths_are_the_same_and_one_block_makes_a_difference() -> None:
    path = torch.tensor([[1, 0, 1], [1, 1, 1], [0, 0, 0]], dtype=torch.uint8)
    other = torch.tensor([[1, 0, 1], [1, 0, 1], [1, 1, 1]], dtype=torch.uint8)
    assert same_path(path, path).tolist() == [True] * 3
    assert same_path(path, other).tolist() == [True, False, False]
    assert blocks_changed(path, other).tolist() == [0, 1, 3]


def test_identical_predictions_have_no_divergence() -> None:
    logits = torch.randn(50, 10, generator=torch.Generator().manual_seed(0)) * 30
    assert (divergence(logits, logits) == 0).all()
    assert divergence(logits, logits + 7).abs().max() < 1e-12  # a shift of all logits is the same prediction


def test_divergence_of_a_worked_example() -> None:
    p, q = [0.5, 0.25, 0.25], [0.25, 0.5, 0.25]
    expected = 0.5 * math.log(2) - 0.25 * math.log(2)
    assert divergence(torch.tensor([p]).log(), torch.tensor([q]).log()).item() == pytest.approx(expected, abs=1e-7)


def test_divergence_is_torchs_own() -> None:
    chance = torch.Generator().manual_seed(2)
    a, b = torch.randn(20, 5, generator=chance).double(), torch.randn(20, 5, generator=chance).double()
    theirs = torch.nn.functional.kl_div(b.log_softmax(1), a.log_softmax(1), log_target=True, reduction="none").sum(1)
    torch.testing.assert_close(divergence(a, b), theirs)


@given(st.lists(st.floats(-50, 50), min_size=3, max_size=3), st.lists(st.floats(-50, 50), min_size=3, max_size=3))
def test_divergence_is_finite_and_not_negative(a: list[float], b: list[float]) -> None:
    value = divergence(torch.tensor([a]), torch.tensor([b])).item()
    assert math.isfinite(value)
    assert value >= 0


def test_means_by_kind_weigh_back_to_the_whole() -> None:
    values = torch.tensor([1.0, 0.0, 1.0, 1.0])
    kinds = by_kind(values, torch.tensor([0, 0, 2, 2], dtype=torch.uint8), ("crop", "flip", "turn"))
    assert kinds == {"crop": {"pairs": 2, "mean": 0.5}, "turn": {"pairs": 2, "mean": 1.0}}
    assert sum(kind["pairs"] * kind["mean"] for kind in kinds.values()) == values.sum()


def test_shares_are_numpys_histogram() -> None:
    values = torch.rand(500, generator=torch.Generator().manual_seed(0)).double() * 12
    values[:3] = torch.tensor([0.0, 1.0, 10.0])  # on edges: they belong to the bin that they begin
    counts, _ = np.histogram(values.numpy(), [*KL_EDGES, np.inf])
    assert shares(values, KL_EDGES).tolist() == pytest.approx(counts / 500)


def test_edges_grow_and_figures_are_plain() -> None:
    assert list(KL_EDGES) == sorted(KL_EDGES)
    figures = kl_figures(torch.tensor([0.0, 0.5], dtype=torch.float64), torch.tensor([0, 0]), ("crop",))
    assert figures["mean"] == 0.25
    assert sum(figures["histogram"]["shares"]) == 1
    assert len(figures["histogram"]["shares"]) == len(figures["histogram"]["edges"])
