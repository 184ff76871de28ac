import os
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codinet.data import free_memory
from codinet.data.dataset import check
from codinet.data.svhn import load_svhn, read_mat
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
def test_label_ten_is_zero_and_axes_are_permuted(tmp_path: Path, write: Callable[..., Any], place: str) -> None:
    write(tmp_path / place)
    svhn = check(load_svhn(tmp_path))
    assert svhn.train.labels_N.tolist() == [1, 9, 0, 2]
    assert svhn.image_shape == (3, 32, 32)
    assert np.array_equal(svhn.test.images_NCHW[1].numpy(), IMAGES[..., 1].transpose(2, 0, 1))
    assert (svhn.pad, svhn.flip) == (4, False)


def test_missing_files_are_named(tmp_path: Path, write: Callable[..., Any]) -> None:
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


def test_missing_arrays_are_named(tmp_path: Path, mat: Mat) -> None:
    variable, file = mat
    for name in ("train_32x32.mat", "test_32x32.mat"):
        (tmp_path / name).write_bytes(file(variable("Z", IMAGES)))
    with pytest.raises(UserError, match="no arrays X and y"):
        load_svhn(tmp_path)


CUBE = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("small", [True, False])
def test_mat_arrays_are_read(tmp_path: Path, mat: Mat, order: str, compressed: bool, small: bool) -> None:
    variable, file = mat
    how = {"order": order, "compressed": compressed, "small": small}
    path = tmp_path / "some.mat"
    y = np.array([[1.5], [2.0]])
    one = np.array([[7]], dtype=np.int16)
    path.write_bytes(
        file(variable("X", CUBE, **how), variable("label", y, **how), variable("n", one, **how), order=order)
    )
    arrays = read_mat(path)
    assert list(arrays) == ["X", "label", "n"]
    assert np.array_equal(arrays["X"], CUBE)
    assert np.array_equal(arrays["label"], y)
    assert arrays["n"].dtype == np.int16
    assert arrays["n"].tolist() == [[7]]


def test_values_stored_narrower_than_their_class(tmp_path: Path, mat: Mat) -> None:
    variable, file = mat
    path = tmp_path / "some.mat"
    path.write_bytes(file(variable("y", np.array([[1.0, 10.0]]), stored="u1")))
    y = read_mat(path)["y"]
    assert y.dtype == np.float64
    assert y.tolist() == [[1.0, 10.0]]


@pytest.mark.parametrize(
    ("value", "stored", "kind"), [(np.nan, "f8", 9), (200, "u1", 8), (-1, "i1", 9), (1.5, "f4", 12)]
)
def test_values_that_do_not_fit_their_class_are_damage(
    tmp_path: Path, mat: Mat, value: float, stored: str, kind: int
) -> None:
    variable, file = mat
    path = tmp_path / "some.mat"
    path.write_bytes(file(variable("y", np.array([[value]]), stored=stored, array_class=kind)))
    with pytest.raises(UserError, match="values that do not fit the type of their array"):
        read_mat(path)


def test_other_kinds_of_variables_are_skipped(tmp_path: Path, mat: Mat) -> None:
    variable, file = mat
    path = tmp_path / "some.mat"
    text = variable("t", np.array([[65]], np.uint16), array_class=4)
    imaginary = variable("z", np.array([[1.0]]), complex_flag=True)
    path.write_bytes(file(text, imaginary, variable("X", CUBE)))
    assert list(read_mat(path)) == ["X"]


@pytest.mark.parametrize(
    "content",
    [b"", b"not a mat file", b"\0" * 128, b"\0" * 500],
)
def test_not_a_mat_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some.mat"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"some\.mat is damaged or not a MATLAB 5 file"):
        read_mat(path)


def test_newer_and_missing_files_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "some.mat"
    with pytest.raises(UserError, match="cannot be read"):
        read_mat(path)
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(512))
    with pytest.raises(UserError, match="save -v7"):
        read_mat(path)


@pytest.mark.parametrize("compressed", [True, False])
def test_every_truncation_is_named(tmp_path: Path, mat: Mat, compressed: bool) -> None:
    variable, file = mat
    content = file(variable("X", CUBE, compressed=compressed))
    path = tmp_path / "some.mat"
    for length in range(129, len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(UserError, match=r"some\.mat is damaged"):
            read_mat(path)


def bomb(size: int) -> bytes:
    """A compressed array that states that size."""
    packed = zlib.compress(struct.pack("<II", 14, size) + b"\0" * 100)
    return struct.pack("<II", 15, len(packed)) + packed


def test_arrays_that_do_not_fit_in_memory_are_not_unpacked(
    tmp_path: Path, mat: Mat, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.mat"
    path.write_bytes(mat[1](bomb(2**25)))
    monkeypatch.setattr(free_memory, "available_bytes", lambda: 2**20)
    with pytest.raises(UserError, match=r"bomb\.mat would take 0\.0 GiB"):
        read_mat(path)


def test_a_small_file_cannot_fill_the_memory(tmp_path: Path, mat: Mat) -> None:
    variable, file = mat
    path = tmp_path / "bomb.mat"
    zeros = np.zeros((2**23, 1))  # eight megabytes as stored, 64 megabytes as doubles
    for content in (
        file(bomb(2**31)),
        file(bomb(2**26 + 1)),
        file(variable("X", zeros, stored="u1")),
        file(*(variable(f"X{place}", zeros[: 2**20], stored="u1") for place in range(20))),
    ):
        assert len(content) < 200_000
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"bomb\.mat is damaged.*unpacks to .* bytes, expected at most 67,108,864"):
            read_mat(path)


@pytest.mark.timeout(30)
def test_very_many_dimensions_take_no_time(tmp_path: Path, mat: Mat) -> None:
    sides = struct.pack("<II", 5, 4 * 10**6) + b"\xff\xff\xff\x7f" * 10**6
    body = struct.pack("<IIII", 6, 8, 9, 0) + sides + struct.pack("<IIII", 1 | 1 << 16, 0, 2, 0)
    path = tmp_path / "wide.mat"
    path.write_bytes(mat[1](struct.pack("<II", 14, len(body)) + body))
    with pytest.raises(UserError, match="an array of 1,000,000 dimensions"):
        read_mat(path)


@pytest.mark.timeout(30)
def test_a_named_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.mat")
    with pytest.raises(UserError, match=r"pipe\.mat cannot be read \(Not a regular file"):
        read_mat(tmp_path / "pipe.mat")


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_damage_never_escapes_as_anything_else(
    tmp_path_factory: pytest.TempPathFactory, mat: Mat, data: st.DataObject
) -> None:
    variable, file = mat
    content = bytearray(file(variable("X", CUBE, compressed=data.draw(st.booleans()))))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(124, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.mat"
    path.write_bytes(content)
    with suppress(UserError):
        read_mat(path)
