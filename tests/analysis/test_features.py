from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from codinet.analysis.features import load_features
from codinet.errors import UserError

ROWS = np.arange(12, dtype=np.float64).reshape(4, 3)


def test_every_kind_of_file_gives_the_same(tmp_path: Path) -> None:
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
        (np.zeros((4, 0)), "empty rows"),
        (np.array([["a"], ["b"], ["c"], ["d"]]), "numbers"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, array: np.ndarray, why: str) -> None:
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(UserError, match=why):
        load_features(tmp_path / "x.npy", images=4)


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.safetensors", "x.txt"])
def test_damaged_and_odd_files_are_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"no array")
    with pytest.raises(UserError, match=name):
        load_features(tmp_path / name, images=4)


def test_missing_files_and_unclear_choices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no file"):
        load_features(tmp_path / "none.npy", images=4)
    np.savez(tmp_path / "two.npz", one=ROWS, two=ROWS)
    with pytest.raises(UserError, match="2 arrays"):
        load_features(tmp_path / "two.npz", images=4)


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}, {}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="objects"):
        load_features(tmp_path / "objects.npy", images=2)
