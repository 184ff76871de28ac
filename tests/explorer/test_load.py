"""A hundred predictions at once: all answered, memory bounded, one visitor too many told to come back."""

import http.client
import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from codinet.data import Dataset
from codinet.explorer import app as app_module
from codinet.explorer.app import create_app
from codinet.explorer.limits import Limits
from codinet.explorer.serve import served
from codinet.explorer.uploads import decode
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
    """All of them at once, each from a thread of its own."""
    ready = threading.Barrier(visitors)

    def visit(_number: int) -> tuple[int, dict[str, Any], Any]:
        ready.wait(30)
        return post(address, content)

    with ThreadPoolExecutor(visitors) as pool:
        return list(pool.map(visit, range(visitors)))


@pytest.mark.skipif(sys.platform != "linux", reason="reads memory from /proc")
def test_a_hundred_at_once_are_answered_with_bounded_memory(
    explore_process: Callable[..., tuple[int, tuple[str, int]]], finished_run: Path, photo: Callable[..., bytes]
) -> None:
    process, address = explore_process(finished_run)
    content = photo(1600, 1200, "JPEG")
    assert len(content) > 1_000_000

    def memory(entry: str) -> float:
        """Megabytes that the server holds (VmRSS) or ever held (VmHWM)."""
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(entry)).split()[1]) / 1024

    crowd(address, content, 4)
    before = memory("VmRSS")
    answers = crowd(address, content, 100)
    assert [status for status, _, _ in answers] == [200] * 100
    assert len({json.dumps(said["image"]) for _, said, _ in answers}) == 1
    # All hundred decoded together would take about 1,500 MB, their files alone another 110.
    assert memory("VmHWM") - before < 150


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


def test_one_too_many_is_told_to_come_back(
    run: RunFolder, few: Dataset, photo: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    real = Image.open

    def slow(*args: Any, **words: Any) -> Any:
        go.wait(60)
        return real(*args, **words)

    content = photo()
    limits = Limits(uploads=2, workers=1, waiting=1)
    with served(create_app(run, few, limits=limits)) as url:
        address = parts(url)
        assert post(address, content)[0] == 200
        monkeypatch.setattr(Image, "open", slow)
        with ThreadPoolExecutor(8) as pool:
            coming = as_completed([pool.submit(post, address, content) for _ in range(8)])
            # Two are let in and one waits, and none of them is answered while the decoder stands still.
            refused = [next(coming).result() for _ in range(5)]
            go.set()
            others = [future.result()[0] for future in coming]
        assert [status for status, _, _ in refused] == [503] * 5
        assert all("busy" in said["error"] and headers["Retry-After"] == "2" for _, said, headers in refused)
        assert 200 in others
        assert set(others) <= {200, 503}
        assert post(address, content)[0] == 200  # and then there is room again
