import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from codinet.data import official
from codinet.data.catalogue import download, list_known, verify
from codinet.data.known import Archive, Known, KnownFile, Layout
from codinet.data.official import KNOWN, lookup
from codinet.errors import UserError

FILES = {"train.bin": b"train" * 100, "names.txt": b"a\nb\n\n"}


def packed(files: dict[str, bytes], folder: str = "toy-set") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def archive(address: str, content: bytes) -> Archive:
    return Archive(address, hashlib.sha256(content).hexdigest(), hashlib.md5(content).hexdigest(), size=len(content))


@pytest.fixture
def publish(web_server: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Make a data set called "toy" known, published by a server on this machine."""

    def publish(content: bytes, name: str = "toy.tar.gz") -> Known:
        web_server.files[name] = content
        train = KnownFile("train.bin", hashlib.md5(FILES["train.bin"]).hexdigest(), len(FILES["train.bin"]))
        layout = Layout("toy-set", (train, KnownFile("names.txt", lines=2)) if name.endswith("gz") else (train,))
        known = Known("toy", "Toy", "", "", "", (layout,), (archive(f"{web_server.address}/{name}", content),))
        monkeypatch.setitem(official.KNOWN, "toy", known)
        return known

    return publish


def test_download_unpacks_verifies_and_cleans_up(tmp_path: Path, publish: Callable[..., Any], web_server: Any) -> None:
    publish(packed(FILES))
    seen = []
    folder = download("toy", tmp_path / "root", lambda done, total: seen.append((done, total)))
    assert folder == tmp_path / "root" / "toy-set"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["toy-set"]
    assert seen[-1][0] == seen[-1][1]
    assert all(verdict.ok for verdict in verify("toy", tmp_path / "root"))
    download("toy", tmp_path / "root")
    assert len(web_server.asked) == 1


def test_what_stood_there_is_moved_aside(tmp_path: Path, publish: Callable[..., Any]) -> None:
    publish(packed(FILES))
    for number in (1, 2):
        (tmp_path / "toy-set").mkdir(exist_ok=True)
        (tmp_path / "toy-set" / "train.bin").write_bytes(b"cut")
        download("toy", tmp_path)
        assert (tmp_path / f"toy-set.old-{number}" / "train.bin").read_bytes() == b"cut"
    assert all(verdict.ok for verdict in verify("toy", tmp_path))


def test_a_bad_archive_leaves_nothing_behind(tmp_path: Path, publish: Callable[..., Any]) -> None:
    publish(packed({**FILES, "train.bin": b"wrong"}))
    with pytest.raises(UserError, match=r"bad train\.bin \(truncated"):
        download("toy", tmp_path)
    assert not (tmp_path / "toy-set").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["toy.tar.gz"]


@pytest.mark.parametrize(
    "content",
    [
        b"no archive",
        packed({"../../escaped": b"x", **FILES}),
        packed(FILES)[:100],
        packed(FILES)[:40] + b"\xff" * 40 + packed(FILES)[80:],
    ],
    ids=["text", "outside", "cut", "damaged"],
)
def test_a_hostile_or_broken_archive_is_refused(tmp_path: Path, publish: Callable[..., Any], content: bytes) -> None:
    publish(content)
    with pytest.raises(UserError, match="cannot be unpacked"):
        download("toy", tmp_path / "root")
    assert not (tmp_path / "escaped").exists()
    assert not (tmp_path / "root" / "toy-set").exists()


def test_single_files_go_into_the_folder(tmp_path: Path, publish: Callable[..., Any]) -> None:
    publish(FILES["train.bin"], "train.bin")
    assert download("toy", tmp_path) == tmp_path / "toy-set"
    assert (tmp_path / "toy-set" / "train.bin").read_bytes() == FILES["train.bin"]


def test_verify_says_what_it_found(tmp_path: Path, publish: Callable[..., Any]) -> None:
    publish(packed(FILES))
    assert [(verdict.ok, "missing under" in verdict.detail) for verdict in verify("toy", tmp_path)] == [
        (False, True)
    ] * 2
    folder = download("toy", tmp_path)
    train = folder / "train.bin"

    def detail(content: bytes) -> str:
        train.write_bytes(content)
        verdict = verify("toy", tmp_path)[0]
        assert not verdict.ok
        return verdict.detail

    assert detail(b"x" * 499) == "truncated: 499 bytes, expected 500"
    assert detail(b"x" * 501) == "too long: 501 bytes, expected 500"
    assert "is not the official" in detail(b"x" * 500)
    train.unlink()
    assert verify("toy", tmp_path)[0] == ("train.bin", False, "missing")
    (folder / "names.txt").write_text("a\n")
    assert verify("toy", tmp_path)[1] == ("names.txt", False, "1 of 2 class names")


def test_the_digits_need_no_download(tmp_path: Path) -> None:
    assert (download("digits", tmp_path) / "digits.npz").is_file()
    assert [verdict.ok for verdict in verify("digits", tmp_path)] == [True]
    assert list(tmp_path.iterdir()) == []


def test_a_small_excerpt_loads_but_does_not_verify(
    tmp_path: Path, cifar10_binary: Callable[..., Any], cifar10_python: Callable[..., Any]
) -> None:
    cifar10_binary(tmp_path / "a")
    assert [verdict.ok for verdict in verify("cifar10", tmp_path / "a")] == [False] * 6 + [True]
    cifar10_python(tmp_path / "b")
    assert [verdict.ok for verdict in verify("cifar10", tmp_path / "b")] == [False] * 7


def test_the_facts_are_well_formed() -> None:
    assert [known.name for known in list_known()] == ["digits", "cifar10", "cifar100", "svhn"]
    for known in list_known():
        assert known.summary
        assert known.terms
        assert known.page.startswith("http")
        for one in known.archives:
            assert (len(one.sha256), len(one.md5)) == (64, 32)
            assert one.size > 10**7
        for layout in known.layouts:
            assert all(file.lines or len(file.md5 or "") == 32 for file in layout.files)


def test_odd_names_and_roots_are_refused(tmp_path: Path) -> None:
    wrong: Any
    for wrong in (None, 7, ["cifar10"]):
        for asked in (verify, download):
            with pytest.raises(UserError, match="no data set is called"):
                asked(wrong, tmp_path)
    for asked in (verify, download):
        with pytest.raises(UserError, match=r"is a pathlib\.Path, not 'data'"):
            asked("cifar10", "data")  # type: ignore[arg-type]
        with pytest.raises(UserError, match=r"cannot be read \(File name too long\)"):
            asked("cifar10", Path("x" * 5000))


def test_an_unknown_name_is_answered_with_the_names() -> None:
    with pytest.raises(UserError, match=r"perhaps you meant cifar100.*digits, cifar10, cifar100, svhn"):
        lookup("CIFAR-100")
    with pytest.raises(UserError, match="no data set is called 'imagenet'; there are"):
        verify("imagenet", Path())
    assert KNOWN["svhn"].archives[0].name == "train_32x32.mat"
