"""What a figure says."""

from matplotlib.figure import Figure
from matplotlib.text import Text


def text_of(figure: Figure) -> str:
    """All texts of a figure, one per line."""
    figure.canvas.draw()
    return "\n".join(text.get_text() for text in figure.findobj(Text) if isinstance(text, Text))
