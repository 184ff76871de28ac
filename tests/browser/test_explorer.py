"""The explorer as people use it: mouse, keyboard, phone, dropped files."""

import base64
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.browser.actions import slide, until

from codinet.runs import RunFolder

REFUSED = "Failed to load resource: the server responded with a status of 422"


def picture(kind: str, size: tuple[int, int] = (48, 32)) -> bytes:
    values = np.random.default_rng(1).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    stream = io.BytesIO()
    (Image.new("1", size, 1) if kind == "white" else Image.fromarray(values)).save(stream, "PNG")
    return stream.getvalue()


DROP = """
([content, name]) => {
  const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
  const carried = new DataTransfer();
  carried.items.add(new File([bytes], name));
  const target = document.getElementById("drop");
  for (const kind of ["dragenter", "dragover", "drop"]) {
    const event = new DragEvent(kind, { dataTransfer: carried, bubbles: true, cancelable: true });
    const stopped = !target.dispatchEvent(event);
    if (kind !== "dragenter" && !stopped) throw new Error(`the browser would handle ${kind} itself`);
  }
}
"""


def drop(page: Any, content: bytes, name: str) -> None:
    page.evaluate(DROP, [base64.b64encode(content).decode(), name])


def lit(page: Any, strip: str = "path") -> list[bool]:
    return page.locator(f"#{strip} li").evaluate_all("bars => bars.map((bar) => bar.classList.contains('ran'))")


def test_page_opens_with_an_image_its_path_its_neighbours_and_its_map(visit: Callable[..., Any], home: str) -> None:
    page = visit(home).page
    page.locator("#shown").wait_for()
    assert page.locator("#path .group").count() == 3
    assert page.locator("#path li").count() == 9
    assert page.locator("#chances li").count() == 5
    assert page.locator("#near li").count() == 12
    assert page.locator("#gallery li").count() == 30
    page.locator("#map-status:empty").wait_for(state="attached", timeout=60_000)
    assert page.locator("#canvas").evaluate(
        "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean)"
    )
    blocks = int(page.locator("#blocks").inner_text().split()[0])
    assert sum(lit(page)) == blocks
    assert page.locator("img[alt='']:not([aria-hidden])").evaluate_all(
        "images => images.every((image) => image.closest('button, header, .tip') || image.hidden)"
    )
    assert all(page.locator("#gallery img").evaluate_all("images => images.map((image) => image.naturalWidth === 8)"))


def test_dropped_image_is_routed(visit: Callable[..., Any], home: str) -> None:
    page = visit(home).page
    page.locator("#shown").wait_for()
    drop(page, picture("noise"), "mine.png")
    page.locator("#picture[title='mine.png']").wait_for()
    assert page.locator("#truth").inner_text() == "your image"
    assert page.locator("#picture").get_attribute("alt") == "mine.png, as the network sees it"
    assert page.locator("#picture").evaluate("image => image.naturalWidth") == 8
    assert sum(lit(page)) == int(page.locator("#blocks").inner_text().split()[0])
    # The slider goes on with the dropped image.
    slide(page, 0)
    page.locator("#blocks", has_text="9 of 9").wait_for()
    assert page.locator("#truth").inner_text() == "your image"


def test_chosen_file_is_routed(visit: Callable[..., Any], home: str) -> None:
    page = visit(home).page
    page.locator("#shown").wait_for()
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="choose a file").click()
    chooser.value.set_files({"name": "photo.png", "mimeType": "image/png", "buffer": picture("noise")})
    page.locator("#picture[title='photo.png']").wait_for()


