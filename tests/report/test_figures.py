"""Figures hold what they were given; how they look is for eyes."""

import html
import sys
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from codinet.records import PathTable
from codinet.report import figures, figures_consistency, figures_images, figures_space, figures_training, svg
from codinet.report.style import COLOURS, INK
from codinet.report.svg import png


def table(images: int = 40, blocks: int = 9, classes: int = 3) -> PathTable:
    chance = torch.Generator().manual_seed(0)
    path_TN = (torch.rand(images, blocks, generator=chance) > 0.4).to(torch.uint8)
    label_T = torch.arange(images) % classes
    return PathTable(
        path_TN, path_TN.float(), label_T, label_T, torch.rand(images, generator=chance), path_TN.double().sum(1)
    )


def texts(figure: Figure) -> str:
    figure.canvas.draw()
    return "\n".join(text.get_text() for text in figure.findobj(Text) if isinstance(text, Text))


def heights(figure: Figure) -> list[float]:
    return [bar.get_height() for bar in figure.axes[0].patches if isinstance(bar, Rectangle)]


def test_run_rates_shows_the_rates_and_the_stages() -> None:
    paths = table()
    figure = figures.run_rates(paths, ["cat", "dog", "bird"], (3, 3, 3))
    axes = figure.axes[0]
    shown = np.asarray(axes.images[0].get_array())
    assert shown[1] == pytest.approx(paths.path_TN[paths.label_T == 1].double().mean(0).numpy())
    assert [float(np.asarray(line.get_xdata())[0]) for line in axes.lines] == [2.5, 5.5]
    assert all(word in texts(figure) for word in ("cat", "dog", "bird", "stage 1", "stage 3", "block"))


@pytest.mark.parametrize(
    ("classes", "blocks", "stages"), [(100, 54, (18, 18, 18)), (2, 1, (1,)), (1000, 16, (3, 4, 6, 3))]
)
def test_run_rates_of_every_size_can_be_drawn(classes: int, blocks: int, stages: tuple[int, ...]) -> None:
    paths = table(images=50, blocks=blocks, classes=min(classes, 50))  # some classes have no image
    assert png(figures.run_rates(paths, [f"a long name of class {k}" for k in range(classes)], stages))


def test_blocks_run_counts_images() -> None:
    figure = figures.blocks_run({"one": table(), "two": table(20), "three": table(1)})
    assert sum(heights(figure)) == 40
    assert len([axes for axes in figure.axes if axes.get_visible() and axes.get_title()]) == 3


def test_path_numbers_names_its_bars() -> None:
    said = texts(figures.path_numbers({"one": 276, "two": 0}, {"one": 5.25, "two": 0.0}))
    assert all(word in said for word in ("276", "5.25", "one", "two"))


def test_kl_histogram_puts_runs_side_by_side() -> None:
    kl = torch.tensor([0.0, 0.05, 0.05, 2.0])
    figure = figures_consistency.kl_histogram({"one": kl, "two": kl * 3})
    assert sum(heights(figure)) == pytest.approx(2)
    assert "one: mean 0.525" in texts(figure)


def test_same_path_draws_kinds_and_overall() -> None:
    figure = figures_consistency.same_path({"one": {"crop": 0.5, "overall": 0.25}, "two": {"crop": 1.0}})
    assert heights(figure)[:3] == [0.5, 0.25, 1.0]
    assert np.isnan(heights(figure)[3])


def test_similarity_scatters_every_pair_and_the_line() -> None:
    pair = torch.rand(30), torch.rand(30) * 2 - 1
    figure = figures_consistency.similarity(
        {"one": pair, "two": pair, "three": pair}, dict.fromkeys(("one", "two", "three"), "PCC")
    )
    offsets = np.asarray(figure.axes[0].collections[0].get_offsets())
    assert offsets[:, 0] == pytest.approx(pair[1].numpy())
    assert offsets[:, 1] == pytest.approx(pair[0].numpy())
    empty = torch.empty(0), torch.empty(0)
    assert png(figures_consistency.similarity({"none": empty}, {"none": "PCC undefined"}))


