from collections.abc import Callable

import numpy as np
import pytest
import torch

from codinet.analysis.embedding import choose, pca, tsne
from codinet.errors import UserError


def random_rows(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed))


def test_pca_matches_numpys_svd() -> None:
    x = random_rows(40, 9) * torch.linspace(1, 3, 9)
    found, share = pca(x)
    centred = x.double().numpy() - x.double().numpy().mean(axis=0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    theirs = left[:, :2] * values[:2]
    assert np.abs(found.numpy()) == pytest.approx(np.abs(theirs), abs=1e-5)  # up to the sign of an axis
    assert share.tolist() == pytest.approx((values**2 / (values**2).sum())[:2])


def test_pca_of_points_on_a_line_preserves_distances() -> None:
    steps = torch.tensor([0.0, 1.0, 4.0, 6.0])
    found, share = pca(steps[:, None] * torch.tensor([[0.6, 0.8, 0.0]]))
    assert (found[:, 0] - found[0, 0]).abs().tolist() == pytest.approx(steps.tolist(), abs=1e-6)
    assert found[:, 1].abs().max() < 1e-6
    assert share.tolist() == pytest.approx([1, 0], abs=1e-9)


def test_pca_has_a_fixed_sign() -> None:
    x = random_rows(30, 5)
    assert torch.allclose(pca(x)[0], pca(torch.cat([x, x]))[0][:30], atol=1e-5)


def test_pca_of_one_path_and_of_one_block() -> None:
    found, share = pca(torch.ones(6, 4))
    assert found.abs().max() == 0
    assert share.tolist() == [0, 0]
    assert pca(random_rows(6, 1))[0].shape == (6, 2)


def test_tsne_separates_clusters_and_is_reproducible() -> None:
    x = torch.cat([random_rows(25, 6) * 0.01, random_rows(25, 6, 1) * 0.01 + 1])
    found = tsne(x, seed=0)
    assert found is not None
    assert torch.equal(found, tsne(x, seed=0))  # type: ignore[arg-type]
    distance = torch.cdist(found, found)
    assert distance[:25, :25].max() < distance[:25, 25:].min()


def test_tsne_of_too_few_distinct_rows_is_none() -> None:
    assert tsne(torch.ones(50, 4), seed=0) is None
    assert tsne(random_rows(4, 3), seed=0) is None
    assert tsne(torch.eye(2).repeat(10, 1), seed=0) is None


def test_tsne_without_scikit_learn(hide_package: Callable[[str], None]) -> None:
    hide_package("sklearn")
    with pytest.raises(UserError, match=r"pip install scikit-learn.*--no-tsne"):
        tsne(random_rows(20, 3), seed=0)


def test_choose_is_seeded_and_sorted() -> None:
    assert choose(5, 9, seed=0).tolist() == [0, 1, 2, 3, 4]
    chosen = choose(100, 10, seed=0)
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert len(chosen) == 10
    assert torch.equal(chosen, choose(100, 10, seed=0))
    assert not torch.equal(chosen, choose(100, 10, seed=1))
