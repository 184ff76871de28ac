"""The explorer of the small run: in this process without a network, and as a process."""

import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from codinet.data import Dataset
from codinet.runs import RunFolder

OCTETS = {"content-type": "application/octet-stream"}


@pytest.fixture(scope="session")
def run(finished_run: Path) -> RunFolder:
    return RunFolder.open(finished_run)


@pytest.fixture(scope="session")
def explorer(run: RunFolder, few: Dataset) -> Iterator[Any]:
    """A client of the small run's explorer."""
    pytest.importorskip("fastapi", reason="the explorer needs the extra codinet[explore]")
    from fastapi.testclient import TestClient

    from codinet.explorer.app import create_app

    with TestClient(create_app(run, few), base_url="http://127.0.0.1:8000") as client:
        yield client


@pytest.fixture(scope="session")
def upload(explorer: Any) -> Callable[..., Any]:
    """Send bytes as the page does."""

    def send(content: Any, **words: Any) -> Any:
        return explorer.post("/api/route", params=words, content=content, headers=OCTETS)

    return send


@pytest.fixture(scope="session")
def photo() -> Callable[..., bytes]:
    """Noise as an image file."""

    def make(width: int = 40, height: int = 30, kind: str = "PNG", seed: int = 0) -> bytes:
        values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
        stream = io.BytesIO()
        Image.fromarray(values).save(stream, kind)
        return stream.getvalue()

    return make


@pytest.fixture(scope="session")
def hundred_megapixels() -> bytes:
    """A real PNG of 10,000 × 10,000 white pixels, a few kilobytes long."""
    stream = io.BytesIO()
    Image.new("1", (10_000, 10_000), 1).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture(scope="session")
def explore_process(finished_run: Path) -> Iterator[tuple[int, tuple[str, int]]]:
    """`codinet explore RUN` in its own process; yields its id and address."""
    code = (
        "import sys; from pathlib import Path; from codinet.commands.explore import Args, run; "
        "run(Args(Path(sys.argv[1]), port=0, device='cpu'))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(finished_run)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    with process.stdout:
        line = process.stdout.readline()
        found = re.search(r"http://([\d.]+):(\d+)/", line)
        assert found, line
        yield process.pid, (found[1], int(found[2]))
        process.terminate()
        process.wait(60)