def cloud(name: str, with_tsne: bool, spread: float = 1.0) -> figures_space.Cloud:
    x_E2 = torch.rand(50, 2) * spread
    maps = {"PCA": x_E2} | ({"t-SNE": x_E2 * 40} if with_tsne else {})
    return figures_space.Cloud(name, maps, torch.arange(50) % 12, torch.rand(50) * 9)


def test_clouds_share_their_scale_and_say_what_is_missing() -> None:
    clouds = [cloud("m_d = 0.25", True), cloud("m_d = 1", False, spread=3.0)]
    classes = [f"c{k}" for k in range(12)]
    for figure in (figures_space.by_class(clouds, classes), figures_space.by_blocks(clouds)):
        limits = [np.ptp(figure.axes[place].get_xlim()) for place in (0, 2)]
        assert limits[0] == pytest.approx(limits[1])
        assert "no t-SNE" in texts(figure)
    assert "m_d = 1" in texts(figures_space.classes_in_rows(clouds, classes))


def test_a_collapsed_cloud_can_be_drawn() -> None:
    flat = figures_space.Cloud("one path", {"PCA": torch.zeros(9, 2)}, torch.zeros(9, dtype=torch.long), torch.ones(9))
    for figure in (
        figures_space.by_class([flat], ["a", "b"]),
        figures_space.by_blocks([flat]),
        figures_space.classes_in_rows([flat], ["a", "b"]),
        figures_space.augmentation_groups(["one path"], [{"PCA": torch.zeros(20, 2)}], 10),
    ):
        assert png(figure)


def test_an_images_augmentations_share_a_colour() -> None:
    figure = figures_space.augmentation_groups(["run"], [{"PCA": torch.rand(30, 2)}], 10)
    colours = np.asarray(figure.axes[0].collections[0].get_facecolor())
    assert (colours[:10] == colours[0]).all()
    assert (colours[10] != colours[0]).any()


def test_training_draws_both_stages_and_survives_gaps() -> None:
    rows: list[dict[str, Any]] = [
        {"stage": "joint", "epoch": 1, "accuracy": 50.0, "loss": 2.0, "cost_share": 0.9, "distinct_paths": 3}
    ]
    rows += [{"stage": "finetune", "epoch": 1, "accuracy": 60.0, "loss": 1.0, "cost_share": 0.6, "distinct_paths": 4}]
    figure = figures_training.training({"run": rows, "bare": [{"stage": "static", "accuracy": 9.0}], "none": []})
    assert "stage 2" in texts(figure)
    assert [50.0, 60.0] in [np.asarray(line.get_ydata()).tolist() for line in figure.axes[0].lines]


def test_strips_hold_grey_and_coloured_images() -> None:
    grey, colour = (torch.zeros(3, channels, 4, 4, dtype=torch.uint8) for channels in (1, 3))
    rows = [
        figures_images.Strip("grey", grey, ["a", "b", "c"], [1, 0, 1]),
        figures_images.Strip("colour", colour, ["d", "e", "f"]),
    ]
    figure = figures_images.strips(rows, columns=2)
    assert len(figure.axes[0].images) == 6
    assert all(word in texts(figure) for word in "abcdef")


def test_pyplot_is_never_loaded_and_the_ink_is_no_mark() -> None:
    assert "matplotlib.pyplot" not in sys.modules
    assert INK not in COLOURS  # or marks would turn into the page's text colour


@pytest.mark.parametrize("name", ["a$b^$c", "$", "日本", "x\x1b[31m", "a_b^{", "\\frac{"])
def test_any_name_can_be_drawn(name: str) -> None:
    figure = figures.path_numbers({name: 3}, {name: 1.0})
    assert name in html.unescape(svg.draw(figure))
    assert png(figure).startswith(b"\x89PNG")


def test_metrics_with_missing_values_are_drawn_without_them() -> None:
    rows: list[dict[str, Any]] = [
        {"stage": "joint", "accuracy": 50.0, "loss": None},
        {"stage": "finetune", "accuracy": None},
        {},
    ]
    figure = figures_training.training({"run": rows})
    assert svg.draw(figure)
    lines = [line for line in figure.axes[0].lines if np.size(line.get_xdata())]
    assert [np.asarray(line.get_ydata()).tolist() for line in lines] == [[50.0]]
