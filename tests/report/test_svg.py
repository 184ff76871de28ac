import re
from xml.etree import ElementTree

from matplotlib.figure import Figure

from codinet.report import svg
from codinet.report.style import INK, colour, panels, styled


@styled
def drawing() -> Figure:
    figure, [[axes]] = panels(1, 1, width=3, height=2)
    axes.plot([0, 1], [0, 1], color=colour(0), clip_on=True)
    axes.scatter([0, 1], [1, 0], color=colour(1), rasterized=True)
    axes.set_title("Größe < 3 & mehr")
    return figure


def test_the_same_figure_gives_the_same_text() -> None:
    assert svg.draw(drawing()) == svg.draw(drawing())


def test_inline_asks_nobody_and_keeps_its_ids_to_itself() -> None:
    text = svg.inline(svg.draw(drawing()), "fig-x", 'a "quoted" <alt>')
    assert "http" not in text
    assert "<style" not in text
    assert 'aria-label="a &quot;quoted&quot; &lt;alt&gt;"' in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert ids
    assert len(ids) == len(set(ids))
    assert all(name.startswith("fig-x-") for name in ids)
    for used in re.findall(r"url\(#([^)]+)\)", text) + re.findall(r'href="#([^"]+)"', text):
        assert used in ids


def test_ink_becomes_the_texts_colour_and_marks_keep_theirs() -> None:
    text = svg.inline(svg.draw(drawing()), "a", "alt")
    assert "currentColor" in text
    assert INK not in text
    assert colour(0) in text


def test_files_are_well_formed_with_a_title() -> None:
    root = ElementTree.fromstring(svg.standalone(svg.draw(drawing()), "what & why"))
    assert root.tag.endswith("svg")
    assert root[0].text == "what & why"


def test_text_stays_text() -> None:
    assert "Größe &lt; 3 &amp; mehr" in svg.draw(drawing())


def test_png_has_no_background() -> None:
    from io import BytesIO

    from PIL import Image

    image = Image.open(BytesIO(svg.png(drawing())))
    assert image.getpixel((0, 0))[3] == 0  # type: ignore[index]
