"""Which requests are answered, limits on uploads, and error messages."""

import asyncio
import http.client
import io
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from codinet.data import Dataset
from codinet.explorer.answers import Answers
from codinet.explorer.app import create_app
from codinet.explorer.guard import HEADERS, BusyError, Hosts, Limits, Workers
from codinet.explorer.serve import served
from codinet.runs import RunFolder

EVERYTHING = [
    "/",
    "/static/app.js",
    "/api/run",
    "/api/images",
    "/api/images/0.png",
    "/api/images/0/route?view=crop",
    "/api/map",
    "/nothing",
    "/api/images/99999.png",
    "/api/images?limit=x",
]


@pytest.mark.parametrize("path", EVERYTHING)
def test_every_answer_carries_the_policy(explorer: Any, path: str) -> None:
    headers = explorer.get(path).headers
    assert {name: headers.get(name) for name in HEADERS} == HEADERS
    assert "cache-control" in headers
    assert not [name for name in headers if name.lower().startswith("access-control")]


def test_policy_allows_no_other_servers() -> None:
    policy = dict(part.strip().split(" ", 1) for part in HEADERS["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'self'"
    assert policy["img-src"] == "'self' data: blob:"
    assert policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


def test_page_needs_no_exception_from_its_policy(explorer: Any) -> None:
    page = explorer.get("/").text
    assert not re.search(r"\son\w+=", page)  # event handlers
    assert not re.search(r"\sstyle=", page)
    assert not re.search(r"<script(?![^>]*\ssrc=)", page)
    assert "<style" not in page
    assert not re.search(r"https?://", page)


@pytest.mark.parametrize(
    ("host", "served"),
    [
        ("127.0.0.1:8000", True),
        ("localhost:8000", True),
        ("LOCALHOST", True),
        ("[::1]:8000", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:8000", False),
        ("evil.example:8000#@127.0.0.1", False),
        ("127.0.0.1@evil.example", False),
        ("192.168.0.7:8000", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_only_its_own_host_is_answered(explorer: Any, host: str, served: bool) -> None:
    for path in ("/", "/api/run"):
        answer = explorer.get(path, headers={"host": host})
        assert answer.status_code == (200 if served else 403)
        assert served or "Host header must name" in answer.json()["error"]


def test_hosts_of_a_named_and_of_every_address() -> None:
    named = Hosts.of("Lab.example")
    assert named.allow("lab.example:80")
    assert named.allow("localhost")
    assert not named.allow("192.168.0.7")
    everywhere = Hosts.of("0.0.0.0")
    assert everywhere.allow("192.168.0.7:8000")
    assert everywhere.allow("[fe80::1]:8000")
    assert not everywhere.allow("evil.example")
    assert not named.allow(None)


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"origin": "http://127.0.0.1:8000", "sec-fetch-site": "same-origin"}, True),
        ({"origin": "http://127.0.0.1:9000"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "https://127.0.0.1"}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "none"}, True),
        ({"origin": "http://[bad"}, False),
    ],
)
def test_requests_of_other_origins_are_refused(
    explorer: Any, photo: Callable[..., bytes], headers: dict[str, str], allowed: bool
) -> None:
    octets = {"content-type": "application/octet-stream"}
    for answer in (
        explorer.post("/api/route", content=photo(), headers={**octets, **headers}),
        explorer.get("/api/images/0/route", headers=headers),
        explorer.get("/api/images/0.png", headers=headers),
    ):
        assert answer.status_code == (200 if allowed else 403)
        assert allowed or answer.json() == {"error": "Requests from other pages are refused."}


def test_a_link_from_another_site_opens_the_page_and_nothing_else(explorer: Any) -> None:
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert explorer.get("/", headers=followed).status_code == 200
    assert explorer.get("/api/run", headers=followed).status_code == 403
    embedded = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert explorer.get("/", headers=embedded).status_code == 403


def test_preflights_are_refused(explorer: Any) -> None:
    asked = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    answer = explorer.options("/api/route", headers=asked)
    assert answer.status_code == 403
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]


