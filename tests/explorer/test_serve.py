"""Valid and invalid addresses, and connections that keep the server waiting."""

import http.client
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from codinet.data import Dataset
from codinet.errors import UserError
from codinet.explorer.app import create_app
from codinet.explorer.guard import HEADERS, Limits
from codinet.explorer.serve import address, listen, served
from codinet.runs import RunFolder

HALF_A_HEADER = b"GET /api/run HTTP/1.1\r\nHost: 127.0.0.1\r\nX-"
START_OF_A_BODY = (
    b"POST /api/route HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"
    b"Content-Length: 9000000\r\n\r\nabc"
)
WHOLE_REQUEST = b"GET /api/run HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
LONG_ANSWER = b"GET /static/map.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def test_a_free_port_is_used_and_named() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert port > 0
        assert address("127.0.0.1", listener) == f"http://127.0.0.1:{port}/"
        assert address("0.0.0.0", listener) == f"http://127.0.0.1:{port}/"
        assert address("::", listener) == f"http://[::1]:{port}/"
        socket.create_connection(("127.0.0.1", port)).close()


def test_a_port_in_use_is_refused() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(UserError, match=f"^Port {port} is in use; choose another --port"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("port", [-1, 70_000])
def test_an_impossible_port_is_refused(port: int) -> None:
    with pytest.raises(UserError, match=f"^--port must be from 0 to 65535, got {port}"):
        listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a" * 64, "a..b", "\ud800", "a\0b", ""])
def test_an_impossible_host_is_refused(host: str) -> None:
    with pytest.raises(UserError, match="is not an address of this machine"):
        listen(host, 0)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(UserError, match=r"--host 192\.0\.2\.1 is not an address of this machine; omit it"):
        listen("192.0.2.1", 0)


@pytest.fixture
def start(run: RunFolder, few: Dataset) -> Iterator[Callable[..., tuple[str, int]]]:
    """Starts servers with given limits and returns their addresses."""
    servers = []

    def begin(**limits: Any) -> tuple[str, int]:
        server = served(create_app(run, few, limits=Limits(**limits)))
        servers.append(server)
        host, port = server.__enter__().removeprefix("http://").rstrip("/").split(":")
        return host, int(port)

    yield begin
    for server in servers:
        server.__exit__(None, None, None)


def sent(address: tuple[str, int], content: bytes) -> socket.socket:
    link = socket.create_connection(address, timeout=30)
    link.sendall(content)
    return link


def ends(link: socket.socket) -> bytes:
    """All bytes until the server closes the connection."""
    received = b""
    with link:
        try:
            while part := link.recv(65536):
                received += part
        except ConnectionResetError:
            pass
    return received


def ask(address: tuple[str, int]) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*address, timeout=30)
    try:
        connection.request("GET", "/api/run")
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("content", "answered"),
    [
        (b"", False),
        (b"G", False),
        (HALF_A_HEADER, False),
        (WHOLE_REQUEST, True),
        (WHOLE_REQUEST + HALF_A_HEADER, True),
        (WHOLE_REQUEST.replace(b"\r\n\r\n", b"\r\nContent-Length: 9000\r\n\r\nab"), True),
    ],
)
def test_a_connection_without_a_request_is_closed(
    start: Callable[..., tuple[str, int]], content: bytes, answered: bool
) -> None:
    received = ends(sent(start(idle_seconds=0.5), content))
    assert received.startswith(b"HTTP/1.1 200 OK") if answered else not received


def test_bytes_that_keep_coming_do_not_extend_the_time_for_a_header(start: Callable[..., tuple[str, int]]) -> None:
    link = sent(start(idle_seconds=1.0), HALF_A_HEADER)
    began = time.monotonic()
    with suppress(OSError), link:
        while time.monotonic() - began < 20:
            link.send(b"a")
            time.sleep(0.05)
    assert time.monotonic() - began < 10


