from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

from codinet.analysis.features import BATCH, collect_outputs, load_features, no_progress
from codinet.errors import UserError
from codinet.records import RoutedOutput

ROWS = np.arange(12, dtype=np.float64).reshape(4, 3)


class Toy(nn.Module):
    """Two blocks: the first runs if the image's mean is positive, the second always."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 3)

    def forward(self, images_BCHW: torch.Tensor, *, force: torch.Tensor | None = None) -> RoutedOutput:
        mean_B = images_BCHW.mean(dim=(1, 2, 3))
        scores_BN2 = torch.stack(
            [torch.stack([-mean_B, mean_B], 1), torch.tensor([[0.0, 9.0]]).expand(len(mean_B), 2)], 1
        )
        features_B2 = torch.stack([mean_B, mean_B**2], dim=1)
        path_BN = (scores_BN2[..., 1] >= scores_BN2[..., 0]).float() if force is None else force
        return RoutedOutput(self.fc(features_B2), scores_BN2, path_BN)


def random_images(number: int) -> torch.Tensor:
    return torch.randn(number, 1, 4, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("threads", [1, 3])
def test_outputs_are_complete_and_in_order(threads: int) -> None:
    toy, x = Toy(), random_images(2 * BATCH + 7)
    seen: list[int] = []
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = collect_outputs(toy, lambda rows: x[rows], len(x), seen.append, feature_layer=toy.fc)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert seen == [BATCH, BATCH, 7]
    assert found.path_TN.dtype == torch.uint8
    assert found.path_TN[:, 0].tolist() == [int(mean >= 0) for mean in x.mean(dim=(1, 2, 3)).tolist()]
    torch.testing.assert_close(found.logits_TK, toy(x).logits_BK)
    torch.testing.assert_close(found.run_probability_TN, toy(x).scores_BN2.softmax(-1)[..., 1])
    torch.testing.assert_close(found.feature_TD[:, 0], x.mean(dim=(1, 2, 3)))


def test_each_image_takes_its_forced_path() -> None:
    toy, x = Toy(), random_images(BATCH + 7)
    force_TN = torch.randint(0, 2, (len(x), 2), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    found = collect_outputs(toy, lambda rows: x[rows], len(x), no_progress("", None), force_TN=force_TN)
    assert torch.equal(found.path_TN, force_TN)


def test_hooks_are_removed_and_results_are_ordinary_tensors() -> None:
    toy, x = Toy(), random_images(2)
    found = collect_outputs(toy, lambda rows: x[rows], 2, no_progress("", None), feature_layer=toy.fc)
    assert not toy.fc._forward_pre_hooks
    assert not any(column.is_inference() for column in found)
    assert collect_outputs(toy, lambda rows: x[rows], 2, no_progress("", None)).feature_TD.shape == (2, 0)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_are_restored_after_an_error(threads: int) -> None:
    def broken(_images: torch.Tensor, *, force: torch.Tensor | None = None) -> RoutedOutput:
        raise RuntimeError("out of luck")

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with pytest.raises(RuntimeError, match="out of luck"):
            collect_outputs(broken, lambda rows: random_images(300)[rows], 300, no_progress("", None))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_load_features_from_each_file_type(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ROWS)
    np.savez(tmp_path / "b.npz", anything=ROWS)
    np.savez(tmp_path / "c.npz", other=ROWS[:2], features=ROWS)
    save_file({"x": ROWS}, tmp_path / "d.safetensors")
    np.save(tmp_path / "e.npy", ROWS.reshape(4, 3, 1).astype(np.int64))
    for name in ("a.npy", "b.npz", "c.npz", "d.safetensors", "e.npy"):
        assert load_features(tmp_path / name, images=4).tolist() == ROWS.tolist()


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (ROWS[:3], "each of the 4 test images"),
        (ROWS[:, 0], "one row"),
        (np.full((4, 2), np.nan), "finite"),
        (np.zeros((4, 0)), "must not be empty"),
        (np.array([["a"], ["b"], ["c"], ["d"]]), "numbers"),
    ],
)
def test_invalid_arrays_are_rejected(tmp_path: Path, array: np.ndarray, why: str) -> None:
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(UserError, match=why):
        load_features(tmp_path / "x.npy", images=4)


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.safetensors", "x.txt"])
def test_damaged_files_are_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"no array")
    with pytest.raises(UserError, match=name):
        load_features(tmp_path / name, images=4)


def test_missing_files_and_ambiguous_arrays_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="File not found"):
        load_features(tmp_path / "none.npy", images=4)
    np.savez(tmp_path / "two.npz", one=ROWS, two=ROWS)
    with pytest.raises(UserError, match="2 arrays"):
        load_features(tmp_path / "two.npz", images=4)


def test_pickles_are_not_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}, {}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="objects"):
        load_features(tmp_path / "objects.npy", images=2)
