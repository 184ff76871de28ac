import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from codinet.data import folder_index
from codinet.data.dataset import DamagedFiles
from codinet.data.folder_index import FileList, FolderIndex, cache_folder
from codinet.data.image_folder import load_folder
from codinet.errors import UserError

Folder = Callable[..., Path]
OLD = 1_000_000_000


def age(folder: Path) -> None:
    """Let all folders look as if they had not changed for long."""
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (OLD, OLD))


@pytest.fixture
def large(image_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that counts as large, and an empty cache."""
    monkeypatch.setattr(folder_index, "LARGE", 10)
    monkeypatch.setenv("CODINET_CACHE", str(tmp_path / "cache"))
    folder = image_folder(per_class=10)
    age(folder)
    return folder


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that are listed and the headers that are read, in order."""
    found: list[str] = []
    for name in ("_image_names", "read_header"):
        original = getattr(folder_index, name)

        def record(path: str | Path, original: Callable[..., object] = original) -> object:
            found.append(Path(path).name)
            return original(path)

        monkeypatch.setattr(folder_index, name, record)
    return found


def paths(index: FolderIndex) -> list[str]:
    return [*index.train.paths, *index.test.paths]


def test_a_file_list_is_a_sequence_of_paths(image_folder: Folder) -> None:
    folder = image_folder(classes=("b", "ä"), per_class=3)
    index = FolderIndex(folder)
    everything = sorted(map(str, folder.glob("*/*.png")))
    assert sorted(paths(index)) == everything
    train: FileList = index.train.paths
    assert train[0] == next(iter(train))
    assert train[-1] == list(train)[-1]
    assert list(train[1:3]) == list(train)[1:3]
    assert list(train.pick([2, 0, 2])) == [train[2], train[0], train[2]]
    assert list(train.pick([2, 0, 3]).pick([1])) == [train[0]]
    with pytest.raises(IndexError):
        train[len(train)]


def test_a_small_folder_leaves_no_index(image_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODINET_CACHE", str(tmp_path / "cache"))
    folder = image_folder()
    age(folder)
    FolderIndex(folder)
    assert not (tmp_path / "cache").exists()


def test_the_index_of_a_large_folder_is_used_again(large: Path, reads: list[str]) -> None:
    first = FolderIndex(large)
    assert sorted(reads) == ["cat", "dog"]
    reads.clear()
    second = FolderIndex(large)
    assert reads == []
    assert paths(second) == paths(first)
    assert torch.equal(second.train.labels_N, first.train.labels_N)
    assert torch.equal(second.test.labels_N, first.test.labels_N)


@pytest.mark.parametrize("change", ["add", "remove", "rename", "new class", "restore time"])
def test_a_changed_folder_is_listed_again(large: Path, reads: list[str], change: str) -> None:
    before = paths(FolderIndex(large))
    if change == "add":
        shutil.copy(large / "cat" / "000.png", large / "cat" / "010.png")
    elif change == "remove":
        (large / "cat" / "000.png").unlink()
    elif change == "rename":
        (large / "cat" / "000.png").rename(large / "cat" / "other.png")
    elif change == "new class":
        shutil.copytree(large / "cat", large / "eel")
    else:  # one more file, but the time of the folder is as before
        shutil.copy(large / "cat" / "000.png", large / "cat" / "010.png")
        os.utime(large / "cat", (OLD, OLD))
    reads.clear()
    index = FolderIndex(large)
    assert {"cat", "dog"} <= set(reads)
    assert paths(index) != before
    assert sorted(paths(index)) == sorted(map(str, large.glob("*/*.png")))


def test_a_folder_that_has_just_changed_is_not_remembered(large: Path, reads: list[str]) -> None:
    os.utime(large / "cat")
    FolderIndex(large)
    FolderIndex(large)
    assert sorted(reads) == ["cat", "cat", "dog", "dog"]


@pytest.mark.parametrize("damage", [b"", b"damaged", None])
def test_a_damaged_index_is_made_again(large: Path, reads: list[str], damage: bytes | None) -> None:
    expected = paths(FolderIndex(large))
    (file,) = (cache_folder() / "folders").glob("*.index")
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"x" if damage is None else damage)
    reads.clear()
    assert paths(FolderIndex(large)) == expected
    assert sorted(reads) == ["cat", "dog"]


def test_a_cache_that_cannot_be_written_is_no_error(large: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert len(paths(FolderIndex(large))) == 20
    assert load_folder(large, image_size=8).image_shape == (3, 8, 8)


def test_headers_of_a_large_folder_are_not_read_if_the_size_is_given(large: Path, reads: list[str]) -> None:
    load_folder(large, image_size=8)
    assert len([name for name in reads if name.endswith(".png")]) <= 16  # to find one in colour
    reads.clear()
    again = load_folder(large, image_size=8)
    assert reads == []
    assert again.image_shape == (3, 8, 8)


def test_headers_are_read_once_if_they_are_needed(large: Path, reads: list[str]) -> None:
    assert load_folder(large).image_shape == (3, 12, 10)
    reads.clear()
    assert load_folder(large).image_shape == (3, 12, 10)
    assert reads == []


def test_a_large_folder_gives_the_same_data_as_a_small_one(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from codinet.run_reader import DataInfo

    first, second = load_folder(large), load_folder(large)
    monkeypatch.setattr(folder_index, "LARGE", 10_000)
    small = load_folder(large)
    assert (second.mean, second.std) == (first.mean, first.std) == (small.mean, small.std)
    assert small.sha256 is None
    assert DataInfo.of(first) == DataInfo.of(second) == DataInfo.of(small)


def test_facts_are_computed_again_if_their_files_change(large: Path) -> None:
    before = load_folder(large)
    victim = large / "cat" / "000.png"
    time = victim.stat().st_mtime
    Image.new("RGB", (10, 12), "white").save(victim)
    os.utime(victim, (time + 1, time + 1))
    os.utime(large / "cat", (OLD, OLD))
    after = load_folder(large)
    assert after.mean != before.mean
    assert after.sha256 != before.sha256


def test_damaged_facts_are_computed_again(large: Path) -> None:
    expected = load_folder(large)
    (file,) = (cache_folder() / "folders").glob("*.facts")
    content = file.read_bytes()
    for damage in (b"", content[:-20], content.replace(b"[12,", b"[13,").replace(b"12, 10", b"13, 10")):
        assert damage != content
        file.write_bytes(damage)
        again = load_folder(large)
        assert (again.image_shape, again.mean) == (expected.image_shape, expected.mean)


def test_grey_folders_are_recognised_even_if_one_late_image_has_colour(image_folder: Folder) -> None:
    folder = image_folder(mode="L", per_class=30)
    assert FolderIndex(folder).all_grey()
    Image.new("RGB", (10, 12), "red").save(folder / "dog" / "029.png")
    assert not FolderIndex(folder).all_grey()


def test_headers_that_cannot_be_read_are_skipped_or_an_error(image_folder: Folder) -> None:
    folder = image_folder()
    (folder / "cat" / "000.png").write_bytes(b"not an image")
    with pytest.raises(UserError, match=r"000\.png is not an image"):
        FolderIndex(folder).sizes()
    damaged = DamagedFiles()
    assert FolderIndex(folder, damaged).sizes()[:2] == (12, 10)
    assert [Path(name).name for name in damaged.names()] == ["000.png"]


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODINET_CACHE", "/a/b")
    assert cache_folder() == Path("/a/b")
    monkeypatch.delenv("CODINET_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert cache_folder() == Path("/c/codinet")
