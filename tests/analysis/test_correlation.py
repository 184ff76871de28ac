import numpy as np
import pytest
import torch

from codinet.analysis.correlation import Moments, correlate, random_pairs, similarities


def some(rows: int = 30, columns: int = 7, seed: int = 0) -> torch.Tensor:
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed))


def by_numpy(path: torch.Tensor, feature: torch.Tensor) -> float:
    """The definition: cosines of all pairs by loops, then numpy's coefficient."""

    def cosines(x: np.ndarray) -> list[float]:
        unit = x / np.linalg.norm(x, axis=1, keepdims=True)
        return [float(unit[i] @ unit[j]) for i in range(len(x)) for j in range(i + 1, len(x))]

    return float(np.corrcoef(cosines(path.double().numpy()), cosines(feature.double().numpy()))[0, 1])


def test_a_linear_relation_correlates_fully() -> None:
    x = torch.linspace(0.1, 0.9, 50)
    assert Moments().add(x, 0.5 * x + 0.2).pcc() == pytest.approx(1)
    assert Moments().add(x, 1 - 2 * x).pcc() == pytest.approx(-1)
    assert Moments().add(x[:20], x[:20]).add(x[20:], x[20:]).pcc() == pytest.approx(1)


def test_paths_that_are_the_features_correlate_fully() -> None:
    found = correlate(some(), some() * 5, seed=0)
    assert found.pcc == pytest.approx(1, abs=1e-5)
    assert found.pairs == 30 * 29 // 2
    assert found.every_pair


@pytest.mark.parametrize("rows", [2, 30, 1100])  # the last spans three blocks of rows
def test_every_pair_is_the_definition(rows: int) -> None:
    path, feature = some(rows, 5, 1), some(rows, 4, 2) + 0.3 * some(rows, 5, 1)[:, :4]
    found = correlate(path, feature, seed=0)
    assert found.pairs == rows * (rows - 1) // 2
    if rows > 2:
        assert found.pcc == pytest.approx(by_numpy(path, feature), abs=2e-4)


def test_many_images_are_sampled_by_seed_and_near_the_truth() -> None:
    path, feature = some(400, 6, 1), some(400, 6, 1) + 0.3 * some(400, 6, 2)
    whole = correlate(path, feature, seed=0)
    part = correlate(path, feature, seed=0, every_pair_up_to=1000, sampled=150_000)
    assert not part.every_pair
    assert part.pairs == 150_000
    assert part.pcc == pytest.approx(whole.pcc, abs=0.02)
    assert part == correlate(path, feature, seed=0, every_pair_up_to=1000, sampled=150_000)
    assert part != correlate(path, feature, seed=1, every_pair_up_to=1000, sampled=150_000)


def test_a_collapsed_network_has_no_correlation() -> None:
    assert correlate(torch.ones(20, 9), some(20), seed=0).pcc is None
    assert correlate(some(1), some(1), seed=0) == (None, 0, True)


def test_an_image_that_runs_nothing_is_similar_to_nothing() -> None:
    path = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    found, _ = similarities(path, path, seed=0, pairs=200)
    assert found.isfinite().all()
    assert sorted({round(value, 3) for value in found.tolist()}) == [0.0, 0.707]


def test_pairs_are_of_two_different_images() -> None:
    i, j = random_pairs(5, 2000, seed=0)
    assert (i != j).all()
    assert len(torch.unique(i * 5 + j)) == 20
    assert [len(places) for places in random_pairs(1, 10, seed=0)] == [0, 0]
