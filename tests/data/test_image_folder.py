import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from codinet.data import free_memory
from codinet.data.dataset import LazyImages, check
from codinet.data.folder_index import ignored_folders
from codinet.data.image_folder import load_folder
from codinet.errors import UserError
from codinet.run_reader import DataInfo


def test_a_fifth_is_held_out_without_a_test_folder(image_folder: Callable[..., Any]) -> None:
    data = check(load_folder(image_folder(per_class=10)))
    assert data.classes == ("cat", "dog")
    assert (len(data.train), len(data.test)) == (16, 4)
    assert data.test.labels_N.tolist() == [0, 0, 1, 1]
    assert data.image_shape == (3, 12, 10)
    assert data.name == "pictures"
    assert (data.pad, data.flip) == (1, True)
    # The red channel identifies the held-out files of each class: the third and the eighth.
    assert data.test.images_NCHW[:2, 0, 0, 0].tolist() == [40, 140]


def test_the_split_is_the_same_every_time(image_folder: Callable[..., Any]) -> None:
    folder = image_folder(per_class=7)
    assert torch.equal(load_folder(folder).test.images_NCHW, load_folder(folder).test.images_NCHW)


@pytest.mark.parametrize("held", ["test", "val"])
def test_the_users_own_split(image_folder: Callable[..., Any], held: str) -> None:
    image_folder("mine/train", per_class=3)
    folder = image_folder(f"mine/{held}", per_class=2).parent
    data = check(load_folder(folder))
    assert (len(data.train), len(data.test)) == (6, 4)
    assert data.train.labels_N.tolist() == [0, 0, 0, 1, 1, 1]
    mean = data.train.images_NCHW.double().mean(dim=(0, 2, 3)).tolist()
    assert data.mean == pytest.approx(mean)


def test_a_test_split_may_lack_a_class_but_not_add_one(image_folder: Callable[..., Any]) -> None:
    image_folder("mine/train", classes=("a", "b", "c"))
    folder = image_folder("mine/test", classes=("c",)).parent
    assert load_folder(folder).test.labels_N.unique().tolist() == [2]
    image_folder("mine/val", classes=("z",))
    (folder / "test").rename(folder / "elsewhere")
    with pytest.raises(UserError, match="'z'"):
        load_folder(folder)


def test_grey_only_if_all_are(image_folder: Callable[..., Any]) -> None:
    folder = image_folder(mode="L")
    assert load_folder(folder).image_shape[0] == 1
    Image.new("RGB", (10, 12)).save(folder / "cat" / "colour.png")
    assert load_folder(folder).image_shape[0] == 3


@pytest.mark.parametrize(
    ("shorter", "side"),
    [((8, 9, 10, 20), 32), ((60, 70, 70, 90), 64), ((300, 900, 900, 901), 224), ((47, 48, 48, 50), 64)],
)
def test_different_sizes_become_a_multiple_of_32(tmp_path: Path, shorter: tuple[int, ...], side: int) -> None:
    for index, length in enumerate(shorter):
        folder = tmp_path / f"class{index % 2}"
        folder.mkdir(exist_ok=True)
        Image.new("L", (length, length + index)).save(folder / f"{index}.png")
    assert load_folder(tmp_path).image_shape == (1, side, side)


def test_a_size_can_be_chosen(image_folder: Callable[..., Any]) -> None:
    folder = image_folder()
    data = load_folder(folder, image_size=16)
    assert data.image_shape == (3, 16, 16)
    assert data.pad == 2
    wrong: Any
    for wrong in (0, -1, 8001, 16.0, True, "16"):
        with pytest.raises(UserError, match=rf"the image size must be a whole number from 1 to 8000, got {wrong!r}"):
            load_folder(folder, image_size=wrong)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
