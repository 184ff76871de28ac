import html

import numpy as np
import pytest
import torch
from matplotlib.patches import Rectangle
from tests.report.figure_text import text_of

from codinet.records import PathTable
from codinet.report.drawing import INK, Figure, to_png, to_svg
from codinet.report.path_figures import (
    draw_blocks_run,
    draw_kl_histogram,
    draw_path_counts,
    draw_run_rates,
    draw_same_path,
)


def table(images: int = 40, blocks: int = 9, classes: int = 3) -> PathTable:
    chance = torch.Generator().manual_seed(0)
    path_TN = (torch.rand(images, blocks, generator=chance) > 0.4).to(torch.uint8)
    label_T = torch.arange(images) % classes
    return PathTable(
        path_TN, path_TN.float(), label_T, label_T, torch.rand(images, generator=chance), path_TN.double().sum(1)
    )


def heights(figure: Figure) -> list[float]:
    return [bar.get_height() for bar in figure.axes[0].patches if isinstance(bar, Rectangle)]


def test_run_rates_show_rates_and_groups() -> None:
    paths = table()
    figure = draw_run_rates(paths, ["cat", "dog", "bird"], (3, 3, 3))
    axes = figure.axes[0]
    shown = np.asarray(axes.images[0].get_array())
    assert shown[1] == pytest.approx(paths.path_TN[paths.label_T == 1].double().mean(0).numpy())
    assert [float(np.asarray(line.get_xdata())[0]) for line in axes.lines] == [2.5, 5.5]
    assert all(word in text_of(figure) for word in ("cat", "dog", "bird", "group 1", "group 3", "block"))


@pytest.mark.parametrize(
    ("classes", "blocks", "groups"), [(100, 54, (18, 18, 18)), (2, 1, (1,)), (1000, 16, (3, 4, 6, 3))]
)
def test_run_rates_of_any_size(classes: int, blocks: int, groups: tuple[int, ...]) -> None:
    paths = table(images=50, blocks=blocks, classes=min(classes, 50))  # some classes have no image
    assert to_png(draw_run_rates(paths, [f"a long name of class {k}" for k in range(classes)], groups))


def test_blocks_run_counts_images() -> None:
    figure = draw_blocks_run({"one": table(), "two": table(20), "three": table(1)})
    assert sum(heights(figure)) == 40
    dots = [axes for axes in figure.axes if "dots" in axes.get_ylabel()]
    assert len(dots) == 3
    for axes in dots:  # a dot at 100 % is not cut, and has the colour of no run
        assert axes.get_ylim()[1] > 100.5
        assert max(axes.get_yticks()) <= 100
        assert axes.lines[0].get_color() == INK
    assert len([axes for axes in figure.axes if axes.get_visible() and axes.get_title()]) == 3


def test_path_counts_label_their_bars() -> None:
    text = text_of(draw_path_counts({"one": 276, "two": 0}, {"one": 5.25, "two": 0.0}))
    assert all(word in text for word in ("276", "5.25", "one", "two"))


@pytest.mark.parametrize("name", ["a$b^$c", "$", "日本", "x\x1b[31m", "a_b^{", "\\frac{"])
def test_names_may_contain_any_characters(name: str) -> None:
    figure = draw_path_counts({name: 3}, {name: 1.0})
    assert name in html.unescape(to_svg(figure))
    assert to_png(figure).startswith(b"\x89PNG")


def test_same_path_shows_kinds_and_overall() -> None:
    figure = draw_same_path({"one": {"crop": 0.5, "overall": 0.25}, "two": {"crop": 1.0}})
    assert heights(figure)[:3] == [0.5, 0.25, 1.0]
    assert np.isnan(heights(figure)[3])


def test_kl_histogram_shows_each_run() -> None:
    kl = torch.tensor([0.0, 0.05, 0.05, 2.0])
    figure = draw_kl_histogram({"one": kl, "two": kl * 3})
    assert sum(heights(figure)) == pytest.approx(2)
    assert "one: mean 0.525" in text_of(figure)
