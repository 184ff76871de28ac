import errno
import hashlib
import os
import zipfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codinet.data import free_memory, npz
from codinet.data.dataset import check
from codinet.data.npz import load_digits, load_npz
from codinet.errors import UserError

IMAGES = np.random.default_rng(0).integers(0, 256, (10, 6, 8, 3), dtype=np.uint8)


LABELS = np.arange(10) % 2


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Any]:
    def save(**arrays: Any) -> Any:
        np.savez(tmp_path / "mine.npz", **arrays)
        return tmp_path / "mine.npz"

    return save


def test_channels_last_and_first_agree(save: Callable[..., Any]) -> None:
    last = check(load_npz(save(x=IMAGES, y=LABELS)))
    first = check(load_npz(save(images=IMAGES.transpose(0, 3, 1, 2), labels=LABELS[:, None].astype(np.uint8))))
    assert last.image_shape == first.image_shape == (3, 6, 8)
    assert torch.equal(last.train.images_NCHW, first.train.images_NCHW)
    assert torch.equal(last.test.labels_N, first.test.labels_N)
    assert (len(last.train), len(last.test)) == (8, 2)
    assert last.classes == ("0", "1")
    assert last.name == "mine"


def test_the_users_own_split_and_names(save: Callable[..., Any]) -> None:
    data = load_npz(
        save(x_train=IMAGES[..., 0], y_train=LABELS, x_test=IMAGES[:3, ..., 0], y_test=LABELS[:3], classes=["no", "yé"])
    )
    assert data.image_shape == (1, 6, 8)
    assert (len(data.train), len(data.test)) == (10, 3)
    assert data.classes == ("no", "yé")
    assert torch.equal(data.test.images_NCHW[:, 0], torch.from_numpy(IMAGES[:3, ..., 0]))


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(["f2", "f4", "f8"]), st.integers(0, 255))
def test_floats_are_bytes_over_255(tmp_path_factory: pytest.TempPathFactory, kind: str, level: int) -> None:
    path = tmp_path_factory.getbasetemp() / "floats.npz"
    images = np.full((10, 4, 5), level / 255, dtype=kind)
    np.savez(path, x=images, y=LABELS)
    assert load_npz(path).train.images_NCHW.unique().tolist() == [level]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"x": IMAGES}, "has x; it needs"),
        ({}, "has nothing; it needs"),
        ({"x": IMAGES, "y": LABELS[:5]}, "10 images in 'x' but 5 labels"),
        ({"x": IMAGES[:0], "y": LABELS[:0]}, "no images in 'x'"),
        ({"x": IMAGES[:, :, :, 0].reshape(10, -1), "y": LABELS}, "shape"),
        ({"x": IMAGES[:, :3], "y": LABELS}, "could be"),
        ({"x": np.zeros((10, 5, 5, 4), np.uint8), "y": LABELS}, "1 or 3 channels"),
        ({"x": IMAGES.astype(np.int32), "y": LABELS}, "type int32"),
        ({"x": IMAGES.astype(np.float32), "y": LABELS}, "floats from 0"),
        ({"x": np.full((10, 4, 4), np.nan), "y": LABELS}, "floats from nan"),
        ({"x": np.full((10, 4, 4), -0.1), "y": LABELS}, "floats from -0.1"),
        ({"x": IMAGES, "y": LABELS.astype(float)}, "integers from 0"),
        (
            {"x": IMAGES, "y": np.array(["cat", "dog"] * 5)},
            "labels are integers from 0, and 'classes' may name them",
        ),
        ({"x": IMAGES, "y": LABELS - 1}, "runs from -1"),
        ({"x": IMAGES, "y": LABELS + 1}, "start at 1"),
        ({"x": IMAGES, "y": LABELS * 50}, "label 50"),
        ({"x": IMAGES, "y": np.eye(10, dtype=int)}, "one integer per image"),
        ({"x": IMAGES, "y": np.full(10, 2**63, np.uint64)}, "runs from"),
        ({"x": IMAGES, "y": LABELS, "classes": np.array([1, 2])}, "list of text"),
        ({"x": IMAGES, "y": LABELS, "classes": np.array(["only"])}, "1 class"),
        ({"x": IMAGES, "y": LABELS, "classes": np.array(["cat", "dog", "cat"])}, "has the class 'cat' more than once"),
        ({"x": IMAGES, "y": np.array([{}] * 10, dtype=object)}, "Python objects in 'y'.*; save numbers instead"),
        ({"x": IMAGES, "y": LABELS, "classes": np.array([{}] * 2, dtype=object)}, "'classes'.*; save text instead"),
        ({"x": IMAGES, "y": LABELS, "classes": np.array(["cat", "d\ud800g"])}, r"called 'd\\ud800g'; rename it"),
        ({"x": IMAGES, "y": LABELS, "classes": np.array(["cat", "d\ng"])}, r"called 'd\\ng'; rename it"),
        ({"x": IMAGES, "y": LABELS, "classes": np.array(["cat", ""])}, "called ''; rename it"),
        ({"x": IMAGES, "y": LABELS, "classes": np.array([b"cat", b"d\xffg"])}, "a name that is not Unicode"),
        ({"x": IMAGES, "y": LABELS, "classes": np.full(4, 2**30, np.uint32).view("U2")}, "a name that is not Unicode"),
        ({"x": IMAGES[:1], "y": LABELS[:1]}, "one image per class, so none is left for testing"),
        ({"x": IMAGES[:2], "y": LABELS[:2]}, "one image per class, so none is left for testing"),
        ({"x": np.uint8(1), "y": LABELS}, "shape"),
        ({"x": IMAGES, "y": np.uint8(1)}, "one integer per image"),
        ({"x_train": IMAGES, "y_train": LABELS, "x": IMAGES, "y": LABELS}, r"both \(x_train, y_train\) and \(x, y\)"),
        ({"images": IMAGES, "labels": LABELS, "x": IMAGES, "y": LABELS}, r"both \(x, y\) and \(images, labels\)"),
        ({"x_train": IMAGES, "y_train": LABELS}, "has x_train, y_train; it needs"),
        (
            {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES, "y_test": LABELS + 1},
            "a test label 2 that no train",
        ),
    ],
)
def test_wrong_arrays_are_explained(save: Callable[..., Any], content: dict[str, Any], words: str) -> None:
    path = save(**content)
    with pytest.raises(UserError, match=words):
        check(load_npz(path))


