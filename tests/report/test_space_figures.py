import numpy as np
import pytest
import torch
from tests.report.figure_text import text_of

from codinet.report.drawing import to_png
from codinet.report.space_figures import (
    Cloud,
    draw_augmented_views,
    draw_by_blocks,
    draw_by_class,
    draw_class_grid,
    draw_similarity,
)


def cloud(name: str, with_tsne: bool, spread: float = 1.0) -> Cloud:
    x_E2 = torch.rand(50, 2) * spread
    maps = {"PCA": x_E2} | ({"t-SNE": x_E2 * 40} if with_tsne else {})
    return Cloud(name, maps, torch.arange(50) % 12, torch.rand(50) * 9)


def test_maps_have_the_same_scale_and_missing_ones_are_marked() -> None:
    clouds = [cloud("m_d = 0.25", True), cloud("m_d = 1", False, spread=3.0)]
    classes = [f"c{k}" for k in range(12)]
    for figure in (draw_by_class(clouds, classes), draw_by_blocks(clouds)):
        limits = [np.ptp(figure.axes[place].get_xlim()) for place in (0, 2)]
        assert limits[0] == pytest.approx(limits[1])
        assert "no t-SNE" in text_of(figure)
    assert "m_d = 1" in text_of(draw_class_grid(clouds, classes))


def test_a_single_path_can_be_drawn() -> None:
    flat = Cloud("one path", {"PCA": torch.zeros(9, 2)}, torch.zeros(9, dtype=torch.long), torch.ones(9))
    for figure in (
        draw_by_class([flat], ["a", "b"]),
        draw_by_blocks([flat]),
        draw_class_grid([flat], ["a", "b"]),
        draw_augmented_views(["one path"], [{"PCA": torch.zeros(20, 2)}], 10),
    ):
        assert to_png(figure)


def test_augmentations_of_an_image_have_the_same_colour() -> None:
    figure = draw_augmented_views(["run"], [{"PCA": torch.rand(30, 2)}], 10)
    colours = np.asarray(figure.axes[0].collections[0].get_facecolor())
    assert (colours[:10] == colours[0]).all()
    assert (colours[10] != colours[0]).any()


def test_similarity_shows_every_pair() -> None:
    pair = torch.rand(30), torch.rand(30) * 2 - 1
    figure = draw_similarity({"one": pair, "two": pair, "three": pair}, dict.fromkeys(("one", "two", "three"), "PCC"))
    offsets = np.asarray(figure.axes[0].collections[0].get_offsets())
    assert offsets[:, 0] == pytest.approx(pair[1].numpy())
    assert offsets[:, 1] == pytest.approx(pair[0].numpy())
    empty = torch.empty(0), torch.empty(0)
    assert to_png(draw_similarity({"none": empty}, {"none": "PCC undefined"}))