def test_a_client_that_does_not_read_is_disconnected(start: Callable[..., tuple[str, int]]) -> None:
    address = start(idle_seconds=0.5)
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    link.settimeout(30)
    link.connect(address)
    link.sendall(LONG_ANSWER * 3000)
    time.sleep(3)
    assert len(ends(link)) < 20_000_000  # of 24 MB
    assert ask(address)[0] == 200


def test_more_connections_than_allowed_close_those_that_wait_for_their_client(
    start: Callable[..., tuple[str, int]],
) -> None:
    address = start(connections=5, upload_grace=2.0)
    links = [sent(address, content) for content in (HALF_A_HEADER, START_OF_A_BODY) for _ in range(20)]
    for _ in range(10):
        assert ask(address)[0] == 200
    # Those that are left get an answer when their time is over.
    assert sum(ends(link) == b"" for link in links) >= len(links) - 5


def test_more_requests_than_connections_are_refused(
    start: Callable[..., tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection whose request is being answered is not closed in favour of another."""
    from codinet.explorer.answers import Gallery

    go, entered = threading.Event(), threading.Semaphore(0)
    thumbnail = Gallery.thumbnail

    def slow(gallery: Gallery, index: int) -> bytes:
        entered.release()
        go.wait(60)
        return thumbnail(gallery, index)

    monkeypatch.setattr(Gallery, "thumbnail", slow)
    address = start(connections=5, workers=5)
    request = WHOLE_REQUEST.replace(b"/api/run", b"/api/images/0.png")
    with ExitStack() as stack:
        links = []
        for _ in range(5):
            links.append(stack.enter_context(sent(address, request)))
            assert entered.acquire(timeout=60)
        stack.callback(go.set)
        for _ in range(3):
            status, content = ask(address)
            assert status == 503
            assert b"busy" in content
        go.set()
        for link in links:
            assert link.recv(100).startswith(b"HTTP/1.1 200 OK")
    assert ask(address)[0] == 200


@pytest.mark.parametrize(
    "content",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        WHOLE_REQUEST.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        START_OF_A_BODY.replace(b"Content-Length: 9000000\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
        b"HEAD / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        WHOLE_REQUEST + b"hello\r\n\r\n",
        WHOLE_REQUEST.replace(b"\r\n", b"\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n", 1),
    ],
)
def test_bytes_that_are_not_http_leave_no_traceback(
    start: Callable[..., tuple[str, int]], caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    address = start(idle_seconds=0.5)
    with logged(caplog):
        ends(sent(address, content))
        slow = sent(address, content[:-4])  # and in two pieces
        time.sleep(0.2)
        slow.send(content[-4:])
        ends(slow)
        assert ask(address)[0] == 200
    assert caplog.records == []


def test_bytes_that_are_not_http_get_an_error_message(start: Callable[..., tuple[str, int]]) -> None:
    header, _, body = ends(sent(start(), b"hello\r\n\r\n")).partition(b"\r\n\r\n")
    assert header.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert json.loads(body) == {"error": "This is not a valid HTTP request."}
    assert all(f"{name}: {value}".encode() in header.split(b"\r\n") for name, value in HEADERS.items())


@contextmanager
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Also capture what uvicorn logs, which does not reach the root logger."""
    logger = logging.getLogger("uvicorn.error")
    logger.addHandler(caplog.handler)
    try:
        yield
    finally:
        logger.removeHandler(caplog.handler)


def test_the_server_ends_while_clients_are_slow(run: RunFolder, few: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as stack:
        url = stack.enter_context(served(create_app(run, few)))
        host, port = url.removeprefix("http://").rstrip("/").split(":")
        links = [sent((host, int(port)), content) for content in (HALF_A_HEADER, START_OF_A_BODY) for _ in range(20)]
        time.sleep(0.5)
        began = time.monotonic()
        with logged(caplog):
            stack.close()
    assert time.monotonic() - began < 5
    for link in links:
        assert ends(link) == b""
    assert caplog.records == []
