"""Screenshots of a run's report and explorer: `python -m tools.screenshots RUN OUT_DIR`.

RUN is a run folder or zoo:NAME. They are taken in light and dark at the widths 1280 and 390 (phone). The report is
RUN/report/index.html, or --report; it is skipped if `codinet report` has not written it. With --gif, an animation of
the explorer is written instead. Requires the Python package playwright and a Chromium installed on the system.
"""

import argparse
import io
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from PIL import Image

from codinet.cli import guarded
from codinet.data import DATA_ROOT, Dataset
from codinet.errors import UserError
from codinet.run_reader import RunReader
from codinet.runs import open_run
from tools import animation

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, ViewportSize

# Chromium starts as root, as in containers, only without its sandbox. The other flags keep it off the network.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
Scheme = Literal["light", "dark"]
# The names of the files, by width and colour scheme.
SHOTS: dict[int, dict[Scheme, str]] = {
    1280: {"light": "light", "dark": "dark"},
    390: {"light": "phone", "dark": "phone-dark"},
}
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


def screenshots(run: Path, out: Path, *, data_root: Path, image: int, report: Path | None = None) -> list[Path]:
    """Takes the screenshots.

    Args:
        run: A run folder, or zoo:NAME.
        out: Folder to write PNG files into.
        data_root: Folder of the data sets.
        image: Index of the test image to show.
        report: HTML file of the report; by default report/index.html of the run.

    Returns:
        The files.
    """
    from codinet.explorer.app import create_app
    from codinet.explorer.serve import served

    folder = open_run(run)
    dataset = _dataset(folder, data_root)
    report = report or run / "report" / "index.html"
    out.mkdir(parents=True, exist_ok=True)
    written = []
    with chromium() as browser, served(create_app(folder, dataset)) as url:
        for width, names in SHOTS.items():
            with _page(browser, width) as page:
                _explore(page, url, image)
                for scheme, name in names.items():
                    page.emulate_media(color_scheme=scheme)
                    written.append(_save(page.screenshot(full_page=True), out / f"explorer-{name}.png"))
                if not report.exists():
                    continue
                page.goto(report.resolve().as_uri())
                page.set_viewport_size({"width": width, "height": 1500})  # the full page is too long
                for scheme, name in names.items():
                    page.emulate_media(color_scheme=scheme)
                    written.append(_save(page.screenshot(), out / f"report-{name}.png"))
    return written


def gif(run: Path, out: Path, *, data_root: Path, image: int) -> Path:
    """Records an animation of the explorer: an image is dropped, its path appears, the threshold moves.

    Args:
        run: A run folder, or zoo:NAME.
        out: Folder to write explorer.gif into.
        data_root: Folder of the data sets.
        image: Index of the test image to drop.

    Returns:
        The file.
    """
    from codinet.explorer.app import create_app
    from codinet.explorer.serve import served

    folder = open_run(run)
    out.mkdir(parents=True, exist_ok=True)
    with chromium() as browser, served(create_app(folder, _dataset(folder, data_root))) as url:
        size: ViewportSize = {"width": animation.VIEW_WIDTH, "height": animation.VIEW_HEIGHT}
        context = browser.new_context(viewport=size, color_scheme="light", reduced_motion="reduce")
        animation.record(context.new_page(), url, image, out / "explorer.gif")
        context.close()
    return out / "explorer.gif"


def _dataset(folder: RunReader, data_root: Path) -> Dataset | None:
    """The run's data set; None for a network of the zoo that comes with sample images."""
    try:
        return folder.load_dataset(data_root)
    except UserError:
        if folder.sample_images() is None:
            raise
        return None


def _save(png: bytes, file: Path) -> Path:
    """Writes a screenshot with 256 colours, which takes a third of the space."""
    with Image.open(io.BytesIO(png)) as picture:
        picture.convert("RGB").quantize(256, method=Image.Quantize.FASTOCTREE).save(file)
    return file


@contextmanager
def _page(browser: "Browser", width: int) -> Iterator["Page"]:
    context = browser.new_context(
        viewport={"width": width, "height": 960}, reduced_motion="reduce", device_scale_factor=1.5
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
    if page.locator("#by-number").is_visible():
        page.locator("#number").fill(str(image))
        page.locator("#number").press("Enter")
    else:  # only some test images are here
        page.wait_for_load_state("networkidle")
        if not page.locator(f'#gallery button[data-index="{image}"]').count():
            raise UserError(f"Test image {image} is not on this machine; pass --image with one that is.")
        page.locator(f'#gallery button[data-index="{image}"]').click()
    page.locator(f'#picture[title="Test image {image}"]').wait_for()
    page.locator("#map-status:empty").wait_for(state="attached", timeout=120_000)
    page.locator("#number").evaluate("field => { field.value = ''; document.activeElement.blur(); }")
    page.evaluate("scrollTo(0, 0)")  # otherwise sticky elements end up in the middle
    page.wait_for_load_state("networkidle")


def main(argv: list[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.screenshots", description=__doc__)
    parser.add_argument("run", type=Path, help="run folder or zoo:NAME")
    parser.add_argument("out", type=Path, help="folder to write PNG files into")
    parser.add_argument("--data-root", type=Path, default=DATA_ROOT, help="folder that holds the data sets")
    parser.add_argument("--image", type=int, default=3, help="index of the test image to show")
    parser.add_argument("--report", type=Path, help="HTML file of the report (default: RUN/report/index.html)")
    parser.add_argument("--gif", action="store_true", help="write explorer.gif instead of screenshots")
    args = parser.parse_args(argv)

    def call() -> int:
        if args.report is not None and not args.report.is_file():
            raise UserError(f"--report must be an HTML file that codinet report wrote, got {args.report}.")
        words = {"data_root": args.data_root, "image": args.image}
        if args.gif:
            print(gif(args.run, args.out, **words))
            return 0
        for file in screenshots(args.run, args.out, **words, report=args.report):
            print(file)
        return 0

    return guarded(call)


if __name__ == "__main__":
    sys.exit(main())
