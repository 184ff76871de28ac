"""The page is complete, self-contained and accessible."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from codinet.report.build_report import write_report
from codinet.report.drawing import colour
from codinet.report.run_data import Run

VOID = {"meta", "link", "br", "img", "hr", "input"}
FIGURES = {
    *("fig-accuracy-cost", "fig-training", "fig-run-rates-near-1", "fig-run-rates-far", "fig-blocks-run"),
    *("fig-path-numbers", "fig-same-path", "fig-kl", "fig-space-class", "fig-space-blocks", "fig-space-groups"),
    *("fig-space-grid", "fig-similarity", "fig-effort-near-1", "fig-effort-far", "fig-sharing-near-1"),
    "fig-sharing-far",
}


class Reader(HTMLParser):
    """Collects tags with their attributes, and checks that they are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def page(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(runs, tmp_path_factory.mktemp("page") / "report").page


@pytest.fixture(scope="module")
def read(page: Path) -> Reader:
    return Reader(page.read_text())


def test_every_figure_has_a_description_and_a_caption(read: Reader) -> None:
    assert {figure["id"] for figure in read.all("figure")} == FIGURES
    drawings = [tag for tag in read.all("svg") if tag.get("role") == "img"]
    assert len(drawings) == len(FIGURES)
    assert all(len(drawing["aria-label"] or "") > 30 for drawing in drawings)
    assert len(read.all("figcaption")) == len(FIGURES)


def test_every_figure_is_saved_as_svg_and_png(page: Path) -> None:
    for name in FIGURES:
        stem = page.parent / "figures" / name.removeprefix("fig-")
        assert stem.with_suffix(".svg").read_text().startswith("<?xml")
        with Image.open(stem.with_suffix(".png")) as image:
            assert min(image.size) > 100


def test_ids_are_unique_and_links_valid(read: Reader) -> None:
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for link in read.all("a"):
        assert (link["href"] or "").removeprefix("#") in ids


def test_the_page_has_no_scripts_and_no_external_files(read: Reader, page: Path) -> None:
    text = page.read_text()
    assert not read.all("script")
    assert not read.all("img")
    for _, attributes in read.tags:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "xlink:href", "srcset"):
            address = attributes.get(name)
            assert address is None or address.startswith(("#", "data:"))
    assert not re.search(r"(?:https?:)?//[a-z]", re.sub(r"base64,[^\"]*", "", text))
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)


def test_names_are_escaped_and_local_paths_hidden(read: Reader, page: Path, runs: list[Run]) -> None:
    assert "near <1>" in "".join(read.words)
    assert "Open symbols are static" not in "".join(read.words)
    assert "open symbols are static" in "".join(read.words)
    assert "<1>" not in page.read_text()
    assert str(runs[0].folder.path.parent) not in page.read_text()


def test_the_page_is_responsive_and_accessible(read: Reader, page: Path) -> None:
    text = page.read_text()
    assert any(tag.get("name") == "viewport" for tag in read.all("meta"))
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert len(read.all("h1")) == 1
    assert [len(read.all(tag)) for tag in ("header", "main", "nav", "footer")] == [1, 1, 1, 1]
    assert all(tag.get("tabindex") == "0" for tag in read.all("div") if tag.get("class") == "scroll")
    assert all(tag.get("scope") for tag in read.all("th"))
    assert read.all("html")[0]["lang"] == "en"


def test_a_run_has_the_same_colour_in_every_figure(page: Path, runs: list[Run]) -> None:
    def drawn(name: str) -> str:
        return (page.parent / "figures" / f"{name}.svg").read_text()

    every = [colour(index) for index in range(len(runs))]
    for name in ("accuracy-cost", "training", "kl"):
        assert all(shade in drawn(name) for shade in every), name
    for name in ("blocks-run", "path-numbers", "same-path"):  # of the routed runs
        assert [shade in drawn(name) for shade in every] == [run.routed for run in runs], name


def test_rows_of_the_grid_are_named_by_m_d(page: Path) -> None:
    grid = (page.parent / "figures" / "space-grid.svg").read_text()
    assert "m_d = 0.25" in grid
    assert "m_d = 1" in grid


def test_a_report_of_a_static_run_is_reproducible(runs: list[Run], tmp_path: Path) -> None:
    text = write_report(runs[2:], tmp_path / "one", remark="Note <this>.").page.read_text()
    assert write_report(runs[2:], tmp_path / "two", remark="Note <this>.").page.read_text() == text
    read = Reader(text)
    assert {figure["id"] for figure in read.all("figure")} == {"fig-accuracy-cost", "fig-training", "fig-kl"}
    assert "Note <this>." in read.words
    assert "Dotted" not in text  # a static run has no stage 2
    boxes = [tag for tag in read.all("div") if tag.get("class") == "scroll"]
    assert len(boxes) == len([tag for tag in read.all("p") if tag.get("class") == "more"]) > 3
