"""Screenshots of a run's report and explorer for the README: `python -m tools.screenshots RUN OUT_DIR`.

RUN is a run folder or zoo:NAME. Requires the Python package playwright and a Chromium installed on the system. The
report is RUN/report/index.html; it is skipped if `codinet report` has not written it.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from codinet.cli import guarded
from codinet.data import DATA_ROOT
from codinet.errors import UserError
from codinet.runs import open_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Chromium starts as root, as in containers, only without its sandbox. The other flags keep it off the network.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str | None:
    """The system's Chromium: CODINET_CHROMIUM, or one of the usual names on PATH; None if there is none."""
    return os.environ.get("CODINET_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)


@contextmanager
def chromium() -> Iterator["Browser"]:
    """A headless browser, closed at the end; `UserError` if Playwright or Chromium is missing."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as missing:
        raise UserError("Screenshots require Playwright; install it with pip install playwright.") from missing
    program = find_chromium()
    if program is None:
        raise UserError("Screenshots require Chromium; install it, or set CODINET_CHROMIUM to its path.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def screenshots(run: Path, out: Path, *, data_root: Path, image: int) -> list[Path]:
    """Takes the screenshots.

    Args:
        run: A run folder, or zoo:NAME.
        out: Folder to write PNG files into.
        data_root: Folder of the data sets.
        image: Index of the test image to show.

    Returns:
        The files.
    """
    from codinet.explorer.app import create_app
    from codinet.explorer.serve import served

    folder = open_run(run)
    dataset = folder.load_dataset(data_root)
    report = run / "report" / "index.html"
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with chromium() as browser, served(create_app(folder, dataset)) as url:
        for scheme, width in (("light", 1280), ("dark", 1280), ("light", 390)):
            name = f"{scheme}.png" if width > 600 else "phone.png"
            with _page(browser, scheme, width) as page:
                _explore(page, url, image)
                page.screenshot(path=out / f"explorer-{name}", full_page=True)
                written.append(out / f"explorer-{name}")
            if report.exists():
                with _page(browser, scheme, width) as page:
                    page.goto(report.resolve().as_uri())
                    page.set_viewport_size({"width": width, "height": 1500})  # the full page is too long
                    page.screenshot(path=out / f"report-{name}")
                    written.append(out / f"report-{name}")
    return written


@contextmanager
def _page(browser: "Browser", scheme: str, width: int) -> Iterator["Page"]:
    context = browser.new_context(
        viewport={"width": width, "height": 860},
        color_scheme="dark" if scheme == "dark" else "light",
        reduced_motion="reduce",
        device_scale_factor=1.5,
    )
    try:
        yield context.new_page()
    finally:
        context.close()


def _explore(page: "Page", url: str, image: int) -> None:
    """Opens the explorer at one test image and waits for its map."""
    page.goto(url)
    page.locator("#shown").wait_for()
    page.locator('input[name="order"][value="hardest"]').check(force=True)
    page.locator('input[name="view"][value="upside-down"]').check(force=True)
    page.locator("#number").fill(str(image))
    page.locator("#number").press("Enter")
    page.locator(f'#picture[title="Test image {image}"]').wait_for()
    page.locator("#map-status:empty").wait_for(state="attached", timeout=120_000)
    page.locator("#number").fill("")
    page.locator("#number").blur()
    page.evaluate("scrollTo(0, 0)")  # otherwise sticky elements end up in the middle
    page.wait_for_load_state("networkidle")


def main(argv: list[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.screenshots", description=__doc__)
    parser.add_argument("run", type=Path, help="run folder or zoo:NAME")
    parser.add_argument("out", type=Path, help="folder to write PNG files into")
    parser.add_argument("--data-root", type=Path, default=DATA_ROOT, help="folder that holds the data sets")
    parser.add_argument("--image", type=int, default=3, help="index of the test image to show")
    args = parser.parse_args(argv)

    def call() -> int:
        for file in screenshots(args.run, args.out, data_root=args.data_root, image=args.image):
            print(file)
        return 0

    return guarded(call)


if __name__ == "__main__":
    sys.exit(main())
