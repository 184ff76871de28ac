import hashlib
import io
import os
import shutil
import socket
import tarfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from codinet.data.catalogue import KNOWN, Archive, KnownDataset, KnownFile, Layout
from codinet.data.download import checksum, download, fetch, verify
from codinet.errors import UserError

CONTENT = bytes(range(256)) * 4000  # about a megabyte
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Fetch:
    """Call `fetch` with valid arguments, which a test may override."""

    def __init__(self, server: Any, target: Path) -> None:
        self.server, self.target = server, target
        self.part = target.with_name(target.name + ".part")
        self.progress: list[tuple[int, int | None]] = []
        server.files["set.bin"] = CONTENT

    def __call__(self, **changes: Any) -> None:
        how: dict[str, Any] = {
            "digest": DIGEST,
            "algorithm": "sha256",
            "size": len(CONTENT),
            "attempts": 1,
            "pause": 0.0,
        } | changes
        url = how.pop("url", f"{self.server.address}/set.bin")
        fetch(url, self.target, progress=lambda done, total: self.progress.append((done, total)), **how)


@pytest.fixture
def get(web_server: Any, tmp_path: Path) -> Callable[..., Any]:
    return Fetch(web_server, tmp_path / "new" / "set.bin")


def test_a_plain_download(get: Fetch, web_server: Any) -> None:
    get()
    assert get.target.read_bytes() == CONTENT
    assert not get.part.exists()
    assert get.progress[0] == (0, len(CONTENT))
    assert get.progress[-1] == (len(CONTENT), len(CONTENT))
    get()
    assert web_server.asked == [None]  # the second call had nothing to do


def test_a_cut_connection_is_resumed_by_itself(get: Fetch, web_server: Any) -> None:
    web_server.cut_after = [1000, 2000]
    get(attempts=3)
    assert get.target.read_bytes() == CONTENT
    assert web_server.asked == [None, "bytes=1000-", "bytes=3000-"]


def test_a_cut_connection_is_resumed_by_the_next_call(get: Fetch, web_server: Any) -> None:
    web_server.cut_after = [300_000]
    with pytest.raises(UserError, match=r"broke after 300,000 of 1,024,000 bytes.*it will resume"):
        get()
    assert not get.target.exists()
    assert get.part.read_bytes() == CONTENT[:300_000]
    get()
    assert get.target.read_bytes() == CONTENT
    assert web_server.asked[1] == "bytes=300000-"


def test_a_server_without_ranges_starts_again(get: Fetch, web_server: Any) -> None:
    web_server.cut_after = [5000]
    web_server.ranges = False
    get(attempts=2)
    assert get.target.read_bytes() == CONTENT


def test_without_a_length_the_checksum_decides(get: Fetch, web_server: Any) -> None:
    web_server.content_length = False
    get(size=None)
    assert get.target.read_bytes() == CONTENT
    assert get.progress[-1] == (len(CONTENT), None)


def test_a_wrong_checksum_deletes_the_part_and_keeps_the_old_file(get: Fetch) -> None:
    get.target.parent.mkdir()
    get.target.write_bytes(b"old")
    with pytest.raises(UserError, match=r"with sha256 .*the file was deleted"):
        get(digest="0" * 64)
    assert get.target.read_bytes() == b"old"
    assert not get.part.exists()
    get()
    assert get.target.read_bytes() == CONTENT


def test_a_complete_partial_file_is_not_downloaded_again(get: Fetch, web_server: Any) -> None:
    get.part.parent.mkdir()
    get.part.write_bytes(CONTENT)
    get()
    assert get.target.read_bytes() == CONTENT
    assert web_server.asked == []


def test_a_partial_file_that_is_too_long_is_deleted(get: Fetch, web_server: Any) -> None:
    get.part.parent.mkdir()
    get.part.write_bytes(CONTENT + b"more")
    get()
    assert get.target.read_bytes() == CONTENT
    get.target.unlink()
    get.part.write_bytes(CONTENT + b"more")
    get(size=None, attempts=2)  # the server says 416
    assert get.target.read_bytes() == CONTENT


def test_an_unexpected_size_is_refused_before_the_download(get: Fetch) -> None:
    with pytest.raises(UserError, match="has 1,024,000 bytes, expected 7"):
        get(size=7)
    assert not get.part.exists()


