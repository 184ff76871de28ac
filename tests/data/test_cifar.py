import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from codinet.data.cifar import load_cifar10, load_cifar100
from codinet.data.dataset import check
from codinet.errors import UserError


def test_binary_and_python_layouts_agree(
    tmp_path: Path, cifar10_binary: Callable[..., Any], cifar10_python: Callable[..., Any]
) -> None:
    cifar10_binary(tmp_path / "a")
    cifar10_python(tmp_path / "b")
    binary, python = check(load_cifar10(tmp_path / "a")), check(load_cifar10(tmp_path / "b"))
    assert (len(binary.train), len(binary.test)) == (15, 3)
    for first, second in ((binary.train, python.train), (binary.test, python.test)):
        assert torch.equal(first.images_NCHW, second.images_NCHW)
        assert torch.equal(first.labels_N, second.labels_N)
    assert binary.classes == python.classes
    assert binary.classes[3] == "cat"
    assert binary.train.images_NCHW.dtype == torch.uint8
    assert binary.train.labels_N.dtype == torch.int64
    assert (binary.pad, binary.flip, binary.name) == (4, True, "cifar10")


def test_a_row_is_label_red_green_blue(tmp_path: Path, cifar10_binary: Callable[..., Any]) -> None:
    folder = cifar10_binary(tmp_path)
    row = np.concatenate([[7], np.full(1024, 1), np.full(1024, 2), np.arange(1024) % 256]).astype(np.uint8)
    (folder / "test_batch.bin").write_bytes(row.tobytes())
    test = load_cifar10(tmp_path).test
    assert test.labels_N.tolist() == [7]
    assert test.images_NCHW[0, 0].unique().tolist() == [1]
    assert test.images_NCHW[0, 1].unique().tolist() == [2]
    assert test.images_NCHW[0, 2, 0].tolist() == list(range(32))  # the first row of pixels


def test_cifar100_uses_the_fine_label(
    tmp_path: Path, cifar100_binary: Callable[..., Any], cifar100_python: Callable[..., Any]
) -> None:
    cifar100_binary(tmp_path / "a")
    cifar100_python(tmp_path / "b")
    binary, python = check(load_cifar100(tmp_path / "a")), check(load_cifar100(tmp_path / "b"))
    assert binary.train.labels_N.tolist() == [*range(100), *range(20)]
    assert torch.equal(binary.train.images_NCHW, python.train.images_NCHW)
    assert torch.equal(binary.test.labels_N, python.test.labels_N)
    assert binary.classes == python.classes
    assert binary.classes[42] == "class_42"


def test_the_root_may_be_the_folder_itself(tmp_path: Path, cifar10_binary: Callable[..., Any]) -> None:
    assert len(load_cifar10(cifar10_binary(tmp_path)).test) == 3


def test_a_complete_layout_wins_over_a_broken_one(
    tmp_path: Path, cifar10_binary: Callable[..., Any], cifar10_python: Callable[..., Any]
) -> None:
    (cifar10_binary(tmp_path) / "data_batch_1.bin").unlink()
    cifar10_python(tmp_path)
    assert len(load_cifar10(tmp_path).train) == 15


def test_no_files_found(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not found under .*codinet data download cifar10"):
        load_cifar10(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path, cifar10_binary: Callable[..., Any]) -> None:
    (cifar10_binary(tmp_path) / "data_batch_4.bin").unlink()
    with pytest.raises(UserError, match=r"data_batch_4\.bin is missing.*codinet data download cifar10"):
        load_cifar10(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\0" * 3072, b"\0" * 3074])
def test_a_truncated_file_is_named_with_the_expected_size(
    tmp_path: Path, cifar10_binary: Callable[..., Any], content: bytes
) -> None:
    (cifar10_binary(tmp_path) / "data_batch_2.bin").write_bytes(content)
    words = rf"data_batch_2\.bin is truncated: it has {len(content):,} bytes, expected 30,730,000 .*download cifar10"
    with pytest.raises(UserError, match=words):
        load_cifar10(tmp_path)


def test_labels_out_of_range(
    tmp_path: Path, cifar10_binary: Callable[..., Any], cifar10_python: Callable[..., Any]
) -> None:
    (cifar10_binary(tmp_path / "a") / "test_batch.bin").write_bytes(b"\x0a" + b"\0" * 3072)
    with pytest.raises(UserError, match=r"test_batch\.bin has labels from 10 to 10, expected 0 to 9"):
        load_cifar10(tmp_path / "a")
    for label in (-1, 10, 2**80, -(2**500)):
        folder = tmp_path / "b" / "cifar-10-batches-py"
        if not folder.exists():
            cifar10_python(tmp_path / "b")
        batch = {"data": np.zeros((1, 3072), np.uint8), "labels": [label]}
        (folder / "test_batch").write_bytes(pickle.dumps(batch, 2))
        with pytest.raises(UserError, match="test_batch has labels from"):
            load_cifar10(tmp_path / "b")


@pytest.mark.parametrize(
    "batch",
    [
        [1, 2],
        {"labels": [0]},
        {"data": np.zeros((1, 3072), np.uint8)},
        {"data": np.zeros((1, 3000), np.uint8), "labels": [0]},
        {"data": np.zeros((1, 3072), np.int32), "labels": [0]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": [0]},
        {"data": np.zeros((1, 3072), np.uint8), "labels": ["0"]},
        {"data": np.zeros((1, 3072), np.uint8), "labels": [True]},
        {"data": np.zeros((0, 3072), np.uint8), "labels": []},
    ],
)
def test_a_python_batch_of_another_shape_is_named(
    tmp_path: Path, cifar10_python: Callable[..., Any], batch: Any
) -> None:
    (cifar10_python(tmp_path) / "test_batch").write_bytes(pickle.dumps(batch, 2))
    with pytest.raises(UserError, match=r"test_batch .*download cifar10"):
        load_cifar10(tmp_path)


def test_a_truncated_python_batch_is_named(tmp_path: Path, cifar10_python: Callable[..., Any]) -> None:
    path = cifar10_python(tmp_path) / "data_batch_3"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match="data_batch_3 is damaged"):
        load_cifar10(tmp_path)


@pytest.mark.parametrize("content", [b"only\none\n", b"\xff\xfe"])
def test_wrong_class_names(tmp_path: Path, cifar10_binary: Callable[..., Any], content: bytes) -> None:
    (cifar10_binary(tmp_path) / "batches.meta.txt").write_bytes(content)
    with pytest.raises(UserError, match=r"batches\.meta\.txt .*class names"):
        load_cifar10(tmp_path)


@pytest.mark.parametrize("names", [[1] * 10, [("a", "b")] * 10, [None] * 10, ["a"] * 10, ["a\n", *"bcdefghij"], {}, 5])
def test_python_class_names_must_be_different_texts(
    tmp_path: Path, cifar10_python: Callable[..., Any], names: Any
) -> None:
    (cifar10_python(tmp_path) / "batches.meta").write_bytes(pickle.dumps({"label_names": names}, 2))
    with pytest.raises(UserError, match="class"):
        check(load_cifar10(tmp_path))


def test_a_file_larger_than_the_memory_is_refused_unread(tmp_path: Path, cifar10_binary: Callable[..., Any]) -> None:
    with (cifar10_binary(tmp_path) / "data_batch_1.bin").open("wb") as file:
        file.truncate(3073 * 2**30)  # a hole: takes no space on the disk
    with pytest.raises(UserError, match=r"data_batch_1\.bin would take 3073\.0 GiB of memory"):
        load_cifar10(tmp_path)
