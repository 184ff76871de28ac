"""An animated GIF of the explorer: an image is dropped, its path appears, the threshold moves.

`python -m tools.screenshots RUN OUT_DIR --gif` writes it. Every frame is a screenshot of the real page; only the mouse
pointer is drawn.
"""

import base64
import io
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from codinet.errors import UserError

if TYPE_CHECKING:
    from playwright.sync_api import Page

VIEW_WIDTH, VIEW_HEIGHT = 1040, 850  # of the page
WIDTH = 800  # of the GIF, in pixels
COLOURS = 88  # the most common ones
ACCENTS = bytes.fromhex("24609c 2b7248 b0342b f5a623 b86e00 ffffff 000000")  # of style.css; rare, but noticed
WAIT = 15.0  # seconds for an answer

# The pointer, and the image that it carries.
_POINTER = """
(source) => {
  const pointer = document.createElement("div");
  pointer.id = "pointer";
  const shape = "polygon(0 0, 0 78%, 22% 62%, 38% 100%, 55% 92%, 40% 56%, 68% 54%)";
  for (const [colour, inset] of [["white", 0], ["black", 2]]) {
    const arrow = document.createElement("i");
    Object.assign(arrow.style, { position: "absolute", left: `${inset * 0.8}px`, top: `${inset * 1.4}px`,
      width: `${26 - 2 * inset}px`, height: `${30 - 2 * inset}px`, background: colour, clipPath: shape });
    pointer.append(arrow);
  }
  const carried = document.createElement("img");
  carried.id = "carried";
  carried.src = source;
  Object.assign(carried.style, { position: "absolute", left: "16px", top: "22px", width: "76px", opacity: 0.9,
    borderRadius: "8px", imageRendering: "pixelated", boxShadow: "0 4px 16px rgb(0 0 0 / 40%)" });
  pointer.prepend(carried);
  Object.assign(pointer.style, { position: "fixed", zIndex: 9, pointerEvents: "none" });
  document.body.append(pointer);
}
"""
_MOVE = "([x, y]) => Object.assign(document.getElementById('pointer').style, { left: `${x}px`, top: `${y}px` })"
_DRAG = """
([content, name, kind]) => {
  const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
  const carried = new DataTransfer();
  carried.items.add(new File([bytes], name));
  const event = new DragEvent(kind, { dataTransfer: carried, bubbles: true, cancelable: true });
  document.getElementById("drop").dispatchEvent(event);
}
"""
_SLIDE = """
(value) => {
  const slider = document.getElementById("threshold");
  slider.value = value;
  slider.dispatchEvent(new Event("input", { bubbles: true }));
}
"""


class Film:
    """Frames of a page and how long each is shown."""

    def __init__(self, page: "Page") -> None:
        self.page = page
        self.frames: list[Image.Image] = []
        self.milliseconds: list[int] = []

    def take(self, milliseconds: int) -> None:
        """Adds the page as it is now."""
        picture = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        height = round(WIDTH * picture.height / picture.width)
        self.frames.append(picture.resize((WIDTH, height), Image.Resampling.LANCZOS))
        self.milliseconds.append(milliseconds)

    def save(self, file: Path) -> None:
        """Writes the GIF, with one palette for all frames so that only changed pixels are stored."""
        tall = Image.new("RGB", (WIDTH, sum(frame.height for frame in self.frames[::6])))
        for place, frame in enumerate(self.frames[::6]):
            tall.paste(frame, (0, place * frame.height))
        common = tall.quantize(COLOURS, method=Image.Quantize.MEDIANCUT).getpalette() or []
        palette = Image.new("P", (1, 1))
        palette.putpalette([*common[: 3 * COLOURS], *ACCENTS])
        frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in self.frames]
        first, *rest = frames
        first.save(file, save_all=True, append_images=rest, duration=self.milliseconds, loop=0, optimize=False)


def record(page: "Page", url: str, image: int, file: Path) -> None:
    """Records the GIF.

    Args:
        page: A page of `VIEW_WIDTH` × `VIEW_HEIGHT` pixels with reduced motion.
        url: Address of the explorer of a routed run with test images.
        image: Index of the test image to drop.
        file: GIF file to write.
    """
    page.goto(url)
    page.locator("#shown").wait_for()
    answer = page.request.get(f"{url}api/images/{image}.png")
    if not answer.ok:
        raise UserError(f"Test image {image} is not on this machine; pass --image with one that is.")
    content = base64.b64encode(answer.body()).decode()
    page.locator('input[name="order"][value="hardest"]').check(force=True)
    page.wait_for_load_state("networkidle")
    page.locator("#gallery button").first.click()
    _settle(page)
    page.evaluate("document.activeElement.blur()")
    page.evaluate(_POINTER, f"data:image/png;base64,{content}")

    film = Film(page)
    target = _middle(page, "#picture")
    start = (VIEW_WIDTH * 0.62, VIEW_HEIGHT * 0.97)
    page.evaluate(_MOVE, start)
    film.take(700)
    for x, y in _line(start, target, 11):
        page.evaluate(_DRAG, [content, "photo.png", "dragover"])
        page.evaluate(_MOVE, (x, y))
        film.take(60)
    page.evaluate(_DRAG, [content, "photo.png", "drop"])
    page.evaluate("document.getElementById('carried').remove()")
    page.locator("#picture[title='photo.png']").wait_for()
    film.take(1200)
    for x, y in _line(target, _thumb(page, 0.5), 7):
        page.evaluate(_MOVE, (x, y))
        film.take(50)
    for thresholds, hold in (
        (np.linspace(0.5, 0.95, 13), 700),
        (np.linspace(0.95, 0.05, 23), 700),
        (np.linspace(0.05, 0.5, 13), 900),
    ):
        for threshold in thresholds[1:].round(2).tolist():
            page.evaluate(_SLIDE, threshold)
            page.evaluate(_MOVE, _thumb(page, threshold))
            _settle(page, threshold)
            film.take(55)
        film.milliseconds[-1] = hold
    film.save(file)


def _line(start: tuple[float, float], end: tuple[float, float], steps: int) -> Iterable[tuple[float, float]]:
    """Positions from start to end, slower at both ends."""
    for part in np.linspace(0, 1, steps + 1)[1:]:
        eased = (1 - np.cos(np.pi * part)) / 2
        yield start[0] + (end[0] - start[0]) * eased, start[1] + (end[1] - start[1]) * eased


def _middle(page: "Page", selector: str) -> tuple[float, float]:
    box = page.locator(selector).bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def _thumb(page: "Page", threshold: float) -> tuple[float, float]:
    """The position of the slider's thumb, which is 16 pixels wide."""
    box = page.locator("#threshold").bounding_box()
    assert box is not None
    return box["x"] + 8 + (box["width"] - 16) * threshold, box["y"] + box["height"] / 2 + 2


def _settle(page: "Page", threshold: float | None = None) -> None:
    """Waits until the page shows the answer to the last change."""
    page.wait_for_timeout(60)
    page.wait_for_load_state("networkidle")
    if threshold is None or page.locator("#accuracy").is_hidden():
        return
    for _ in range(int(WAIT / 0.02)):
        said = page.locator("#threshold").get_attribute("aria-valuetext") or ""
        if said.startswith(f"{threshold:.2f}, accuracy") and not page.locator("body.loading").count():
            return
        page.wait_for_timeout(20)
    raise UserError(f"The explorer has not answered within {WAIT:g} s; try again on an idle machine.")