def secrets(run: RunFolder) -> list[str]:
    """Every folder above the run and its data, except the root."""
    files = (run.path, Path(run.config.source), Path(__file__), Path(create_app.__code__.co_filename))
    return [str(part) for file in files for part in (file, *file.parents) if len(part.parts) > 1]


@pytest.mark.parametrize("path", EVERYTHING)
def test_no_answer_contains_a_path_of_the_disk(explorer: Any, run: RunFolder, path: str) -> None:
    text = explorer.get(path).content.decode(errors="replace")
    assert [secret for secret in secrets(run) if secret in text] == []


def test_the_answer_to_a_bug_has_no_details(run: RunFolder, few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: Any, **_words: Any) -> None:
        raise RuntimeError(f"cannot read {run.path}/model.safetensors")

    monkeypatch.setattr(Answers, "route", broken)
    app = create_app(run, few)
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        answer = client.get("/api/images/0/route")
    assert answer.status_code == 500
    assert answer.json() == {"error": "Internal error; see the terminal that runs the explorer."}
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS


# workers


def test_workers_run_a_few_at_a_time_and_refuse_the_rest() -> None:
    running, most, lock, go = 0, 0, threading.Lock(), threading.Event()

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        go.wait(60)
        with lock:
            running -= 1

    async def crowd() -> list[object]:
        workers = Workers(threads=2, waiting=3, seconds=60)
        tasks = [asyncio.create_task(workers.run(work)) for _ in range(8)]
        while running < 2:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)  # a third would start now
        go.set()
        ended: list[object] = await asyncio.gather(*tasks, return_exceptions=True)
        assert await workers.run(lambda: 7) == 7  # there is capacity again
        workers.close()
        return ended

    ended = asyncio.run(crowd())
    assert [type(end) for end in ended] == [type(None)] * 5 + [BusyError] * 3
    assert most == 2


def test_an_error_in_a_worker_reaches_the_caller() -> None:
    async def ask() -> None:
        workers = Workers(threads=1, waiting=0, seconds=60)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await workers.run(lambda: 1 / 0)
        workers.close()

    asyncio.run(ask())


def test_abandoned_work_still_counts() -> None:
    go = threading.Event()

    async def ask() -> None:
        workers = Workers(threads=1, waiting=1, seconds=0.1)
        for _ in range(2):  # the second one waits behind the first and is never started
            with pytest.raises(BusyError):
                await workers.run(go.wait, 60)
        crowd = [asyncio.create_task(workers.run(go.wait, 60)) for _ in range(2)]
        with pytest.raises(BusyError):
            await crowd[1]  # at once: the first is still computed, and one may wait
        go.set()
        assert await crowd[0]
        workers.close()
        for thread in workers.threads:
            thread.join(60)
            assert not thread.is_alive()

    asyncio.run(ask())


def test_a_timeout_inside_the_work_is_not_overload() -> None:
    def work() -> None:
        raise TimeoutError("mine")

    async def ask() -> None:
        workers = Workers(threads=1, waiting=0, seconds=60)
        with pytest.raises(TimeoutError, match="mine"):
            await workers.run(work)
        workers.close()

    asyncio.run(ask())


def test_without_a_thread_the_answer_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    workers = Workers(threads=2, waiting=0, seconds=60)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_left)
        with pytest.raises(BusyError):
            asyncio.run(workers.run(lambda: 7))
    assert asyncio.run(workers.run(lambda: 7)) == 7
    workers.close()


# uploads


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "empty"),
        (b"hello", "not an image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 50, "not an image"),
        (b"%PDF-1.7\n" + b"\0" * 50, "not an image"),
    ],
)
def test_an_upload_that_is_not_an_image_is_refused(upload: Callable[..., Any], content: bytes, word: str) -> None:
    answer = upload(content)
    assert answer.status_code == 422
    assert word in answer.json()["error"]


def test_an_image_cut_short_is_refused(upload: Callable[..., Any], photo: Callable[..., bytes]) -> None:
    answer = upload(photo(200, 200)[:5000])
    assert answer.status_code == 422
    assert "damaged or truncated" in answer.json()["error"]


