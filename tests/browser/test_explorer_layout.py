"""The explorer's layout at several widths, its accessibility, and the images that come with the zoo."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.browser.actions import slide, until

from codinet.data import load
from codinet.run_reader import CurvePoint
from codinet.zoo.shelf import find
from codinet.zoo.zoo_run import open_card
from tools.zoo_gallery import add_curve, write_samples

OVERLAPS = """
(step) => {
  const parts = [...document.querySelectorAll(".top, .card, footer")].filter((part) => part.offsetParent);
  const found = [];
  for (let y = 0; ; y += step) {
    scrollTo(0, y);
    const boxes = parts.map((part) => part.getBoundingClientRect());
    for (let i = 0; i < boxes.length; i += 1) {
      for (let j = 0; j < i; j += 1) {
        const [a, b] = [boxes[i], boxes[j]];
        const width = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const height = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (width > 1 && height > 1) found.push(`${parts[i].className} and ${parts[j].className} at ${y}`);
      }
    }
    if (y + innerHeight >= document.documentElement.scrollHeight) return found;
  }
}
"""


def test_nothing_overlaps_while_scrolled(visit: Callable[..., Any], home: str) -> None:
    page = visit(home).page
    page.locator("#near li").first.wait_for()
    for width in (390, 1024, 1280, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(50)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(OVERLAPS, 150) == [], f"at {width} pixels"
        top = page.locator(".source").evaluate("card => card.getBoundingClientRect().top")
        if width >= 1024:  # the image stays in sight; at the end of the page the footer may push it a little
            assert -100 < top <= 17
        else:
            assert top < -100
    # In a low window all of the card can be reached by scrolling it.
    page.set_viewport_size({"width": 1280, "height": 500})
    assert page.locator(".source").evaluate("card => card.offsetHeight <= innerHeight && card.scrollHeight > 500")


SMALL = """
() => [...document.querySelectorAll("button, select, input, a")]
  .filter((one) => one.offsetParent && one.type !== "file" && !one.matches(".skip"))
  .map((one) => [one.id || one.textContent.trim() || one.value, one.getBoundingClientRect()])
  .filter(([, box]) => box.width < 43.5 || box.height < 43.5)
  .map(([name, box]) => `${name}: ${box.width} × ${box.height}`)
"""


def test_phone_touch_targets_are_large_and_axe_finds_no_violations(visit: Callable[..., Any], home: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs pip install axe-playwright-python")
    page = visit(home, width=390, height=844, reduced_motion="reduce").page
    page.locator("#accuracy strong").wait_for()
    page.locator("#legend button").first.wait_for()
    page.locator("#near li").first.wait_for()
    assert page.evaluate(SMALL) == []
    for width, scheme in ((390, "dark"), (1280, "light")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        found = axe.Axe().run(page).response["violations"]
        assert [(one["id"], one["nodes"][0]["html"]) for one in found] == []


def test_accuracy_follows_the_threshold(visit: Callable[..., Any], home: str) -> None:
    page = visit(home).page
    page.locator("#shown").wait_for()
    for threshold in (0.5, 1.0):
        found = page.request.get(f"{home}api/accuracy?threshold={threshold}").json()
        slide(page, threshold)
        accuracy = f"{found['accuracy']:.1f} %"
        says = f"{threshold:.2f}, accuracy {accuracy} on 40 test images"
        until(page, "(says) => document.getElementById('threshold').getAttribute('aria-valuetext') === says", says)
        cost = f"{100 * found['cost_share']:.1f} %"
        assert page.locator("#accuracy").inner_text() == f"Accuracy {accuracy} at {cost} cost, on 40 test images"


def test_misclassified_images_have_a_mark_that_is_explained(visit: Callable[..., Any], home: str) -> None:
    page = visit(home).page
    page.locator("#near li").first.wait_for()
    for place in ("gallery", "near"):
        names = page.locator(f"#{place} .thumb").evaluate_all("all => all.map((one) => one.title)")
        marked = page.locator(f"#{place} .thumb").evaluate_all("all => all.map((one) => !!one.querySelector('.miss'))")
        assert marked == ["misclassified as" in name for name in names]
        assert page.locator(f"#{place}-help").is_visible() == any(marked)
    assert page.locator("#gallery-help").inner_text().split() == ["✗", "misclassified", "at", "threshold", "0.5"]
    assert "Crosses are misclassified" in page.locator("#map-help").inner_text()


def test_a_zoo_network_without_its_data_set_shows_the_images_that_come_with_it(
    visit: Callable[..., Any], zoo: Path
) -> None:
    pytest.importorskip("fastapi", reason="the explorer needs the extra codinet[explore]")
    from codinet.explorer.app import create_app
    from codinet.explorer.serve import served

    card = find("digits-resnet20-06", zoo)
    dataset = open_card(card, zoo).aligned(load("digits", Path()))
    assert dataset is not None
    write_samples(open_card(card, zoo), dataset, zoo)
    add_curve(card, [CurvePoint(0.0, 20.0, 1.0, 500), CurvePoint(1.0, 10.0, 0.2, 500)], zoo)
    with served(create_app(open_card(find(card.name, zoo), zoo), None)) as url:
        page = visit(url).page
        page.locator("#shown").wait_for()
        assert page.locator("#gallery button").count() == 30
        until(page, "[...document.querySelectorAll('#gallery img')].every((image) => image.naturalWidth === 8)")
        assert "These 30 test images come with the network" in page.locator("#no-images").inner_text()
        assert page.locator("#by-number").is_hidden()
        assert page.locator("#map-samples").is_visible()
        page.locator("#gallery button").nth(4).click()
        page.locator("#gallery button.current").wait_for()
        assert page.locator("#near li").count() == 12
        page.locator("#accuracy", has_text="about 15.0 % at 60.0 % cost, on 500 test images").wait_for()
        page.close()  # before the server ends: it may still load images
