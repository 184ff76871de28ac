import re
import sys
from io import BytesIO
from xml.etree import ElementTree

from matplotlib.figure import Figure
from matplotlib.text import Annotation
from PIL import Image

from codinet.report.drawing import (
    COLOURS,
    INK,
    colour,
    inline_svg,
    panels,
    place_labels,
    standalone_svg,
    styled,
    to_png,
    to_svg,
)


@styled
def drawing() -> Figure:
    figure, [[axes]] = panels(1, 1, width=3, height=2)
    axes.plot([0, 1], [0, 1], color=colour(0), clip_on=True)
    axes.scatter([0, 1], [1, 0], color=colour(1), rasterized=True)
    axes.set_title("Größe < 3 & mehr")
    return figure


def test_svg_is_reproducible() -> None:
    assert to_svg(drawing()) == to_svg(drawing())


def test_inline_svg_is_self_contained_with_prefixed_ids() -> None:
    text = inline_svg(to_svg(drawing()), "fig-x", 'a "quoted" <alt>')
    assert "http" not in text
    assert "<style" not in text
    assert 'aria-label="a &quot;quoted&quot; &lt;alt&gt;"' in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert ids
    assert len(ids) == len(set(ids))
    assert all(name.startswith("fig-x-") for name in ids)
    for used in re.findall(r"url\(#([^)]+)\)", text) + re.findall(r'href="#([^"]+)"', text):
        assert used in ids


def test_ink_becomes_the_text_colour() -> None:
    text = inline_svg(to_svg(drawing()), "a", "alt")
    assert "currentColor" in text
    assert INK not in text
    assert colour(0) in text


def test_standalone_svg_is_well_formed_with_a_title() -> None:
    root = ElementTree.fromstring(standalone_svg(to_svg(drawing()), "what & why"))
    assert root.tag.endswith("svg")
    assert root[0].text == "what & why"


def test_text_stays_text_in_svg() -> None:
    assert "Größe &lt; 3 &amp; mehr" in to_svg(drawing())


def test_png_has_no_background() -> None:
    image = Image.open(BytesIO(to_png(drawing())))
    assert image.getpixel((0, 0))[3] == 0  # type: ignore[index]


def test_pyplot_is_not_loaded_and_ink_is_not_a_series_colour() -> None:
    assert "matplotlib.pyplot" not in sys.modules
    assert INK not in COLOURS  # or marks would turn into the page's text colour


def test_labels_of_close_points_do_not_overlap() -> None:
    figure = Figure(figsize=(6, 4), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 1), ylim=(0, 1))
    xy = [(0.5 + 0.01 * (i % 3), 0.5 + 0.01 * (i // 3)) for i in range(9)]
    place_labels(axes, xy, [f"method {i}" for i in range(9)], size_px=(600, 400))
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in axes.texts if isinstance(text, Annotation)]
    assert len(boxes) == 9
    # The text alone: get_window_extent of an annotation may include the line to its point.
    texts = [super(Annotation, text).get_window_extent() for text in axes.texts if isinstance(text, Annotation)]
    assert not any(a.overlaps(b) for i, a in enumerate(texts) for b in texts[:i])


def test_labels_stay_inside_the_axes() -> None:
    figure = Figure(figsize=(6, 4), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 1), ylim=(0, 1))
    place_labels(axes, [(0.99, 0.99), (0.01, 0.01)], ["upper right", "lower left"], size_px=(600, 400))
    figure.canvas.draw()
    for text in axes.texts:
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= 600
        assert box.y1 <= 400
