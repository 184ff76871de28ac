"""Pictures of a run's report and explorer for the README: `python -m codinet.explorer.screenshots RUN OUT_DIR`.

RUN is a run folder, or zoo:NAME. Needs Playwright's Python client and a Chromium of the system. The report is
RUN/report/index.html, left out where `codinet report` has not written it.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from codinet.data import DATA_ROOT
from codinet.errors import UserError
from codinet.zoo.open_run import open_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# As root, as in containers, Chromium starts only without its sandbox; the rest keeps it from calling home.
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
    """The system's Chromium: CODINET_CHROMIUM, or one of the usual names on the path."""
    return os.environ.get("CODINET_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)


@contextmanager
def chromium() -> Iterator["Browser"]:
    """A headless browser while the block runs; `UserError` where there is none."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as missing:
        raise UserError("A browser is driven with Playwright; install it with pip install playwright.") from missing
    program = find_chromium()
    if program is None:
        raise UserError("There is no Chromium on this machine; install it, or name it in CODINET_CHROMIUM.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def screenshots(run: Path, out: Path, *, data_root: Path, image: int) -> list[Path]:
    """The files written; `image` is the test image shown."""
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
                written.append(_taken(page, out / f"explorer-{name}", whole=True))
            if report.exists():
                with _page(browser, scheme, width) as page:
                    page.goto(report.resolve().as_uri())
                    page.set_viewport_size({"width": width, "height": 1500})  # the whole page is many screens long
                    written.append(_taken(page, out / f"report-{name}", whole=False))
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
    """The page with one test image shown and its map ready."""
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
    page.evaluate("scrollTo(0, 0)")  # or what stays in view while scrolling would stand in the middle
    page.wait_for_load_state("networkidle")


def _taken(page: "Page", file: Path, *, whole: bool) -> Path:
    page.screenshot(path=file, full_page=whole)
    return file


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m codinet.explorer.screenshots", description=__doc__)
    parser.add_argument("run", type=Path, help="run folder, or zoo:NAME")
    parser.add_argument("out", type=Path, help="folder to write PNG files into")
    parser.add_argument("--data-root", type=Path, default=DATA_ROOT, help="folder that holds the data sets")
    parser.add_argument("--image", type=int, default=3, help="test image to show")
    args = parser.parse_args(words)
    try:
        for file in screenshots(args.run, args.out, data_root=args.data_root, image=args.image):
            print(file)
    except UserError as error:
        print(f"screenshots: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