@pytest.mark.parametrize(
    ("content", "name", "sentence"),
    [
        (lambda: picture("white", (10_000, 10_000)), "huge.png", "too large: 10000×10000 pixels"),
        (lambda: b"just a text", "notes.txt", "not an image"),
    ],
)
def test_invalid_files_show_an_error(
    visit: Callable[..., Any], home: str, content: Callable[[], bytes], name: str, sentence: str
) -> None:
    watched = visit(home)
    page = watched.page
    page.locator("#shown").wait_for()
    before = page.locator("#picture").get_attribute("src")
    drop(page, content(), name)
    page.get_by_role("alert").filter(has_text=sentence).wait_for()
    assert page.get_by_role("alert").is_visible()
    assert page.locator("#picture").get_attribute("src") == before
    assert [error.partition(" (")[0] for error in watched.errors] == [REFUSED]  # the browser's own note of it
    watched.errors.clear()
    # The image before it is still the one that is asked about, and the message goes.
    slide(page, 1)
    page.locator("#blocks", has_text="0 of 9").wait_for()
    assert page.get_by_role("alert").count() == 0


def test_too_large_files_are_not_sent(visit: Callable[..., Any], home: str) -> None:
    page = visit(home).page
    page.locator("#shown").wait_for()
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.method))
    # Made in the page: ten megabytes take long to get there.
    page.evaluate(DROP.replace("[bytes]", "[new Uint8Array(10_000_001)]"), ["", "long.png"])
    page.get_by_role("alert").filter(has_text="the limit is 10 MB").wait_for()
    assert "POST" not in sent


def test_slider_changes_path_class_and_cost(visit: Callable[..., Any], home: str) -> None:
    page = visit(home).page
    page.locator("#shown").wait_for()
    slide(page, 0)
    page.locator("#blocks", has_text="9 of 9").wait_for()
    assert all(lit(page))
    dear = page.locator("#macs").inner_text()
    slide(page, 1)
    page.locator("#blocks", has_text="0 of 9").wait_for()
    assert not any(lit(page))
    assert page.locator("#macs").inner_text() != dear
    assert page.locator("#threshold-value").inner_text() == "1.00"
    page.get_by_role("button", name="Reset to 0.5").click()
    until(page, "document.getElementById('threshold').value === '0.5'")


def test_answers_that_arrive_late_are_dropped(visit: Callable[..., Any], home: str) -> None:
    """The first of two requests is delayed until the second is answered."""
    page = visit(home).page
    page.locator("#shown").wait_for()
    held = []

    def hold(route: Any) -> None:
        if "threshold=0&" in route.request.url:
            held.append(route)
        else:
            route.continue_()

    page.route("**/route?*", hold)
    slide(page, 0)
    for _ in range(750):
        if held:
            break
        page.wait_for_timeout(20)
    assert held
    slide(page, 1)
    page.locator("#blocks", has_text="0 of 9").wait_for()
    for route in held:
        route.continue_()
    page.wait_for_timeout(300)
    assert not any(lit(page))


def test_a_hundred_requests_at_once(visit: Callable[..., Any], home: str) -> None:
    """tests/explorer/test_load.py measures the server's memory."""
    page = visit(home).page
    page.locator("#shown").wait_for()
    statuses = page.evaluate(
        """async (content) => {
          const body = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
          const asked = { method: "POST", body, headers: { "Content-Type": "application/octet-stream" } };
          const answers = Array.from({ length: 100 }, () => fetch("/api/route", asked));
          return (await Promise.all(answers)).map((answer) => answer.status);
        }""",
        base64.b64encode(picture("noise")).decode(),
    )
    assert statuses == [200] * 100


def test_views_mark_differences(visit: Callable[..., Any], home: str) -> None:
    page = visit(home).page
    page.locator("#shown").wait_for()
    for title in ("Mirror", "Rotation", "Upside down", "Random crop"):
        before = page.locator("#view-picture").get_attribute("src")
        page.get_by_role("radio", name=title).check(force=True)
        until(page, "(before) => document.getElementById('view-picture').src !== before", before)
        one, other = lit(page), lit(page, "view-path")
        marked = page.locator("#view-path li").evaluate_all(
            "bars => bars.map((bar) => bar.classList.contains('differs'))"
        )
        assert marked == [here != there for here, there in zip(one, other, strict=True)]
    # Of nine places one in nine is the same again, so a few clicks give another picture.
    before = page.locator("#view-picture").get_attribute("src")
    for _ in range(100):
        page.get_by_role("button", name="New sample").click()
        page.wait_for_timeout(150)
        if page.locator("#view-picture").get_attribute("src") != before:
            break
    else:
        pytest.fail("every crop is the same picture")


