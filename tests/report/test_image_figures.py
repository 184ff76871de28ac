import torch
from tests.report.figure_text import text_of

from codinet.report.image_figures import Strip, draw_strips


def test_strips_of_grey_and_colour_images() -> None:
    grey, colour = (torch.zeros(3, channels, 4, 4, dtype=torch.uint8) for channels in (1, 3))
    rows = [
        Strip("grey", grey, ["a", "b", "c"], [1, 0, 1]),
        Strip("colour", colour, ["d", "e", "f"]),
    ]
    figure = draw_strips(rows, columns=2)
    assert len(figure.axes[0].images) == 6
    assert all(word in text_of(figure) for word in "abcdef")
