"""Attacks by servers and archives."""

import functools
import hashlib
import io
import random
import socket
import tarfile
import threading
from contextlib import suppress
from pathlib import Path

from tests.attack.damage import damaged, place
from tests.attack.harness import Attack

from codinet.data import catalogue, download
from codinet.data.catalogue import Archive, KnownDataset, KnownFile, Layout


class Server:
    """Answers each connection with prepared bytes and closes it."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            connection, _ = self.socket.accept()
            with connection, suppress(OSError):
                connection.settimeout(1)
                connection.recv(65536)
                connection.sendall(self.answers.pop(0) if self.answers else b"")


server = functools.cache(Server)


def attack_downloads(rng: random.Random, folder: Path) -> None:
    content = rng.randbytes(1000)
    digest = hashlib.sha256(content).hexdigest()
    numbers = [b"1000", b"0", b"-1", b"999", b"1001", b"9" * 5000, b"\xb2", b"1e3", b"", b"x"]
    target = folder / rng.choice(["set.bin", "new/set.bin", "x" * 300])

    def answer() -> bytes:
        statuses = [b"206 Partial", b"404 No", b"500 Oops", b"416 Range", b"302 Found", b"xyz", b"99999 No"]
        ranges = [b"bytes 0-999/1000", b"bytes 300-999/1000", b"x", b"\xff"]
        places = [b"/again", b"ftp://127.0.0.1:9/x", b"file:///etc/passwd", b"http://[", b"http://x:99999/", b"\xff"]
        more = [b"Transfer-Encoding: chunked\r\n", b"Content-Encoding: gzip\r\n", b"x" * 70_000, b"A: b\r\n" * 200]
        bodies = [content, content[:500], content[300:], content * 2, b"", b"5\r\nhello\r\n0\r\n\r\n", b"zz\r\n"]
        head = b"HTTP/1.1 " + (b"200 OK" if rng.random() < 0.3 else rng.choice(statuses)) + b"\r\n"
        if rng.random() < 0.7:
            head += b"Content-Length: " + rng.choice([numbers[0], *numbers]) + b"\r\n"
        if rng.random() < 0.4:
            head += b"Content-Range: " + rng.choice(ranges) + b"\r\n"
        if rng.random() < 0.2:
            head += b"Location: " + rng.choice(places) + b"\r\n"
        if rng.random() < 0.2:
            head += rng.choice(more)
        answered = head + b"\r\n" + rng.choice([content, *bodies])
        return rng.choice([answered, answered, head, b"", rng.randbytes(50)])

    right = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + content
    server().answers[:] = [answer(), rng.choice([answer(), right]), right]
    if rng.random() < 0.3:
        part = target.with_name(target.name + ".part")
        with suppress(OSError):
            part.parent.mkdir(exist_ok=True)
            place(rng, part, content[: rng.choice([0, 300, 1000])] + rng.choice([b"", b"more" * 500]))
    urls = ["http://", "http://[", "http://127.0.0.1:x/", "http://\n", "ftp://x/", "", "http://\u2603:9/"]
    download.fetch(
        f"{server().address}/set.bin" if rng.random() < 0.7 else rng.choice(urls),
        target,
        digest=digest,
        algorithm="sha256",
        size=rng.choice([1000, 1000, 1000, None, 7]),
        progress=lambda _done, _total: None,
        attempts=2,
        pause=0.0,
    )
    assert target.read_bytes() == content


def attack_tars(rng: random.Random, folder: Path) -> None:
    """Archives with the right checksum and anything inside."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        outside = ["toy/../../escaped", "/tmp/codinet-escaped", "toy/x" * 60, "toy/\udcff", "x"]
        for name in ("toy/data.bin", rng.choice(outside)):
            member = tarfile.TarInfo(name)
            kinds = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE]
            member.type = tarfile.REGTYPE if rng.random() < 0.5 else rng.choice(kinds)
            member.linkname = rng.choice(["", "/etc/passwd", "../../x", "data.bin"])
            member.size = 100 if member.type == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(b"x" * 100))
    content = stream.getvalue() if rng.random() < 0.5 else damaged(rng, stream.getvalue())
    wanted = KnownFile("data.bin", hashlib.md5(b"x" * 100).hexdigest(), 100)
    archive = Archive("http://127.0.0.1:9/toy.tar.gz", hashlib.sha256(content).hexdigest(), "", len(content))
    root = folder / "root"
    root.mkdir()
    (root / "toy.tar.gz").write_bytes(content)
    catalogue.KNOWN["toy"] = KnownDataset("toy", "Toy", "", "", "", (Layout("toy", (wanted,)),), (archive,))
    try:
        assert (download.download("toy", root) / "data.bin").read_bytes() == b"x" * 100
    finally:
        del catalogue.KNOWN["toy"]
        assert [path.name for path in folder.iterdir()] == ["root"]
        assert not Path("/tmp/codinet-escaped").exists()


ATTACKS = [
    Attack("data: hostile servers", attack_downloads, weight=0.5),
    Attack("data: hostile archives", attack_tars, weight=0.5),
]
