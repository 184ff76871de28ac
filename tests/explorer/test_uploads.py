"""Uploads are bounded while they arrive, refused in a clear sentence, and left nowhere."""

import http.client
import io
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from codinet.data import Dataset
from codinet.explorer.app import create_app
from codinet.explorer.limits import Limits
from codinet.explorer.serve import served
from codinet.runs import RunFolder


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
def test_what_is_no_image_is_refused(upload: Callable[..., Any], content: bytes, word: str) -> None:
    answer = upload(content)
    assert answer.status_code == 422
    assert word in answer.json()["error"]


def test_an_image_cut_short_is_refused(upload: Callable[..., Any], photo: Callable[..., bytes]) -> None:
    answer = upload(photo(200, 200)[:5000])
    assert answer.status_code == 422
    assert "damaged or cut short" in answer.json()["error"]


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
    assert set(decoded) == {(40, 30)}  # what is taken does come by here


def test_pixels_just_over_the_bound_are_refused_and_just_under_taken(run: RunFolder, few: Dataset) -> None:
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
def test_any_bytes_get_a_sentence(upload: Callable[..., Any], content: bytes, prefix: bytes) -> None:
    answer = upload(prefix + content)
    assert answer.status_code in (200, 422)
    assert answer.status_code == 200 or answer.json()["error"].endswith(".")


@pytest.fixture(scope="module")
def address(run: RunFolder, few: Dataset) -> Iterator[tuple[str, int]]:
    """A real server that takes 100 kB."""
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


def test_an_announced_length_over_the_bound_is_refused_unread(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=60) as link:
        link.sendall(
            b"POST /api/route HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"
            b"Content-Length: 100001\r\n\r\n"
        )
        assert b"413" in link.recv(100)


def test_a_length_that_is_not_announced_is_counted_while_it_arrives(address: tuple[str, int]) -> None:
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
    assert sent < 30_000_000  # the server hung up; what more went out lay in the system's buffers


def test_a_slow_upload_is_given_up(run: RunFolder, few: Dataset) -> None:
    # A server of its own: on a busy machine, others would be too slow for half a second too.
    with (
        served(create_app(run, few, limits=Limits(upload_seconds=0.5))) as url,
        socket.create_connection(parts(url), timeout=25) as link,  # less than servers wait by default
    ):
        link.sendall(
            b"POST /api/route HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"
            b"Content-Length: 5000\r\n\r\nabc"
        )
        assert b"408" in link.recv(100)


def test_an_upload_that_breaks_off_harms_nobody(address: tuple[str, int], photo: Callable[..., bytes]) -> None:
    for _ in range(20):
        with socket.create_connection(address, timeout=60) as link:
            link.sendall(
                b"POST /api/route HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"
                b"Content-Length: 5000\r\n\r\nabc"
            )
    assert ask(address, photo())[0] == 200


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
