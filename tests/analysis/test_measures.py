import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codinet.analysis.measures import (
    KL_EDGES,
    PearsonSums,
    accuracy_by_blocks,
    blocks_changed,
    class_block_rates,
    correlate,
    easiest_first,
    entropy_bits,
    expected_blocks,
    histogram,
    images_of_top_paths,
    kl_divergence,
    kl_summary,
    mean_by_kind,
    pair_similarities,
    path_counts,
    random_pairs,
    same_path,
    swap_partners,
    swapped_accuracy,
)
from codinet.cost import CostTable
from codinet.evaluate import summarise
from codinet.records import PathTable

A, B = [1, 0], [0, 1]


def test_same_path_and_blocks_changed() -> None:
    path = torch.tensor([[1, 0, 1], [1, 1, 1], [0, 0, 0]], dtype=torch.uint8)
    other = torch.tensor([[1, 0, 1], [1, 0, 1], [1, 1, 1]], dtype=torch.uint8)
    assert same_path(path, path).tolist() == [True] * 3
    assert same_path(path, other).tolist() == [True, False, False]
    assert blocks_changed(path, other).tolist() == [0, 1, 3]


def test_identical_predictions_have_divergence_0() -> None:
    logits = torch.randn(50, 10, generator=torch.Generator().manual_seed(0)) * 30
    assert (kl_divergence(logits, logits) == 0).all()
    assert kl_divergence(logits, logits + 7).abs().max() < 1e-12  # the same prediction


def test_divergence_of_a_worked_example() -> None:
    p, q = [0.5, 0.25, 0.25], [0.25, 0.5, 0.25]
    expected = 0.5 * math.log(2) - 0.25 * math.log(2)
    assert kl_divergence(torch.tensor([p]).log(), torch.tensor([q]).log()).item() == pytest.approx(expected, abs=1e-7)


def test_divergence_matches_torch() -> None:
    chance = torch.Generator().manual_seed(2)
    a, b = torch.randn(20, 5, generator=chance).double(), torch.randn(20, 5, generator=chance).double()
    theirs = torch.nn.functional.kl_div(b.log_softmax(1), a.log_softmax(1), log_target=True, reduction="none").sum(1)
    torch.testing.assert_close(kl_divergence(a, b), theirs)


@given(st.lists(st.floats(-50, 50), min_size=3, max_size=3), st.lists(st.floats(-50, 50), min_size=3, max_size=3))
def test_divergence_is_finite_and_not_negative(a: list[float], b: list[float]) -> None:
    value = kl_divergence(torch.tensor([a]), torch.tensor([b])).item()
    assert math.isfinite(value)
    assert value >= 0


def test_mean_by_kind() -> None:
    values = torch.tensor([1.0, 0.0, 1.0, 1.0])
    kinds = mean_by_kind(values, torch.tensor([0, 0, 2, 2], dtype=torch.uint8), ("crop", "flip", "turn"))
    assert kinds == {"crop": {"pairs": 2, "mean": 0.5}, "turn": {"pairs": 2, "mean": 1.0}}
    assert sum(kind["pairs"] * kind["mean"] for kind in kinds.values()) == values.sum()


def test_histogram_bins_include_their_lower_edge() -> None:
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 99.0, 2.5, 0.25])
    assert histogram(values, [0, 1, 2]).tolist() == [3 / 8, 2 / 8, 3 / 8]
    assert histogram(values[:0], [0, 1, 2]).tolist() == [0, 0, 0]


def test_kl_summary() -> None:
    assert list(KL_EDGES) == sorted(KL_EDGES)
    figures = kl_summary(torch.tensor([0.0, 0.5], dtype=torch.float64), torch.tensor([0, 0]), ("crop",))
    assert figures["mean"] == 0.25
    assert sum(figures["histogram"]["shares"]) == 1
    assert len(figures["histogram"]["shares"]) == len(figures["histogram"]["edges"])


def test_swap_partners_of_small_groups() -> None:
    assert swap_partners(torch.tensor([0, 0]), seed=0).tolist() == [1, 0]
    assert swap_partners(torch.tensor([7, 3, 7, 3, 5]), seed=0).tolist() == [2, 3, 0, 1, 4]  # the last is alone
    assert swap_partners(torch.tensor([4]), seed=0).tolist() == [0]


def test_swap_partners_depend_on_the_seed() -> None:
    label_T = torch.zeros(50, dtype=torch.int64)
    assert torch.equal(swap_partners(label_T, seed=1), swap_partners(label_T, seed=1))
    assert not torch.equal(swap_partners(label_T, seed=1), swap_partners(label_T, seed=2))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(0, 99), st.booleans())