SHOWS = """
(wanted) => {
  const shown = [...document.querySelectorAll("#gallery button")].map((button) => Number(button.dataset.index));
  return shown.join() === wanted.join();
}
"""


def test_test_images_are_picked_by_order_class_and_number(visit: Callable[..., Any], home: str) -> None:
    page = visit(home).page
    page.locator("#shown").wait_for()

    def titles() -> list[str]:
        return page.locator("#gallery button").evaluate_all("all => all.map((one) => one.title)")

    def blocks() -> list[int]:
        return [int(name.split(" blocks run")[0].split()[-1]) for name in titles()]

    @contextmanager
    def filled() -> Iterator[None]:
        """Waits until the requested thumbnails are shown."""
        with page.expect_response("**/api/images?*") as answered:
            yield
        wanted = [image["index"] for image in answered.value.json()["images"]]
        until(page, SHOWS, wanted)

    for order, backwards in (("Hardest", True), ("Easiest", False)):
        with filled():
            page.get_by_role("radio", name=order).check(force=True)
        assert blocks() == sorted(blocks(), reverse=backwards)
    with filled():
        page.locator("#class").select_option("4")
    assert titles()
    assert all("class 4" in title for title in titles())
    page.locator("#gallery button").first.click()
    page.locator("#gallery button.current").wait_for()
    page.locator("#number").fill("17")
    page.locator("#number").press("Enter")
    page.locator("#picture[title='Test image 17']").wait_for()


FOCUS = """
() => {
  const here = document.activeElement;
  if (here === document.body) return ["", "none"];
  const list = here.closest("ul, #legend");
  const drawn = here.type === "radio" ? here.nextElementSibling : here;
  return [list?.id || here.id || here.name || here.className, getComputedStyle(drawn).outlineStyle];
}
"""


# Keeps what is announced: the chosen image's own announcement may follow a moment later and take its place.
LISTEN = """
() => {
  const live = document.getElementById("live");
  window.heard = [];
  new MutationObserver(() => window.heard.push(live.innerText)).observe(live, { childList: true });
}
"""


def test_keyboard(visit: Callable[..., Any], home: str) -> None:
    page = visit(home).page
    page.locator("#map-status:empty").wait_for(state="attached", timeout=60_000)
    page.locator("#shown").wait_for()
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        here, ring = page.evaluate(FOCUS)
        assert here == "" or ring != "none", f"no visible focus on {here}"
        reached.append(here)
    wanted = ["choose", "order", "shuffle", "class", "number", "gallery", "threshold", "reset", "view", "redraw"]
    wanted += ["kind", "colour", "canvas", "near"]
    assert [name for name in wanted if name not in reached] == []
    assert [name for name in dict.fromkeys(reached) if name in wanted] == wanted  # in the order they stand

    # Arrow keys: the slider, the thumbnails, the map.
    page.locator("#threshold").focus()
    page.keyboard.press("End")
    page.locator("#blocks", has_text="0 of 9").wait_for()
    page.keyboard.press("Home")
    page.locator("#blocks", has_text="9 of 9").wait_for()
    page.keyboard.press("ArrowRight")
    assert page.locator("#threshold-value").inner_text() == "0.01"

    page.locator("#gallery button").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    chosen = page.evaluate("document.activeElement.dataset.index")
    page.keyboard.press("Enter")
    page.locator(f"#picture[title='Test image {chosen}']").wait_for()

    page.evaluate(LISTEN)
    page.locator("#canvas").focus()
    for key in ("ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown"):
        page.keyboard.press(key)
    page.locator("#tip").wait_for()
    told = page.locator("#tip-text").inner_text()
    assert told in page.evaluate("window.heard")
    page.keyboard.press("Enter")
    number = told.split(",")[0].removeprefix("Image ")
    page.locator(f"#picture[title='Test image {number}']").wait_for()
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()


