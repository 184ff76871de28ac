import hashlib
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from codinet.data import download
from codinet.data.download import checksum, fetch
from codinet.errors import UserError

CONTENT = bytes(range(256)) * 4000  # about a megabyte
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Fetch:
    """`fetch` of one file with everything right unless told otherwise."""

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
    with pytest.raises(UserError, match=r"sha256 is .*it was deleted"):
        get(digest="0" * 64)
    assert get.target.read_bytes() == b"old"
    assert not get.part.exists()
    get()
    assert get.target.read_bytes() == CONTENT


def test_a_complete_part_is_only_checked(get: Fetch, web_server: Any) -> None:
    get.part.parent.mkdir()
    get.part.write_bytes(CONTENT)
    get()
    assert get.target.read_bytes() == CONTENT
    assert web_server.asked == []


def test_a_part_that_is_too_long_is_thrown_away(get: Fetch, web_server: Any) -> None:
    get.part.parent.mkdir()
    get.part.write_bytes(CONTENT + b"more")
    get()
    assert get.target.read_bytes() == CONTENT
    get.target.unlink()
    get.part.write_bytes(CONTENT + b"more")
    get(size=None, attempts=2)  # the server says 416
    assert get.target.read_bytes() == CONTENT


def test_another_size_than_expected_is_refused_untouched(get: Fetch) -> None:
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
    monkeypatch.setattr(download, "_TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/set.bin"
        with pytest.raises(UserError, match="no connection: timed out"):
            get(url=url)


def test_a_server_that_sends_too_slowly_is_given_up(get: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_TIMEOUT", 0.2)

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
def test_nonsense_from_a_server_is_a_sentence(get: Fetch, answer: bytes) -> None:
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
def test_addresses_that_are_not(get: Fetch, url: str) -> None:
    with pytest.raises(UserError, match=r"not a web address|could not be downloaded"):
        get(url=url)


@pytest.mark.timeout(30)
def test_a_named_pipe_in_place_of_the_part_is_refused_at_once(get: Fetch) -> None:
    get.part.parent.mkdir()
    os.mkfifo(get.part)
    with pytest.raises(UserError, match="cannot be written"):
        get()


def test_not_enough_disk_is_said_before_the_download(get: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10})())
    with pytest.raises(UserError, match="10 bytes free"):
        get()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_that_fills_up(get: Fetch) -> None:
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