def test_swap_partners_are_a_permutation_without_fixed_points(labels: list[int], seed: int, within: bool) -> None:
    label_T = torch.tensor(labels)
    group_T = label_T if within else torch.zeros_like(label_T)
    partner_T = swap_partners(group_T, seed=seed)
    path_TN = torch.randint(0, 2, (len(labels), 4), generator=torch.Generator().manual_seed(seed))
    assert sorted(path_TN[partner_T].tolist()) == sorted(path_TN.tolist())
    assert sorted(partner_T.tolist()) == list(range(len(labels)))
    assert torch.equal(group_T[partner_T], group_T)
    alone_T = (group_T[:, None] == group_T).sum(dim=1) == 1
    assert torch.equal(partner_T == torch.arange(len(labels)), alone_T)


def test_swapped_accuracy_of_a_worked_example() -> None:
    """Images 0 and 1 swap different paths: 0 becomes wrong, 1 becomes right. Images 2 and 3 swap equal paths."""
    calls = []

    def predict(image_I: torch.Tensor, path_IN: torch.Tensor) -> torch.Tensor:
        calls.append((image_I.tolist(), path_IN.tolist()))
        return torch.tensor([9, 1])

    path_TN = torch.tensor([A, B, A, A], dtype=torch.uint8)
    label_T, partner_T = torch.tensor([0, 1, 2, 3]), torch.tensor([1, 0, 3, 2])
    assert swapped_accuracy(path_TN, torch.tensor([0, 9, 2, 9]), label_T, partner_T, predict) == 50
    assert swapped_accuracy(path_TN, torch.tensor([0, 9, 2, 3]), label_T, partner_T, predict) == 75
    assert calls == [([0, 1], [B, A])] * 2


def test_swapped_accuracy_with_a_single_path_runs_nothing() -> None:
    def predict(_image_I: torch.Tensor, _path_IN: torch.Tensor) -> torch.Tensor:
        pytest.fail("was run")

    label_T = torch.tensor([0, 1, 1])
    own_T = torch.tensor([0, 1, 0])
    accuracy = swapped_accuracy(torch.tensor([A] * 3), own_T, label_T, swap_partners(label_T, seed=0), predict)
    assert accuracy == pytest.approx(200 / 3)
    assert own_T.tolist() == [0, 1, 0]


def random_rows(rows: int = 30, columns: int = 7, seed: int = 0) -> torch.Tensor:
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed))


def by_numpy(path: torch.Tensor, feature: torch.Tensor) -> float:
    """The definition: cosines of all pairs, then numpy's correlation coefficient."""

    def cosines(x: np.ndarray) -> np.ndarray:
        unit = x / np.linalg.norm(x, axis=1, keepdims=True)
        return (unit @ unit.T)[np.triu_indices(len(x), 1)]

    return float(np.corrcoef(cosines(path.double().numpy()), cosines(feature.double().numpy()))[0, 1])


def test_a_linear_relation_has_correlation_1() -> None:
    x = torch.linspace(0.1, 0.9, 50)
    assert PearsonSums().add(x, 0.5 * x + 0.2).pcc() == pytest.approx(1)
    assert PearsonSums().add(x, 1 - 2 * x).pcc() == pytest.approx(-1)
    assert PearsonSums().add(x[:20], x[:20]).add(x[20:], x[20:]).pcc() == pytest.approx(1)


def test_paths_equal_to_features_have_correlation_1() -> None:
    found = correlate(random_rows(), random_rows() * 5, seed=0)
    assert found.pcc == pytest.approx(1, abs=1e-5)
    assert found.pairs == 30 * 29 // 2
    assert found.every_pair


@pytest.mark.parametrize("rows", [2, 30, 1100])  # the last one needs three chunks of rows
def test_correlation_of_all_pairs_matches_numpy(rows: int) -> None:
    path, feature = random_rows(rows, 5, 1), random_rows(rows, 4, 2) + 0.3 * random_rows(rows, 5, 1)[:, :4]
    found = correlate(path, feature, seed=0)
    assert found.pairs == rows * (rows - 1) // 2
    if rows > 2:
        assert found.pcc == pytest.approx(by_numpy(path, feature), abs=2e-4)


def test_sampled_pairs_approximate_all_pairs() -> None:
    path, feature = random_rows(400, 6, 1), random_rows(400, 6, 1) + 0.3 * random_rows(400, 6, 2)
    whole = correlate(path, feature, seed=0)
    part = correlate(path, feature, seed=0, all_pairs_limit=1000, sampled=150_000)
    assert not part.every_pair
    assert part.pairs == 150_000
    assert part.pcc == pytest.approx(whole.pcc, abs=0.02)
    assert part == correlate(path, feature, seed=0, all_pairs_limit=1000, sampled=150_000)
    assert part != correlate(path, feature, seed=1, all_pairs_limit=1000, sampled=150_000)


