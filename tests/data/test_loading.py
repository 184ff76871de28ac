import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import codinet.data
from codinet.data import load, loading, locate
from codinet.data.catalogue import KNOWN
from codinet.data.dataset import LazyImages
from codinet.errors import UserError


def test_names_folders_and_npz(
    tmp_path: Path,
    cifar10_binary: Callable[..., Any],
    cifar100_binary: Callable[..., Any],
    image_folder: Callable[..., Any],
) -> None:
    cifar10_binary(tmp_path)
    cifar100_binary(tmp_path)
    np.savez(tmp_path / "mine.npz", x=np.zeros((10, 4, 4), np.uint8), y=np.arange(10) % 2)
    for what, shape in (
        ("digits", (1, 8, 8)),
        ("cifar10", (3, 32, 32)),
        ("cifar100", (3, 32, 32)),
        (str(image_folder()), (3, 12, 10)),
        (str(tmp_path / "mine.npz"), (1, 4, 4)),
    ):
        assert load(what, tmp_path).image_shape == shape


def test_names_win_over_folders_unless_spelled_as_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image_folder: Callable[..., Any]
) -> None:
    image_folder("digits")
    monkeypatch.chdir(tmp_path)
    assert load("digits", tmp_path).image_shape == (1, 8, 8)
    assert load("./digits", tmp_path).image_shape == (3, 12, 10)


def test_image_size_is_for_folders(tmp_path: Path, image_folder: Callable[..., Any]) -> None:
    assert load(str(image_folder()), tmp_path, image_size=16).image_shape == (3, 16, 16)
    assert load("digits", tmp_path, image_size=8).image_shape == (1, 8, 8)
    with pytest.raises(UserError, match="digits has images of 8×8"):
        load("digits", tmp_path, image_size=32)