def test_result_is_announced(visit: Callable[..., Any], home: str) -> None:
    page = visit(home).page
    page.locator("#shown").wait_for()
    slide(page, 0)
    page.locator("#live", has_text="9 of 9 blocks run").wait_for(state="attached")
    assert page.locator("#live").get_attribute("aria-live") == "polite"
    assert (
        page.locator("#path li .tube").first.get_attribute("aria-label").startswith("Block 1: runs, run probability 0.")
    )


def test_map_shows_a_thumbnail_under_the_pointer_and_picks_on_click(visit: Callable[..., Any], home: str) -> None:
    page = visit(home).page
    page.locator("#shown").wait_for()
    page.locator("#map-status:empty").wait_for(state="attached", timeout=60_000)
    # A map that is drawn anew brings its legend along.
    page.evaluate("document.getElementById('legend').firstElementChild.id = 'of-the-last-map'")
    page.get_by_role("radio", name="PCA").check(force=True)
    page.locator("#of-the-last-map").wait_for(state="detached")
    canvas = page.locator("#canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    for x in np.linspace(0.02, 0.98, 60):
        for y in (0.2, 0.4, 0.5, 0.6, 0.8):
            page.mouse.move(box["x"] + box["width"] * x, box["y"] + box["height"] * y)
            if page.locator("#tip").is_visible():
                break
        else:
            continue
        break
    assert page.locator("#tip").is_visible()
    until(page, "document.getElementById('tip-picture').naturalWidth === 8")
    number = page.locator("#tip-text").inner_text().split(",")[0].removeprefix("Image ")
    page.mouse.down()
    page.mouse.up()
    page.locator(f"#picture[title='Test image {number}']").wait_for()
    page.get_by_role("radio", name="By blocks run").check(force=True)
    page.locator("#legend", has_text="Blocks run").wait_for()


def test_phone_has_no_sideways_scroll(visit: Callable[..., Any], home: str) -> None:
    page = visit(home, width=360, height=740, has_touch=True, is_mobile=True).page
    page.locator("#shown").wait_for()
    page.wait_for_timeout(200)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    slide(page, 0)
    page.locator("#blocks", has_text="9 of 9").wait_for()


def test_light_and_dark_are_readable(visit: Callable[..., Any], home: str) -> None:
    """Text has a contrast of at least 4.5, as WCAG AA requires."""
    words, grounds = ["--ink", "--soft", "--accent", "--right", "--wrong", "--mark"], ["--card", "--paper"]
    page = visit(home).page
    page.locator("#shown").wait_for()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        inks = page.evaluate(
            """(names) => names.map((name) => {
              const probe = document.createElement("i");
              probe.style.color = `var(${name})`;
              document.body.append(probe);
              return [name, getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map(Number)];
            })""",
            [*words, *grounds],
        )
        light = {name: luminance(rgb) for name, rgb in inks}
        for name in words:
            for ground in grounds:
                high, low = sorted((light[name], light[ground]), reverse=True)
                assert (high + 0.05) / (low + 0.05) >= 4.5, f"{name} on {ground}, {scheme}"


def luminance(rgb: list[float]) -> float:
    linear = [value / 255 / 12.92 if value <= 10 else ((value / 255 + 0.055) / 1.055) ** 2.4 for value in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_without_the_data_set_the_page_says_so_and_routes_uploads(visit: Callable[..., Any], run: RunFolder) -> None:
    from codinet.explorer.app import create_app
    from codinet.explorer.serve import served

    with served(create_app(run, None)) as url:
        page = visit(url).page
        page.locator("#no-images").wait_for()
        assert "not on this machine" in page.locator("#no-images").inner_text()
        assert page.locator("#picker").is_hidden()
        drop(page, picture("noise"), "mine.png")
        page.locator("#shown").wait_for()
        assert page.locator("#near li").count() == 12
        assert page.locator("#near button").count() == 0
        page.close()  # before the server ends
