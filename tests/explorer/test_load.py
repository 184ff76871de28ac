"""A hundred uploads at once, and hundreds of slow clients: requests are answered within the memory limit."""

import http.client
import itertools
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from codinet.data import Dataset
from codinet.explorer import app as app_module
from codinet.explorer.app import create_app
from codinet.explorer.guard import Limits, decode
from codinet.explorer.serve import served
from codinet.runs import RunFolder


def post(address: tuple[str, int], content: bytes) -> tuple[int, dict[str, Any], http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(*address, timeout=60)
    try:
        connection.request("POST", "/api/route", content, {"Content-Type": "application/octet-stream"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), answer.headers
    finally:
        connection.close()


def crowd(address: tuple[str, int], content: bytes, visitors: int) -> list[tuple[int, dict[str, Any], Any]]:
    """Sends all of them at once, each from its own thread."""
    ready = threading.Barrier(visitors)

    def visit(_number: int) -> tuple[int, dict[str, Any], Any]:
        ready.wait(30)
        return post(address, content)

    with ThreadPoolExecutor(visitors) as pool:
        return list(pool.map(visit, range(visitors)))


@contextmanager
def bounded_memory(process: int, megabytes: float) -> Iterator[None]:
    """Asserts that the memory of the process grows by at most this much in the block."""

    def status(entry: str) -> float:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(entry)).split()[1]) / 1024

    Path(f"/proc/{process}/clear_refs").write_text("5")  # forgets the peak
    before = status("VmRSS")
    yield
    assert status("VmHWM") - before < megabytes


@pytest.mark.skipif(sys.platform != "linux", reason="reads memory from /proc")
def test_a_hundred_at_once_are_answered_with_bounded_memory(
    explore_process: tuple[int, tuple[str, int]], photo: Callable[..., bytes]
) -> None:
    process, address = explore_process
    content = photo(1600, 1200, "JPEG")
    assert len(content) > 1_000_000

    crowd(address, content, 4)
    # All hundred decoded at once would take about 1,500 MB, and their files another 110.
    with bounded_memory(process, 150):
        answers = crowd(address, content, 100)
    assert [status for status, _, _ in answers] == [200] * 100
    assert len({json.dumps(said["image"]) for _, said, _ in answers}) == 1


def test_pictures_are_decoded_one_at_a_time(
    run: RunFolder, few: Dataset, photo: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, overlaps = threading.Lock(), []

    def alone(*args: Any) -> Any:
        overlaps.append(not lock.acquire(blocking=False))
        time.sleep(0.02)
        if not overlaps[-1]:
            lock.release()
        return decode(*args)

    monkeypatch.setattr(app_module, "decode", alone)
    with served(create_app(run, few)) as url:
        answers = crowd(parts(url), photo(), 12)
    assert [status for status, _, _ in answers] == [200] * 12
    assert overlaps == [False] * 12


def parts(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    return host, int(port)


def test_more_than_can_wait_are_refused(
    run: RunFolder, few: Dataset, photo: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    real = Image.open

    def slow(*args: Any, **words: Any) -> Any:
        go.wait(60)
        return real(*args, **words)

    content = photo()
    limits = Limits(workers=1, waiting=2)
    with served(create_app(run, few, limits=limits)) as url:
        address = parts(url)
        assert post(address, content)[0] == 200
        monkeypatch.setattr(Image, "open", slow)
        with ThreadPoolExecutor(8) as pool:
            coming = as_completed([pool.submit(post, address, content) for _ in range(8)])
            # One is being decoded and two wait; none of them is answered while the decoder is stopped.
            refused = [next(coming).result() for _ in range(5)]
            go.set()
            others = [future.result()[0] for future in coming]
        assert [status for status, _, _ in refused] == [503] * 5
        assert all("busy" in said["error"] and headers["Retry-After"] == "2" for _, said, headers in refused)
        assert 200 in others
        assert set(others) <= {200, 503}
        assert post(address, content)[0] == 200  # there is capacity again


HALF_A_HEADER = b"GET /api/run HTTP/1.1\r\nHost: 127.0.0.1\r\nX-"
START_OF_A_BODY = (
    b"POST /api/route HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"
    b"Content-Length: 9000000\r\n\r\nabc"
)


@contextmanager
def slow_clients(address: tuple[str, int], number: int, *starts: bytes) -> Iterator[list[socket.socket]]:
    """Clients that send only the start of a request, alternating between these."""
    with ExitStack() as stack:
        links = [stack.enter_context(socket.create_connection(address, timeout=60)) for _ in range(number)]
        for link, start in zip(links, itertools.cycle(starts), strict=False):
            link.sendall(start)
        yield links


def ended(link: socket.socket) -> bool:
    """Whether the server closes the connection within its time limits."""
    try:
        while link.recv(1000):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="reads memory from /proc")
@pytest.mark.parametrize(
    "starts",
    [
        [HALF_A_HEADER, START_OF_A_BODY],
        [START_OF_A_BODY],
        [START_OF_A_BODY + b"a" * 900_000],  # 90 MB in all
    ],
)
def test_a_hundred_slow_clients_do_not_delay_an_upload(
    explore_process: tuple[int, tuple[str, int]], photo: Callable[..., bytes], starts: list[bytes]
) -> None:
    process, address = explore_process
    content = photo(800, 600, "JPEG")
    assert post(address, content)[0] == 200
    with bounded_memory(process, 150), slow_clients(address, 100, *starts):
        for _ in range(5):
            began = time.monotonic()
            assert post(address, content)[0] == 200
            assert time.monotonic() - began < 2
    assert post(address, content)[0] == 200


def test_more_than_a_thousand_half_headers_do_not_block_the_server(
    run: RunFolder, few: Dataset, photo: Callable[..., bytes]
) -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2000:  # the clients need more files than most systems allow at first
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(2000, hard) if hard >= 0 else 2000, hard))
    content = photo()
    with served(create_app(run, few, limits=Limits(idle_seconds=2.5))) as url:
        address = parts(url)
        assert post(address, content)[0] == 200
        with slow_clients(address, 1100, HALF_A_HEADER) as links:
            began = time.monotonic()
            assert post(address, content)[0] == 200
            assert time.monotonic() - began < 2
            assert all(map(ended, links))  # also those that were not closed for others
        assert post(address, content)[0] == 200
