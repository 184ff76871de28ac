"""A real Chromium, and pages that record their errors.

Without Playwright or Chromium these tests are skipped and say why; in CI (CI=true), which installs both,
they fail instead.
"""

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from codinet.data import Dataset
from codinet.runs import RunFolder
from tools.screenshots import chromium, find_chromium


@dataclass
class Watched:
    """A page, its errors, and its requests to other servers."""

    page: Any
    errors: list[str] = field(default_factory=list)  # on the console, or thrown
    strangers: list[str] = field(default_factory=list)  # requests to other servers


@pytest.fixture(scope="session")
def browser_here() -> None:
    """Skips the test, or fails it in CI, if there is no browser."""
    missing = []
    if importlib.util.find_spec("playwright") is None:
        missing.append("Playwright (pip install playwright)")
    if find_chromium() is None:
        missing.append("Chromium (apt-get install chromium, or name it in CODINET_CHROMIUM)")
    if missing:
        sentence = f"driven in a real browser, which needs {' and '.join(missing)}"
        if os.environ.get("CI") == "true":
            pytest.fail(sentence)
        pytest.skip(sentence)


@pytest.fixture(scope="module")
def browser(browser_here: None) -> Iterator[Any]:
    # No longer than a module: while it lives, nothing else in this thread can run an event loop.
    with chromium() as started:
        yield started


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Watched]]:
    """Opens a URL in a new context. After the test, checks that there were no errors or requests to other servers."""
    visits: list[Watched] = []
    contexts = []

    def go(url: str, *, width: int = 1280, height: int = 900, **words: Any) -> Watched:
        context = browser.new_context(viewport={"width": width, "height": height}, **words)
        contexts.append(context)
        watched = Watched(context.new_page())
        home = url.rpartition("/")[0] + "/"

        def asked(request: Any) -> None:
            if not request.url.startswith((home, "data:", "blob:")):
                watched.strangers.append(request.url)

        def said(message: Any) -> None:
            if message.type in ("error", "warning"):
                watched.errors.append(message.text)

        context.on("request", asked)
        watched.page.on("console", said)
        watched.page.on("pageerror", lambda error: watched.errors.append(str(error)))
        watched.page.set_default_timeout(15_000)
        watched.page.goto(url)
        visits.append(watched)
        return watched

    yield go
    for context in contexts:
        context.close()
    assert [watched.errors for watched in visits if watched.errors] == []
    assert [watched.strangers for watched in visits if watched.strangers] == []


@pytest.fixture(scope="module")
def run(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A copy of the small run, because the explorer saves its map there."""
    pytest.importorskip("fastapi", reason="the explorer needs the extra codinet[explore]")
    return RunFolder.open(shutil.copytree(finished_run, tmp_path_factory.mktemp("explored") / "run"))


@pytest.fixture(scope="module")
def home(run: RunFolder, few: Dataset) -> Iterator[str]:
    """The small run's explorer."""
    from codinet.explorer.app import create_app
    from codinet.explorer.serve import served

    with served(create_app(run, few)) as url:
        yield url
