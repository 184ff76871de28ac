"""The report as one self-contained HTML page: no scripts, and no fonts or images from elsewhere.

The page follows the reader's light or dark mode. Figures and tables that are wider than the screen scroll on their own;
page.css marks the side where there is more.
All text is escaped here and nowhere else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import NamedTuple

from codinet.report.drawing import Figure, inline_svg

# Shown only if its box can scroll, by page.css.
_MORE = '<p class="more" aria-hidden="true">Scroll sideways for more →</p>'


@dataclass(frozen=True)
class ReportFigure:
    """A figure with its description for screen readers (`alt`) and its caption."""

    name: str  # letters, digits and dashes: the id is fig-NAME, the files are NAME.svg and NAME.png
    figure: Figure
    alt: str
    caption: str


class Table(NamedTuple):
    """A table of plain text."""

    id: str
    caption: str
    headings: list[str]
    rows: list[list[str]]
    text_columns: int = 1  # the first columns, which are aligned left


@dataclass(frozen=True)
class Section:
    """A titled part of the page: a paragraph, then figures and tables."""

    id: str
    title: str
    text: str
    parts: Sequence[ReportFigure | Table]


def render(title: str, lead: Sequence[str], sections: list[Section], svgs: dict[str, str], footer: str) -> str:
    """Render the page.

    Args:
        title: Title and main heading.
        lead: The paragraphs under the heading.
        sections: The sections, in order.
        svgs: The SVG of each figure, by the figure's name.
        footer: The last line.

    Returns:
        The HTML document.
    """
    links = "".join(f'<li><a href="#{section.id}">{escape(section.title)}</a></li>' for section in sections)
    paragraphs = "\n".join(f'<p class="lead">{escape(text)}</p>' for text in lead)
    body = "".join(_section(section, svgs) for section in sections)
    style = files("codinet.report").joinpath("page.css").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<header>
<h1>{escape(title)}</h1>
{paragraphs}
</header>
<nav aria-label="Contents"><ul>{links}</ul></nav>
<main id="content">
{body}</main>
<footer><p>{escape(footer)}</p></footer>
</body>
</html>
"""


def _section(section: Section, svgs: dict[str, str]) -> str:
    parts = "".join(
        _table(part) if isinstance(part, Table) else _figure(part, svgs[part.name]) for part in section.parts
    )
    return (
        f'<section id="{section.id}" aria-labelledby="{section.id}-title">\n'
        f'<h2 id="{section.id}-title">{escape(section.title)}</h2>\n<p>{escape(section.text)}</p>\n{parts}</section>\n'
    )


def _figure(figure: ReportFigure, svg: str) -> str:
    name = f"fig-{figure.name}"
    # The scrolling box can take the focus, so that the keyboard can scroll it.
    return (
        f'<figure id="{name}" class="picture">\n'
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(figure.caption)}">{_MORE}'
        f"{inline_svg(svg, name, figure.alt)}</div>\n"
        f"<figcaption>{escape(figure.caption)}</figcaption>\n</figure>\n"
    )


def _table(table: Table) -> str:
    def cell(tag: str, column: int, text: str) -> str:
        kind = "words" if column < table.text_columns or len(text) > 16 else "number"  # long cells are text too
        scope = ' scope="row"' if column == 0 else ""
        return f'<{tag} class="{kind}"{scope}>{escape(text)}</{tag}>'

    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in table.headings)
    rows = "".join(
        "<tr>" + "".join(cell("td" if column else "th", column, text) for column, text in enumerate(row)) + "</tr>\n"
        for row in table.rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(table.caption)}">{_MORE}'
        f'<table id="{table.id}">\n<caption><span>{escape(table.caption)}</span></caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n"
    )