def test_equal_paths_have_no_correlation() -> None:
    assert correlate(torch.ones(20, 9), random_rows(20), seed=0).pcc is None
    assert correlate(random_rows(1), random_rows(1), seed=0) == (None, 0, True)


def test_an_empty_path_has_similarity_0() -> None:
    path = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    found, _ = pair_similarities(path, path, seed=0, pairs=200)
    assert found.isfinite().all()
    assert sorted({round(value, 3) for value in found.tolist()}) == [0.0, 0.707]


def test_random_pairs_are_two_different_images() -> None:
    i, j = random_pairs(5, 2000, seed=0)
    assert (i != j).all()
    assert len(torch.unique(i * 5 + j)) == 20
    assert [len(places) for places in random_pairs(1, 10, seed=0)] == [0, 0]


def table() -> PathTable:
    """Six images, two classes, three blocks."""
    path_TN = torch.tensor([[1, 0, 0], [1, 1, 1], [1, 0, 0], [0, 1, 1], [1, 0, 0], [1, 1, 1]], dtype=torch.uint8)
    return PathTable(
        path_TN=path_TN,
        run_probability_TN=path_TN.float() * 0.5 + 0.25,
        label_T=torch.tensor([0, 0, 0, 1, 1, 1]),
        prediction_T=torch.tensor([0, 1, 0, 1, 1, 1]),
        confidence_T=torch.tensor([0.9, 0.8, 0.99, 0.7, 0.6, 0.5]),
        macs_T=path_TN.double().sum(dim=1),
    )


def test_class_block_rates_of_a_worked_example() -> None:
    third = 1 / 3
    rates = class_block_rates(table(), 3)
    assert rates[:2].tolist() == [[1, pytest.approx(third), pytest.approx(third)], pytest.approx([2 / 3] * 3)]
    assert rates[2].isnan().all()  # a class without images


def test_paths_are_counted_most_common_first() -> None:
    counts = path_counts(table().path_TN)
    assert counts.path_PN.tolist()[0] == [1, 0, 0]
    assert counts.count_P.tolist() == [3, 2, 1]
    assert torch.equal(counts.path_PN[counts.index_T], table().path_TN)


def test_entropy_of_known_distributions() -> None:
    assert entropy_bits(torch.tensor([7])) == 0
    assert entropy_bits(torch.tensor([5, 5, 5, 5])) == pytest.approx(2)
    assert entropy_bits(torch.tensor([3, 2, 1])) == pytest.approx(
        -(0.5 * math.log2(0.5) + 1 / 3 * math.log2(1 / 3) + 1 / 6 * math.log2(1 / 6))
    )


def test_usage_matches_the_evaluation() -> None:
    costs = CostTable((1, 1, 1), (0, 0, 0), (0, 0, 0), 0, image_shape=(1, 8, 8), paper_unit=2)
    evaluation = summarise(table(), costs, loss=0.0)
    counts = path_counts(table().path_TN)
    assert len(counts.count_P) == evaluation.distinct_paths
    assert entropy_bits(counts.count_P) == pytest.approx(evaluation.path_entropy)
    rows = accuracy_by_blocks(table())
    assert sum(row["images"] for row in rows) == evaluation.n
    assert sum(row["images"] * row["accuracy"] for row in rows) / 6 == pytest.approx(evaluation.accuracy)
    assert sum(row["images"] * row["blocks"] for row in rows) / 6 == pytest.approx(evaluation.mean_blocks)


def test_easiest_images_have_few_blocks_and_high_confidence() -> None:
    assert easiest_first(table()).tolist() == [2, 0, 4, 3, 1, 5]


def test_accuracy_by_blocks_of_a_worked_example() -> None:
    assert accuracy_by_blocks(table()) == [
        {"blocks": 1, "images": 3, "accuracy": 100.0},
        {"blocks": 2, "images": 1, "accuracy": 100.0},
        {"blocks": 3, "images": 2, "accuracy": 50.0},
    ]


def test_images_of_top_paths_are_spread_over_the_set() -> None:
    paths, images = 2, 2
    groups = images_of_top_paths(path_counts(table().path_TN), paths=paths, images=images)
    assert [group.tolist() for group in groups] == [[0, 4], [1, 5]]
    assert [group.tolist() for group in images_of_top_paths(path_counts(table().path_TN), paths=9, images=9)][2] == [3]


def test_expected_blocks_are_the_sum_of_probabilities() -> None:
    assert expected_blocks(torch.tensor([[0.5, 0.25, 1.0]])).tolist() == [1.75]