def test_a_crop_is_for_folders(
    tmp_path: Path, image_folder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = image_folder()
    for path in folder.glob("*/*"):
        Image.effect_noise((20, 24), 50).convert("RGB").save(path)
    whole, cropped = (load(str(folder), tmp_path, image_size=16, crop=crop) for crop in (None, 0.5))
    assert (whole.crop, cropped.crop) == (1, 0.5)
    assert whole.image_shape == cropped.image_shape
    assert not torch.equal(whole.test.images_NCHW, cropped.test.images_NCHW)
    monkeypatch.setattr("codinet.data.image_folder.fits", lambda _bytes: False)
    lazy = load(str(folder), tmp_path, image_size=16, crop=0.5)
    assert isinstance(lazy.test.images_NCHW, LazyImages)
    assert torch.equal(lazy.test.images_NCHW[:], cropped.test.images_NCHW)
    assert torch.equal(lazy.test.subset(torch.tensor([1])).images_NCHW[0], cropped.test.images_NCHW[1])
    with pytest.raises(UserError, match="Only image folders can be cropped, and digits is none"):
        load("digits", tmp_path, crop=0.9)
    assert load("digits", tmp_path, crop=1).crop == 1


def test_unknown_names_and_paths_are_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"perhaps you meant cifar10.*choose from digits, cifar10, cifar100, svhn"):
        load("cifar-10", tmp_path)
    for what in ("imagenet", str(tmp_path / "none"), "~nobody-of-that-name/x", ""):
        with pytest.raises(UserError):
            load(what, tmp_path / "none")
    (tmp_path / "set.zip").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"set\.zip is neither"):
        load(str(tmp_path / "set.zip"), tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        load(str(tmp_path / "none.npz"), tmp_path)
    with pytest.raises(UserError, match="cannot be read"):
        load("x" * 5000, tmp_path)


def test_odd_arguments_are_refused(tmp_path: Path) -> None:
    wrong: Any
    for asked in (load, locate):
        for wrong in (None, 7, Path("digits"), b"digits"):
            with pytest.raises(UserError, match="A data set must be a name or a path as text, got"):
                asked(wrong, tmp_path)
        with pytest.raises(UserError, match=r"The folder of known data sets must be a pathlib\.Path, got 'data'"):
            asked("digits", "data")  # type: ignore[arg-type]
        for name in ("a\udcff", "a\nb", "a\0b", " "):
            with pytest.raises(UserError, match=r"The path '.*' is not printable Unicode; rename the data set"):
                asked(name, tmp_path)
    for wrong in (0, -1, 1.5, True, "8", 10**30):
        with pytest.raises(
            UserError, match=r"the image size must be a whole number of 1 or more|only image folders can be resized"
        ):
            load("digits", tmp_path, image_size=wrong)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_folder_inside_one_that_is_not_unicode_is_refused(
    tmp_path: Path, image_folder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = os.fsencode(tmp_path) + b"/\xff"
    image_folder()
    os.mkdir(odd)
    os.rename(tmp_path / "pictures", odd + b"/pictures")
    monkeypatch.chdir(os.fsdecode(odd))
    with pytest.raises(UserError, match="is not printable Unicode; rename the data set or its folder"):
        locate("pictures", tmp_path)


@pytest.mark.timeout(30)
def test_named_pipes_are_refused_at_once(
    tmp_path: Path, cifar10_binary: Callable[..., Any], cifar10_python: Callable[..., Any]
) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(UserError, match=r"pipe\.npz cannot be read \(Not a regular file\)"):
        load(str(tmp_path / "pipe.npz"), tmp_path)
    for write, name in ((cifar10_binary, "data_batch_2.bin"), (cifar10_python, "data_batch_2")):
        file = write(tmp_path / name) / name
        file.unlink()
        os.mkfifo(file)
        with pytest.raises(UserError, match=f"{name} is missing"):
            load("cifar10", tmp_path / name)
    (tmp_path / "svhn").mkdir()
    for name in ("train_32x32.mat", "test_32x32.mat"):
        os.mkfifo(tmp_path / "svhn" / name)
    with pytest.raises(UserError, match="SVHN was not found"):
        load("svhn", tmp_path)


def test_an_empty_name_is_not_the_current_folder(
    image_folder: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(image_folder())
    for asked in (load, locate):
        with pytest.raises(UserError, match="The name of a data set must not be empty"):
            asked("", Path())
    assert load(".", Path()).name == "pictures"


def test_folders_and_files_that_were_moved_are_found_by_name_here_or_under_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image_folder: Callable[..., Any]
) -> None:
    folder = image_folder("sets/pictures")
    np.savez(tmp_path / "sets/mine.npz", x=np.zeros((10, 4, 4), np.uint8), y=np.arange(10) % 2)
    (tmp_path / "sets/notes").write_text("no data")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    for gone in ("pictures", "gone/pictures", "/gone/pictures"):
        assert load(gone, folder.parent).image_shape == (3, 12, 10)
        assert locate(gone, folder.parent) == str(folder)
        cause = rf"The folder {gone} does not exist" if "/" in gone else "Unknown data set 'pictures'"
        with pytest.raises(UserError, match=rf"{cause}.*no pictures here or under nowhere; .*--data-root"):
            load(gone, Path("nowhere"))
    assert load("/gone/mine.npz", Path("../sets")).image_shape == (1, 4, 4)
    with pytest.raises(
        UserError, match=r"/gone/mine\.npz does not exist, and there is no mine\.npz here or under nowhere; check"
    ):
        load("/gone/mine.npz", Path("nowhere"))
    for what in ("/gone/notes", "gone/.."):
        with pytest.raises(UserError, match=rf"The folder {what} does not exist"):
            load(what, folder.parent)
    shutil.copytree(folder, here / "pictures")
    assert locate("/gone/pictures", folder.parent) == str(folder)  # the root folder is searched first
    assert load("/gone/pictures", Path("nowhere")).image_shape == (3, 12, 10)
    assert locate("/gone/pictures", Path("nowhere")) == str(here / "pictures")


def test_a_located_path_means_the_same_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image_folder: Callable[..., Any]
) -> None:
    folder = image_folder("digits")
    (tmp_path / "link").symlink_to(folder / "cat")
    monkeypatch.chdir(tmp_path)
    assert locate("digits", tmp_path) == "digits"
    assert locate("./digits", tmp_path) == str(folder)
    assert locate("link", tmp_path) == str(tmp_path / "link")
    assert locate("link/..", tmp_path) == str(folder)
    with pytest.raises(UserError, match=r"cannot be read \(File name too long\); check the path"):
        locate("x" * 5000, tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_missing_permission_is_explained(tmp_path: Path, image_folder: Callable[..., Any]) -> None:
    folder = image_folder()
    (folder / "cat").chmod(0)
    try:
        with pytest.raises(UserError, match=r"cat cannot be read \(Permission denied\)"):
            load(str(folder), tmp_path)
    finally:
        (folder / "cat").chmod(0o755)


def test_loaded_data_is_checked(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=np.zeros((4, 4, 4), np.uint8), y=np.zeros(4, int))
    with pytest.raises(UserError, match="1 class"):
        load(str(tmp_path / "mine.npz"), tmp_path)


def test_every_known_data_set_can_be_loaded() -> None:
    assert set(loading._LOADERS) == set(KNOWN)


def test_the_package_exports_every_name_in_all() -> None:
    assert all(hasattr(codinet.data, name) for name in codinet.data.__all__)