def test_errors_of_the_server_and_the_network(get: Fetch, web_server: Any) -> None:
    with pytest.raises(UserError, match="404"):
        get(url=f"{web_server.address}/none.bin")
    web_server.status = [503, 503]
    with pytest.raises(UserError, match="503"):
        get(attempts=2)
    web_server.status = [503]
    get(attempts=2)
    get.target.unlink()
    with pytest.raises(UserError, match=r"no connection.*check your network"):
        get(url="http://127.0.0.1:9/set.bin")
    with pytest.raises(UserError, match="not a web address"):
        get(url="file:///etc/hostname")


def test_a_silent_server_times_out(get: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codinet.data.download._TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/set.bin"
        with pytest.raises(UserError, match="no connection: timed out"):
            get(url=url)


def test_a_server_that_sends_too_slowly_is_given_up(get: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codinet.data.download._TIMEOUT", 0.2)

    def drip(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1024000\r\n\r\n")
            for byte in CONTENT:
                connection.sendall(bytes([byte]))
                time.sleep(0.02)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=drip, args=(server,), daemon=True).start()
        with pytest.raises(UserError, match=r"only \d+ bytes in 0\.2 seconds"):
            get(url=f"http://127.0.0.1:{server.getsockname()[1]}/set.bin")
    assert CONTENT.startswith(get.part.read_bytes())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: file:///etc/hostname\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://[\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: ftp://127.0.0.1:9/x\r\n\r\n",
        b"nonsense",
        b"",
    ],
)
def test_invalid_responses_are_explained(get: Fetch, answer: bytes) -> None:
    def once(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=once, args=(server,), daemon=True).start()
        with pytest.raises(UserError, match="could not be downloaded"):
            get(url=f"http://127.0.0.1:{server.getsockname()[1]}/set.bin")


@pytest.mark.parametrize("url", ["http://[", "http://127.0.0.1:x/", "http://\n", "http://\u2603:9/", "http://"])
def test_invalid_addresses_are_refused(get: Fetch, url: str) -> None:
    with pytest.raises(UserError, match=r"not a web address|could not be downloaded"):
        get(url=url)


@pytest.mark.timeout(30)
def test_a_named_pipe_in_place_of_the_part_is_refused_at_once(get: Fetch) -> None:
    get.part.parent.mkdir()
    os.mkfifo(get.part)
    with pytest.raises(UserError, match="cannot be written"):
        get()


def test_a_full_disk_is_reported_before_the_download(get: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10})())
    with pytest.raises(UserError, match="10 bytes free"):
        get()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_fills_up_is_explained(get: Fetch) -> None:
    get.part.parent.mkdir()
    get.part.symlink_to("/dev/full")
    with pytest.raises(UserError, match="the disk is full"):
        get()
    assert not get.target.exists()


def test_a_folder_that_cannot_be_written(get: Fetch, tmp_path: Path) -> None:
    (tmp_path / "new").write_text("a file where the folder should be")
    with pytest.raises(UserError, match="cannot be written"):
        get()


def test_checksum(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert checksum(tmp_path / "a", "md5") == "900150983cd24fb0d6963f7d28e17f72"
    assert os.listdir(tmp_path) == ["a"]


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

    def publish(content: bytes, name: str = "toy.tar.gz") -> KnownDataset:
        web_server.files[name] = content
        train = KnownFile("train.bin", hashlib.md5(FILES["train.bin"]).hexdigest(), len(FILES["train.bin"]))
        layout = Layout("toy-set", (train, KnownFile("names.txt", lines=2)) if name.endswith("gz") else (train,))
        known = KnownDataset("toy", "Toy", "", "", "", (layout,), (archive(f"{web_server.address}/{name}", content),))
        monkeypatch.setitem(KNOWN, "toy", known)
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


def test_an_existing_folder_is_renamed(tmp_path: Path, publish: Callable[..., Any]) -> None:
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


def test_verify_reports_every_kind_of_difference(tmp_path: Path, publish: Callable[..., Any]) -> None:
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


def test_odd_names_and_roots_are_refused(tmp_path: Path) -> None:
    wrong: Any
    for wrong in (None, 7, ["cifar10"]):
        for asked in (verify, download):
            with pytest.raises(UserError, match="The name of a data set must be a string, got"):
                asked(wrong, tmp_path)
    for asked in (verify, download):
        with pytest.raises(UserError, match=r"must be a pathlib\.Path, got 'data'"):
            asked("cifar10", "data")  # type: ignore[arg-type]
        with pytest.raises(UserError, match=r"cannot be read \(File name too long\)"):
            asked("cifar10", Path("x" * 5000))
