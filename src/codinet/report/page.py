"""The page: sections of text, figures and tables as one HTML document that asks nobody for anything.

No script, no font, no image from outside; light and dark as the reader's system asks; figures and tables
wider than a phone scroll within themselves. All text is escaped here and nowhere else.
"""

from dataclasses import dataclass, field
from html import escape
from importlib.resources import files

from codinet.report import svg
from codinet.report.style import Figure
from codinet.report.tables import Table


@dataclass(frozen=True)
class Picture:
    """A figure, what it shows in words (for who cannot see it), and what to look for."""

    name: str  # of letters, digits and dashes: the id is fig-NAME, the files are NAME.svg and NAME.png
    figure: Figure
    alt: str
    caption: str


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    text: str
    parts: list[Picture | Table] = field(default_factory=list)


def render(title: str, lead: str, sections: list[Section], drawn: dict[str, str], footer: str) -> str:
    """The whole document; `drawn` holds each picture's SVG by name."""
    links = "".join(f'<li><a href="#{section.id}">{escape(section.title)}</a></li>' for section in sections)
    body = "".join(_section(section, drawn) for section in sections)
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
<p class="lead">{escape(lead)}</p>
</header>
<nav aria-label="Contents"><ul>{links}</ul></nav>
<main id="content">
{body}</main>
<footer><p>{escape(footer)}</p></footer>
</body>
</html>
"""


def _section(section: Section, drawn: dict[str, str]) -> str:
    parts = "".join(
        _table(part) if isinstance(part, Table) else _picture(part, drawn[part.name]) for part in section.parts
    )
    return (
        f'<section id="{section.id}" aria-labelledby="{section.id}-title">\n'
        f'<h2 id="{section.id}-title">{escape(section.title)}</h2>\n<p>{escape(section.text)}</p>\n{parts}</section>\n'
    )


def _picture(picture: Picture, drawing: str) -> str:
    name = f"fig-{picture.name}"
    # A wide figure scrolls in its box, which keyboards reach because it can take the focus.
    return (
        f'<figure id="{name}" class="picture">\n'
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(picture.caption)}">'
        f"{svg.inline(drawing, name, picture.alt)}</div>\n"
        f"<figcaption>{escape(picture.caption)}</figcaption>\n</figure>\n"
    )


def _table(table: Table) -> str:
    def cell(word: str, place: int, text: str) -> str:
        # Whole sentences among figures, such as a source, need room too.
        kind = "words" if place < table.words or len(text) > 16 else "number"
        scope = ' scope="row"' if word == "th" and place == 0 else ""
        return f'<{word} class="{kind}"{scope}>{escape(text)}</{word}>'

    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in table.headings)
    rows = "".join(
        "<tr>" + "".join(cell("th" if place == 0 else "td", place, text) for place, text in enumerate(row)) + "</tr>\n"
        for row in table.rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(table.caption)}">'
        f'<table id="{table.id}">\n<caption><span>{escape(table.caption)}</span></caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n"
    )
