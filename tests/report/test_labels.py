from matplotlib.figure import Figure
from matplotlib.text import Annotation

from codinet.report.labels import place_labels


def test_labels_of_near_points_do_not_overlap() -> None:
    figure = Figure(figsize=(6, 4), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 1), ylim=(0, 1))
    xy = [(0.5 + 0.01 * (i % 3), 0.5 + 0.01 * (i // 3)) for i in range(9)]
    place_labels(axes, xy, [f"method {i}" for i in range(9)], size_px=(600, 400))
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in axes.texts if isinstance(text, Annotation)]
    assert len(boxes) == 9
    # The text itself, not its line to the point, which get_window_extent may include for far labels.
    texts = [super(Annotation, text).get_window_extent() for text in axes.texts if isinstance(text, Annotation)]
    assert not any(a.overlaps(b) for i, a in enumerate(texts) for b in texts[:i])


def test_labels_stay_inside() -> None:
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