def test_a_hundred_megapixels_are_refused_from_the_header(
    upload: Callable[..., Any],
    photo: Callable[..., bytes],
    hundred_megapixels: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, decoded = ImageFile.ImageFile.load, []

    def load(image: ImageFile.ImageFile) -> Any:
        decoded.append(image.size)
        return real(image)

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    answer = upload(hundred_megapixels)
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("The upload is too large: 10000×10000 pixels")
    assert decoded == []
    assert upload(photo(40, 30)).status_code == 200
    assert set(decoded) == {(40, 30)}  # an image that is accepted is decoded here


def test_pixels_up_to_the_limit_are_accepted(run: RunFolder, few: Dataset) -> None:
    from fastapi.testclient import TestClient

    def sent(width: int) -> int:
        stream = io.BytesIO()
        Image.new("L", (width, 10)).save(stream, "PNG")
        octets = {"content-type": "application/octet-stream"}
        return client.post("/api/route", content=stream.getvalue(), headers=octets).status_code

    with TestClient(create_app(run, few, limits=Limits(upload_pixels=1000)), base_url="http://localhost") as client:
        assert sent(100) == 200
        assert sent(101) == 422


def test_a_form_of_another_page_cannot_upload(explorer: Any, photo: Callable[..., bytes]) -> None:
    for kind in ("text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", ""):
        answer = explorer.post("/api/route", content=photo(), headers={"content-type": kind})
        assert answer.status_code == 415


@given(content=st.binary(max_size=400), prefix=st.sampled_from([b"", b"\xff\xd8\xff\xe0", b"GIF89a", b"RIFF", b"P6\n"]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_get_an_error_message(upload: Callable[..., Any], content: bytes, prefix: bytes) -> None:
    answer = upload(prefix + content)
    assert answer.status_code in (200, 422)
    assert answer.status_code == 200 or answer.json()["error"].endswith(".")


@pytest.fixture(scope="module")
def address(run: RunFolder, few: Dataset) -> Iterator[tuple[str, int]]:
    """A real server with an upload limit of 100 kB."""
    with served(create_app(run, few, limits=Limits(upload_bytes=100_000))) as url:
        yield parts(url)


def parts(url: str) -> tuple[str, int]:
    found = urlsplit(url)
    assert found.hostname
    assert found.port
    return found.hostname, found.port


def ask(address: tuple[str, int], body: Any, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(*address, timeout=60)
    try:
        connection.request("POST", "/api/route", body, {"Content-Type": "application/octet-stream", **headers})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_an_announced_length_over_the_limit_is_refused_unread(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=60) as link:
        link.sendall(
            b"POST /api/route HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"
            b"Content-Length: 100001\r\n\r\n"
        )
        assert b"413" in link.recv(100)


def test_uploads_without_a_length_are_limited_too(address: tuple[str, int]) -> None:
    sent = 0
    with socket.create_connection(address, timeout=60) as link:
        link.sendall(
            b"POST /api/route HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        with suppress(OSError):
            while sent < 50_000_000:
                link.sendall(b"2710\r\n" + b"\0" * 10_000 + b"\r\n")
                sent += 10_000
    assert sent < 30_000_000  # the server closed the connection; the rest is in the buffers of the system


def test_an_upload_that_takes_too_long_is_refused(run: RunFolder, few: Dataset) -> None:
    with (
        served(create_app(run, few, limits=Limits(upload_seconds=0.5))) as url,
        socket.create_connection(parts(url), timeout=25) as link,
    ):
        link.sendall(
            b"POST /api/route HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"
            b"Content-Length: 5000\r\n\r\nabc"
        )
        assert b"408" in link.recv(100)


def test_incomplete_uploads_do_not_affect_others(address: tuple[str, int], photo: Callable[..., bytes]) -> None:
    for _ in range(20):
        with socket.create_connection(address, timeout=60) as link:
            link.sendall(
                b"POST /api/route HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"
                b"Content-Length: 5000\r\n\r\nabc"
            )
    assert ask(address, photo())[0] == 200


def test_a_jpeg_with_many_scans_is_refused(upload: Callable[..., Any]) -> None:
    """100 kB of such scans keep the decoder busy for a minute."""
    stream = io.BytesIO()
    Image.new("L", (200, 200)).save(stream, "JPEG", progressive=True)
    content = stream.getvalue()
    scan = content[content.rindex(b"\xff\xda") : -2]
    assert upload(content[:-2] + scan * 100 + content[-2:]).status_code == 200
    answer = upload(content[:-2] + scan * 300 + content[-2:])
    assert answer.status_code == 422
    assert "more than 200 scans" in answer.json()["error"]


HEADER = (
    b"POST /api/route HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"
    b"Content-Length: %d\r\n\r\n"
)


def test_type_and_length_are_checked_before_the_body_arrives(address: tuple[str, int]) -> None:
    for change, status in (((b"octet-stream", b"json"), b"415"), ((b"5000", b"100001"), b"413")):
        with socket.create_connection(address, timeout=60) as link:
            link.sendall((HEADER % 5000).replace(*change))
            assert status in link.recv(100)


def test_an_upload_below_the_minimum_rate_is_refused(run: RunFolder, few: Dataset) -> None:
    with (
        served(create_app(run, few, limits=Limits(upload_grace=0.5))) as url,
        socket.create_connection(parts(url), timeout=25) as link,
    ):
        link.sendall(HEADER % 5000)
        for _ in range(25):  # bytes keep coming, but too few
            with suppress(OSError):
                link.send(b"a")
            time.sleep(0.1)
        assert b"408" in link.recv(100)


def test_uploads_that_lag_are_refused_when_others_need_the_memory(
    run: RunFolder, few: Dataset, photo: Callable[..., bytes]
) -> None:
    content = photo(200, 200)
    limits = Limits(upload_bytes=300_000, upload_memory=600_000, upload_start=10_000, upload_lag=0.2)
    assert limits.upload_start < len(content) < limits.upload_bytes
    with served(create_app(run, few, limits=limits)) as url:
        links = [socket.create_connection(parts(url), timeout=25) for _ in range(10)]
        for link in links:
            link.sendall(HEADER % 300_000 + b"a" * 20_000)
        for _ in range(3):
            started = time.monotonic()
            assert ask(parts(url), content)[0] == 200
            assert time.monotonic() - started < 2.5  # without it they would be refused after 5 s
        assert any(b"408" in link.recv(100) for link in links[:2])
        for link in links:
            link.close()


def test_uploads_wait_for_memory(run: RunFolder, few: Dataset, photo: Callable[..., bytes]) -> None:
    """Together they are larger than the memory, and none of them lags."""
    content = photo(200, 200)
    limits = Limits(upload_bytes=130_000, upload_memory=130_000, upload_start=0)
    with served(create_app(run, few, limits=limits)) as url, ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: ask(parts(url), content)[0], range(12)))
    assert answers == [200] * 12


def test_nothing_is_written(
    explorer: Any,
    upload: Callable[..., Any],
    run: RunFolder,
    photo: Callable[..., bytes],
    hundred_megapixels: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def state() -> dict[Path, tuple[int, int]]:
        return {file: (file.stat().st_size, file.stat().st_mtime_ns) for file in run.path.rglob("*")}

    import builtins
    import os
    import tempfile

    before, real_open, real_os_open = state(), builtins.open, os.open

    def watched_open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        assert not set(mode) & set("wax+"), f"{file} opened for writing"
        return real_open(file, mode, *args, **kwargs)

    def watched_os_open(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        assert not flags & (os.O_WRONLY | os.O_RDWR), f"{path} opened for writing"
        return real_os_open(path, flags, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", watched_open)
    monkeypatch.setattr(io, "open", watched_open)
    monkeypatch.setattr(os, "open", watched_os_open)
    monkeypatch.setattr(tempfile, "TemporaryFile", None)
    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", None)
    for content in (photo(900, 900), photo(30, 30, "JPEG"), b"no image", hundred_megapixels):
        assert upload(content, view="crop").status_code in (200, 422)
    assert state() == before