def test_a_test_label_without_training_images_is_refused(save: Callable[..., Any]) -> None:
    path = save(x_train=IMAGES, y_train=LABELS, x_test=IMAGES, y_test=LABELS * 2, classes=["cat", "dog", "fox"])
    with pytest.raises(UserError, match="a test label 2 that no training image has; give both splits the same classes"):
        load_npz(path)
    load_npz(save(x_train=IMAGES, y_train=LABELS, x_test=IMAGES, y_test=LABELS * 0))  # but one may be missing


def test_other_arrays_in_the_file_are_ignored(save: Callable[..., Any]) -> None:
    load_npz(save(x=IMAGES, y=LABELS, notes=np.array([{}], dtype=object)))


def test_the_users_own_split_wins_over_a_pair(save: Callable[..., Any]) -> None:
    path = save(x_train=IMAGES[:6], y_train=LABELS[:6], x_test=IMAGES[6:], y_test=LABELS[6:], x=IMAGES, y=LABELS)
    assert (len(load_npz(path).train), len(load_npz(path).test)) == (6, 4)


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.EACCES, "Permission denied.; check its permissions"), (errno.EIO, "Input/output error.; check the disk")],
)
def test_a_file_that_cannot_be_opened_is_not_called_damaged(
    save: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    path = save(x=IMAGES, y=LABELS)

    def refuse(*_: Any) -> Any:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(zipfile, "ZipFile", refuse)
    with pytest.raises(UserError, match=rf"mine\.npz cannot be read .{words}"):
        load_npz(path)


@pytest.mark.parametrize("name", ["x", "y.npy", "classes"])
def test_a_member_that_is_not_an_array_is_named(save: Callable[..., Any], name: str) -> None:
    key = name.removesuffix(".npy")
    valid = {"x": IMAGES, "y": LABELS, "classes": np.array(["cat", "dog"])}
    del valid[key]
    path = save(**valid)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, b"just text")
    with pytest.raises(UserError, match=f"has '{key}', but it is not an array"):
        load_npz(path)


def test_floats_are_converted_in_blocks(save: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(x=IMAGES.astype(np.float64) / 255, y=LABELS)
    whole = load_npz(path)
    monkeypatch.setattr(npz, "_BLOCK", 300)  # two images
    blocks = load_npz(path)
    assert torch.equal(blocks.train.images_NCHW, whole.train.images_NCHW)
    assert torch.equal(whole.train.images_NCHW, load_npz(save(x=IMAGES, y=LABELS)).train.images_NCHW)


@pytest.mark.timeout(30)
def test_a_named_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(UserError, match=r"pipe\.npz"):
        load_npz(tmp_path / "pipe.npz")


def test_files_that_are_not_npz(tmp_path: Path, save: Callable[..., Any]) -> None:
    with pytest.raises(UserError, match="does not exist"):
        load_npz(tmp_path / "none.npz")
    path = save(x=IMAGES, y=LABELS)
    whole = path.read_bytes()
    for content in (b"", b"hello", whole[: len(whole) // 2], whole.replace(b"NUMPY", b"NUMPX")):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"mine\.npz is damaged"):
            load_npz(path)


def test_a_file_that_does_not_fit_in_memory_is_refused_unread(
    save: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(x=IMAGES, y=LABELS)
    monkeypatch.setattr(free_memory, "available_bytes", lambda: 100)
    with pytest.raises(UserError, match="would take"):
        load_npz(path)


def test_the_embedded_digits() -> None:
    digits = check(load_digits())
    assert (len(digits.train), len(digits.test)) == (1297, 500)
    assert digits.image_shape == (1, 8, 8)
    assert digits.train.images_NCHW.dtype == torch.uint8
    assert digits.classes == tuple("0123456789")
    assert (digits.pad, digits.flip) == (1, False)


def test_the_digits_are_scaled_to_bytes() -> None:
    digits = load_digits()
    values = digits.train.images_NCHW.unique().tolist()
    assert values == [round(level * 255 / 16) for level in range(17)]


def test_the_split_of_the_digits_is_stratified_and_fixed() -> None:
    digits = load_digits()
    counts = torch.bincount(digits.test.labels_N)
    assert counts.min() >= 48
    assert counts.max() <= 51
    # If the split changed, results of different versions could not be compared.
    content = digits.test.images_NCHW.numpy().tobytes() + bytes(digits.test.labels_N.tolist())
    assert hashlib.sha256(content).hexdigest()[:16] == "45afb03b695886ee"


@pytest.mark.parametrize("content", [None, b"", b"PK\3\4 cut"])
def test_a_damaged_installation_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    monkeypatch.setattr(resources, "files", lambda _: tmp_path)
    if content is not None:
        (tmp_path / "digits.npz").write_bytes(content)
    with pytest.raises(UserError, match="The embedded digits are damaged; reinstall codinet"):
        load_digits()
