import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codinet.data import memory
from codinet.data.matlab import read_arrays
from codinet.errors import UserError

Mat = tuple[Callable[..., bytes], Callable[..., bytes]]  # writers of one variable and of a file

CUBE = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("small", [True, False])
def test_arrays_come_back(tmp_path: Path, mat: Mat, order: str, compressed: bool, small: bool) -> None:
    variable, file = mat
    how = {"order": order, "compressed": compressed, "small": small}
    path = tmp_path / "some.mat"
    y = np.array([[1.5], [2.0]])
    one = np.array([[7]], dtype=np.int16)
    path.write_bytes(
        file(variable("X", CUBE, **how), variable("label", y, **how), variable("n", one, **how), order=order)
    )
    arrays = read_arrays(path)
    assert list(arrays) == ["X", "label", "n"]
    assert np.array_equal(arrays["X"], CUBE)
    assert np.array_equal(arrays["label"], y)
    assert arrays["n"].dtype == np.int16
    assert arrays["n"].tolist() == [[7]]


def test_values_stored_narrower_than_their_class(tmp_path: Path, mat: Mat) -> None:
    variable, file = mat
    path = tmp_path / "some.mat"
    path.write_bytes(file(variable("y", np.array([[1.0, 10.0]]), stored="u1")))
    y = read_arrays(path)["y"]
    assert y.dtype == np.float64
    assert y.tolist() == [[1.0, 10.0]]


def test_other_kinds_of_variables_are_passed_over(tmp_path: Path, mat: Mat) -> None:
    variable, file = mat
    path = tmp_path / "some.mat"
    text = variable("t", np.array([[65]], np.uint16), array_class=4)
    imaginary = variable("z", np.array([[1.0]]), complex_flag=True)
    path.write_bytes(file(text, imaginary, variable("X", CUBE)))
    assert list(read_arrays(path)) == ["X"]


@pytest.mark.parametrize(
    "content",
    [b"", b"not a mat file", b"\0" * 128, b"\0" * 500],
)
def test_not_a_mat_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some.mat"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"some\.mat is damaged or not a MATLAB 5 file"):
        read_arrays(path)


def test_newer_and_missing_files_have_their_own_sentence(tmp_path: Path) -> None:
    path = tmp_path / "some.mat"
    with pytest.raises(UserError, match="cannot be read"):
        read_arrays(path)
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(512))
    with pytest.raises(UserError, match="save -v7"):
        read_arrays(path)


@pytest.mark.parametrize("compressed", [True, False])
def test_every_truncation_is_named(tmp_path: Path, mat: Mat, compressed: bool) -> None:
    variable, file = mat
    content = file(variable("X", CUBE, compressed=compressed))
    path = tmp_path / "some.mat"
    for length in range(129, len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(UserError, match=r"some\.mat is damaged"):
            read_arrays(path)


def test_a_small_file_cannot_fill_the_memory(tmp_path: Path, mat: Mat, monkeypatch: pytest.MonkeyPatch) -> None:
    _, file = mat
    packed = zlib.compress(struct.pack("<II", 14, 2**31) + b"\0" * 100)
    path = tmp_path / "bomb.mat"
    path.write_bytes(file(struct.pack("<II", 15, len(packed)) + packed))
    monkeypatch.setattr(memory, "available_bytes", lambda: 2**30)
    with pytest.raises(UserError, match=r"bomb\.mat would take 2\.0 GiB"):
        read_arrays(path)


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
        read_arrays(path)