@pytest.mark.parametrize("name", [b"d\xffg", b"d\ng", b" "])
def test_class_folders_need_printable_names(image_folder: Callable[..., Any], name: bytes) -> None:
    folder = image_folder()
    os.rename(folder / "dog", os.fsencode(folder) + b"/" + name)
    shown = re.escape(repr(os.fsdecode(name)))
    with pytest.raises(UserError, match=rf"pictures has a class called {shown}; rename it"):
        load_folder(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_image_files_may_have_any_name(image_folder: Callable[..., Any]) -> None:
    folder = image_folder()
    before = load_folder(folder)
    os.rename(folder / "cat" / "001.png", os.fsencode(folder / "cat") + b"/001\xff\n.png")
    assert DataInfo.of(load_folder(folder)) == DataInfo.of(before)


@pytest.mark.timeout(30)
def test_files_with_an_image_suffix_must_be_images(image_folder: Callable[..., Any]) -> None:
    folder = image_folder()
    (folder / "cat" / "gone.png").symlink_to("nowhere")
    with pytest.raises(UserError, match=r"gone\.png cannot be opened \(No such file"):
        load_folder(folder)
    (folder / "cat" / "gone.png").unlink()
    os.mkfifo(folder / "cat" / "pipe.png")
    with pytest.raises(UserError, match=r"pipe\.png cannot be opened \(Not a regular file"):
        load_folder(folder)
    (folder / "cat" / "pipe.png").unlink()
    (folder / "cat" / "folder.png").mkdir()
    load_folder(folder)


def test_large_images_need_memory_for_decoding(
    image_folder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = image_folder()
    Image.new("1", (6000, 5000)).save(folder / "cat" / "large.png")
    monkeypatch.setattr(LazyImages, "__getitem__", lambda *_: pytest.fail("decoded"))
    monkeypatch.setattr(free_memory, "available_bytes", lambda: 2**28)
    with pytest.raises(UserError, match=r"Decoding images of 5000×6000 in \d threads would take .* scale the largest"):
        load_folder(folder, image_size=16)


def test_very_deep_folders_and_cycles_are_searched(image_folder: Callable[..., Any]) -> None:
    folder = image_folder()
    deep = folder / "cat" / "deep"
    deep.mkdir()
    (deep / "circle").symlink_to(folder)
    (folder / "cat" / "loop").symlink_to("loop")
    top = deep / "d"
    top.mkdir()
    try:
        for _ in range(1100):  # deeper than the recursion limit; each new folder becomes the parent of those before it
            (deep / "e").mkdir()
            top.rename(deep / "e" / "d")
            (deep / "e").rename(top)
        assert ignored_folders(folder) == []
        (deep / "e").mkdir()
        top.rename(deep / "e" / "d")
        (deep / "e" / "x.png").touch()
        assert ignored_folders(folder) == [deep]
        (deep / "e" / "d").rename(top)
    finally:  # what pytest uses to clean up is recursive
        while (top / "d").exists():
            (top / "d").rename(deep / "f")
            top.rmdir()
            (deep / "f").rename(top)


def test_other_files_are_skipped(image_folder: Callable[..., Any]) -> None:
    folder = image_folder()
    (folder / "readme.txt").write_text("hello")
    (folder / "cat" / "notes.txt").write_text("hello")
    (folder / "cat" / "._000.png").write_text("left by an archiver")
    (folder / ".cache").mkdir()
    (folder / "__MACOSX").mkdir()
    data = load_folder(folder)
    assert data.classes == ("cat", "dog")
    assert len(data.train) + len(data.test) == 10


@pytest.mark.parametrize("parts", [("",), ("train", "val")])
def test_images_in_folders_inside_a_class_are_not_read_and_are_listed(
    image_folder: Callable[..., Any], tmp_path: Path, parts: tuple[str, ...]
) -> None:
    for part in parts:
        image_folder(f"mine/{part}")
    folder = tmp_path / "mine"
    before = load_folder(folder)
    assert ignored_folders(folder) == []
    for name in ("empty", ".hidden"):
        (folder / parts[0] / "cat" / name).mkdir()
    Image.new("RGB", (10, 12)).save(folder / parts[0] / "cat" / ".hidden" / "new.png")
    assert ignored_folders(folder) == []
    deep = folder / parts[-1] / "dog" / "more" / "still"
    deep.mkdir(parents=True)
    Image.new("RGB", (10, 12)).save(deep / "new.png")
    assert ignored_folders(folder) == [deep.parent]
    assert DataInfo.of(load_folder(folder)) == DataInfo.of(before)
    for file in (folder / parts[-1] / "dog").glob("*.png"):
        file.unlink()
    with pytest.raises(UserError, match=r"dog has no images \(folders inside it are not read\)"):
        load_folder(folder)


def test_an_unreadable_image_is_named(image_folder: Callable[..., Any]) -> None:
    folder = image_folder()
    (folder / "dog" / "zz.jpg").write_bytes(b"no jpeg")
    with pytest.raises(UserError, match=r"dog.zz\.jpg is not an image"):
        load_folder(folder)
    whole = (folder / "dog" / "000.png").read_bytes()
    (folder / "dog" / "zz.jpg").write_bytes(whole[:-30])
    with pytest.raises(UserError, match=r"dog.zz\.jpg is damaged"):
        load_folder(folder)


def test_wrong_folders_are_explained(tmp_path: Path, image_folder: Callable[..., Any]) -> None:
    with pytest.raises(UserError, match=r"The folder .* does not exist"):
        load_folder(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no class folders"):
        load_folder(tmp_path / "empty")
    with pytest.raises(UserError, match="one class folder only"):
        load_folder(image_folder("lonely", classes=("cat",)))
    folder = image_folder("hollow")
    (folder / "fox").mkdir()
    with pytest.raises(UserError, match=r"fox has no images"):
        load_folder(folder)
    with pytest.raises(UserError, match="no test folder"):
        load_folder(image_folder("half/train").parent)


def test_images_that_do_not_fit_in_memory_are_lazy(
    image_folder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = image_folder(per_class=10)
    whole = load_folder(folder)
    monkeypatch.setattr(free_memory, "available_bytes", lambda: 1000)
    lazy = check(load_folder(folder))
    assert isinstance(lazy.train.images_NCHW, LazyImages)
    assert isinstance(lazy.test.images_NCHW, LazyImages)
    assert torch.equal(lazy.test.images_NCHW[:], whole.test.images_NCHW[:])
    assert torch.equal(lazy.train.labels_N, whole.train.labels_N)
    assert DataInfo.of(lazy) == DataInfo.of(whole)  # so that a run can resume on another machine
    assert DataInfo.of(lazy).sha256 != DataInfo.of(load_folder(folder, image_size=16)).sha256


def test_images_are_refused_undecoded_if_not_even_a_sample_fits(
    image_folder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = image_folder()
    monkeypatch.setattr(free_memory, "available_bytes", lambda: 2**30)
    monkeypatch.setattr(LazyImages, "__getitem__", lambda *_: pytest.fail("decoded"))
    with pytest.raises(UserError, match=r"images of 8000×8000, 2 at once, would take 2\.3 GiB .* smaller --image-size"):
        load_folder(folder, image_size=8000)
