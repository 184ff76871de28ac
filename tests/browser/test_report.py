"""The report in a real browser: every figure is visible and described, and nothing is requested from other hosts."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def page_of(tmp_path_factory: pytest.TempPathFactory, finished_run: Path) -> str:
    """The report of a small run, as an address."""
    pytest.importorskip("matplotlib", reason="figures need the extra codinet[plot]")
    command = pytest.importorskip("codinet.commands.report", reason="there is no report yet")
    run = shutil.copytree(finished_run, tmp_path_factory.mktemp("report") / "run")
    command.run(command.Args(runs=(run,), time=False, device="cpu"))
    return (run / "report" / "index.html").as_uri()


def test_every_figure_is_visible_and_told_in_words(visit: Callable[..., Any], page_of: str) -> None:
    page = visit(page_of).page
    figures = page.locator("figure[id^='fig-']")
    assert figures.count() >= 8
    for place in range(figures.count()):
        figure = figures.nth(place)
        name = figure.get_attribute("id")
        figure.scroll_into_view_if_needed()
        drawing = figure.locator("svg[role=img], img").first
        assert drawing.is_visible(), name
        box = drawing.bounding_box()
        assert box["width"] >= 100, name
        assert box["height"] >= 60, name
        words = drawing.get_attribute("aria-label") or drawing.get_attribute("alt") or ""
        assert len(words) > 20, name
        assert figure.locator("figcaption").inner_text().strip(), name


def test_nothing_is_fetched_and_no_script_runs(visit: Callable[..., Any], page_of: str) -> None:
    watched = visit(page_of)
    asked: list[str] = []
    watched.page.on("request", lambda request: asked.append(request.url))
    watched.page.reload()
    assert [url for url in asked if not url.startswith(("data:", page_of))] == []
    assert watched.page.locator("script").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_down_only(visit: Callable[..., Any], page_of: str, scheme: str) -> None:
    page = visit(page_of, width=360, height=740, color_scheme=scheme, is_mobile=True, has_touch=True).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.locator("figure[id^='fig-']").first.is_visible()
    boxes = page.evaluate(
        """() => [...document.querySelectorAll(".scroll")].map((box) => ({
            wide: box.scrollWidth > box.clientWidth,
            hint: box.querySelector(".more").offsetHeight > 10,
            shadow: getComputedStyle(box).backgroundAttachment,
        }))"""
    )
    assert {box["wide"] for box in boxes} == {True, False}
    assert all(box["hint"] == box["wide"] for box in boxes)  # without JavaScript of the page
    assert all("local" in box["shadow"] for box in boxes)


def test_the_scroll_hint_disappears_at_the_end(visit: Callable[..., Any], page_of: str) -> None:
    page = visit(page_of, width=390).page
    box = page.locator(".scroll").filter(has=page.locator("table")).first
    hint = box.locator(".more")
    assert hint.is_visible()
    box.evaluate("(box) => { box.scrollLeft = box.scrollWidth; }")
    hint.wait_for(state="hidden")


def test_dark_ground_has_light_ink(visit: Callable[..., Any], page_of: str) -> None:
    def tone(scheme: str, what: str) -> float:
        page = visit(page_of, color_scheme=scheme).page
        paint = page.evaluate(f"getComputedStyle(document.body).{what}")
        return sum(float(part) for part in paint.strip("rgba()").split(",")[:3])

    assert tone("light", "color") < tone("light", "backgroundColor")
    assert tone("dark", "color") > tone("dark", "backgroundColor")


def test_contents_lead_to_sections(visit: Callable[..., Any], page_of: str) -> None:
    page = visit(page_of).page
    links = page.locator("nav a").evaluate_all("all => all.map((one) => one.getAttribute('href'))")
    assert len(links) >= 3
    for link in links:
        assert page.locator(link).count() == 1
