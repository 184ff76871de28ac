from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codinet.data.dataset import check
from codinet.data.svhn import load_svhn
from codinet.errors import UserError

Mat = tuple[Callable[..., bytes], Callable[..., bytes]]  # writers of one variable and of a file

IMAGES = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
LABELS = np.array([[1], [9], [10], [2]], dtype=np.uint8)


@pytest.fixture
def write(mat: Mat) -> Callable[..., Any]:
    variable, file = mat

    def write(folder: Path, images: np.ndarray = IMAGES, labels: np.ndarray = LABELS) -> Any:
        folder.mkdir(exist_ok=True)
        for name in ("train_32x32.mat", "test_32x32.mat"):
            (folder / name).write_bytes(file(variable("X", images), variable("y", labels)))

    return write


@pytest.mark.parametrize("place", ["svhn", "."])
def test_ten_means_zero_and_axes_are_turned(tmp_path: Path, write: Callable[..., Any], place: str) -> None:
    write(tmp_path / place)
    svhn = check(load_svhn(tmp_path))
    assert svhn.train.labels_N.tolist() == [1, 9, 0, 2]
    assert svhn.image_shape == (3, 32, 32)
    assert np.array_equal(svhn.test.images_NCHW[1].numpy(), IMAGES[..., 1].transpose(2, 0, 1))
    assert (svhn.pad, svhn.flip) == (4, False)


def test_missing(tmp_path: Path, write: Callable[..., Any]) -> None:
    with pytest.raises(UserError, match=r"SVHN was not found .*codinet data download svhn"):
        load_svhn(tmp_path)
    write(tmp_path)
    (tmp_path / "test_32x32.mat").unlink()
    with pytest.raises(UserError, match=r"test_32x32\.mat is missing"):
        load_svhn(tmp_path)


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (IMAGES[:16], LABELS, "shape"),
        (IMAGES.astype(np.float64), LABELS, "type float64"),
        (IMAGES, LABELS[:3], "4 images and 3 labels"),
        (IMAGES, LABELS * 0, "outside 1 to 10"),
        (IMAGES, LABELS + 0.5, "outside 1 to 10"),
        (IMAGES[..., :0], LABELS[:0], "shape"),
    ],
)
def test_wrong_arrays_are_explained(
    tmp_path: Path, write: Callable[..., Any], images: np.ndarray, labels: np.ndarray, words: str
) -> None:
    write(tmp_path, images, labels)
    with pytest.raises(UserError, match=words):
        load_svhn(tmp_path)


def test_without_the_arrays(tmp_path: Path, mat: Mat) -> None:
    variable, file = mat
    for name in ("train_32x32.mat", "test_32x32.mat"):
        (tmp_path / name).write_bytes(file(variable("Z", IMAGES)))
    with pytest.raises(UserError, match="no arrays X and y"):
        load_svhn(tmp_path)
