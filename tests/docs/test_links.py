"""Every link, anchor and picture of the documentation leads somewhere, and every page can be found. No network."""

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

from tools.site_pages import PAGES, REFERENCE, notebook_page, site_links

ROOT = Path(__file__).parents[2]
NOTEBOOK = "docs/tour.ipynb"
DOCUMENTS = [
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", NOTEBOOK),
    *sorted(f"docs/{file.name}" for file in (ROOT / "docs").glob("*.md")),
]


@functools.cache
def text_of(document: str) -> str:
    text = (ROOT / document).read_text()
    return notebook_page(json.loads(text)) if document == NOTEBOOK else text


def without_fences(text: str) -> str:
    return re.sub(r"^( *)(```+|~~~+).*?^\1\2 *$", "", text, flags=re.MULTILINE | re.DOTALL)


def without_code(text: str) -> str:
    return re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", without_fences(text), flags=re.DOTALL)


def anchors(text: str) -> set[str]:
    """The anchors of a text's headings, as GitHub makes them, and those written as HTML."""
    found: set[str] = set(re.findall(r"<\w+ [^>]*?(?:id|name)=\"([^\"]+)\"", text))
    counts: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6} +(.+?)(?: +#+)?$", without_fences(text), flags=re.MULTILINE):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower().strip()).replace(" ", "-")
        found.add(f"{slug}-{counts[slug]}" if slug in counts else slug)
        counts[slug] = counts.get(slug, 0) + 1
    return found


def links(text: str) -> Iterator[str]:
    """The targets of links and pictures: inline, as a reference, and in HTML. Those in code are none."""
    plain = without_code(text)
    yield from re.findall(r"\]\(\s*<?([^()\s<>]+(?:\([^()\s]*\))?)>?(?:\s+\"[^\"]*\")?\s*\)", plain)
    yield from re.findall(r"^ {0,3}\[[^\]]+\]: *(\S+)", plain, flags=re.MULTILINE)
    yield from re.findall(r"<\w+ [^>]*?(?:href|src)=\"([^\"]+)\"", plain)


def is_local(link: str) -> bool:
    return re.match(r"[a-z][a-z0-9+.-]*:|//", link, flags=re.IGNORECASE) is None


def problem(document: str, link: str) -> str | None:
    """What is wrong with a relative link; None if nothing is."""
    path, _, anchor = link.partition("#")
    file = (ROOT / document).parent / unquote(path) if path else ROOT / document
    if not file.resolve().is_relative_to(ROOT):
        return f"{document}: {link} leads out of the repository"
    if not file.exists():
        return f"{document}: {link} does not exist"
    if not anchor:
        return None
    name = file.resolve().relative_to(ROOT).as_posix()
    if file.suffix not in (".md", ".ipynb"):
        return f"{document}: {link} has an anchor, but it is not a page"
    return None if unquote(anchor) in anchors(text_of(name)) else f"{document}: {link}: there is no such heading"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    local = [link for link in links(text_of(document)) if is_local(link)]
    assert [found for found in (problem(document, link) for link in local) if found] == []


def navigation() -> set[str]:
    """The pages in the navigation of the site."""

    def pages(entry: object) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        for part in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
            yield from pages(part)

    # The rest of the file has tags that only MkDocs knows.
    return set(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1])))


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    pages = {PAGES.get(document, document.removeprefix("docs/")) for document in DOCUMENTS}
    assert navigation() == pages | {f"reference/{name}.md" for name in REFERENCE}


def test_every_page_is_linked_from_the_readme() -> None:
    linked = {link.partition("#")[0] for link in links(text_of("README.md"))}
    assert set(DOCUMENTS) - {"README.md", NOTEBOOK} <= linked


def test_links_of_the_repository_become_links_of_the_site() -> None:
    text = "![a](docs/images/explorer.gif) [b](CHANGELOG.md) [c](docs/paper.md#units) [d](docs/tour.ipynb) [e](none.md)"
    here = "![a](images/explorer.gif) [b](changelog.md) [c](paper.md#units) [d](tour.md) [e](none.md)"
    assert site_links(text, "README.md") == here
    assert site_links("[a](../README.md#results) [b](zoo.md)", "docs/paper.md") == "[a](index.md#results) [b](zoo.md)"


def test_wrong_links_are_found() -> None:
    text = "# A `b`: c & d\n\n# Same\n\n# Same\n\n[x](#no) `[y](no)` ![z](i.png)\n\n"
    text += '```\n[w](no)\n# No\n```\n<a href="v">\n'
    assert anchors(text) == {"a-b-c--d", "same", "same-1"}
    assert list(links(text)) == ["#no", "i.png", "v"]
    wrong = ["docs/no.md", "docs/paper.md#no", "../elsewhere", "LICENSE#a", "#no"]
    assert all(problem("README.md", link) for link in wrong)
    assert problem("README.md", "docs/paper.md#units") is None
    assert not is_local("https://example.org")
    assert not is_local("mailto:someone")
