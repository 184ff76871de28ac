"""A figure as text: SVG for a page (the page's own ink, unique ids, nothing external), SVG and PNG for files."""

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape

import matplotlib

from codinet.report.style import INK, Figure

DPI = 160  # of PNGs, and of dots drawn as pixels inside SVGs
_AS_TEXT = {"svg.fonttype": "none", "svg.hashsalt": "codinet", "svg.image_inline": True}


def draw(figure: Figure) -> str:
    """The SVG as matplotlib writes it, without date and program: the same figure gives the same text."""
    buffer = io.StringIO()
    with matplotlib.rc_context(_AS_TEXT), _any_letters():  # type: ignore[arg-type]
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", dpi=DPI, metadata=nothing)
    figure.set_layout_engine("none")  # the PNG uses the same layout
    return buffer.getvalue()


@contextmanager
def _any_letters() -> Iterator[None]:
    """Within, matplotlib does not warn about letters that its font lacks, which names may have."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        yield


def inline(svg: str, name: str, alt: str) -> str:
    """For an HTML page: an image for assistive technology, in the text's colour, with ids that start with `name`."""
    svg = _bare(svg)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(xlink:href|href)="#', rf'\1="#{name}-', svg)
    svg = svg.replace("url(#", f"url(#{name}-")
    width, height = size(svg)
    head = (
        f'<svg role="img" aria-label="{escape(alt)}" viewBox="0 0 {width:g} {height:g}" '
        f'style="--width: {width / 72:.2f}in" preserveAspectRatio="xMidYMid meet">'
    )
    return re.sub(r"<svg\b[^>]*>", lambda _: head, svg, count=1)


def standalone(svg: str, alt: str) -> str:
    """For a file: light or dark ink, as the reader's system prefers."""
    style = (
        f"<title>{escape(alt)}</title>"
        "<style>svg{color:#333}@media (prefers-color-scheme:dark){svg{color:#ddd}}"
        "text{font-family:system-ui,sans-serif!important}*{stroke-linejoin:round;stroke-linecap:butt}</style>"
    )
    return '<?xml version="1.0" encoding="utf-8"?>\n' + re.sub(
        r"<svg\b[^>]*>", lambda found: found.group() + style, _bare(svg), count=1
    )


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    with _any_letters():
        figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def size(svg: str) -> tuple[float, float]:
    """Width and height in points."""
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert found, "matplotlib writes a viewBox"
    return float(found.group(1)), float(found.group(2))


def _bare(svg: str) -> str:
    """The drawing alone, in the text's colour: no prolog, no metadata with addresses, no style for the whole page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style\b.*?</style>", "", svg, flags=re.DOTALL)
    return svg.replace(INK, "currentColor").rstrip() + "\n"
